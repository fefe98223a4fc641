//! The interface of the tunnels: packets that the kernel routes there are read here, packets from
//! the other side are written.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Write as _},
    iter,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    sync::Arc,
};

use gotatun::{
    packet::{Ip, Packet, PacketBufPool},
    tun::{IpRecv, IpSend, MtuWatcher},
};
use tokio::io::unix::AsyncFd;

use super::{Error, Result, netns::Netns};

/// An open TUN interface. It stays when this is dropped, and so do the routes that lead there: until
/// it is opened again packets are lost, none finds another way, and connections keep their translation.
#[derive(Clone, Debug)]
pub struct Tun(Arc<AsyncFd<File>>);

impl Tun {
    /// Makes or finds the interface in a network namespace.
    pub fn open(netns: &Netns, name: &str) -> Result<Self> {
        let opened = netns.run(|| open(name))?;
        opened.map_err(|source| Error::Tun { name: name.into(), source })
    }
}

impl IpSend for Tun {
    async fn send(&mut self, packet: Packet<Ip>) -> io::Result<()> {
        let packet = packet.into_bytes();
        let result = self.0.async_io(tokio::io::Interest::WRITABLE, |mut file| file.write(&packet));
        // The kernel does not take every packet, for one while the interface is down.
        if let Err(error) = result.await {
            tracing::debug!(%error, "a packet from a tunnel was lost");
        }
        Ok(())
    }
}

impl IpRecv for Tun {
    async fn recv<'a>(
        &'a mut self,
        pool: &mut PacketBufPool,
    ) -> io::Result<impl Iterator<Item = Packet<Ip>> + Send + 'a> {
        loop {
            let mut packet = pool.get();
            let read =
                self.0.async_io(tokio::io::Interest::READABLE, |mut file| file.read(&mut packet));
            let length = read.await?;
            packet.truncate(length);
            if let Ok(packet) = packet.try_into_ip() {
                return Ok(iter::once(packet));
            }
        }
    }

    fn mtu(&self) -> MtuWatcher {
        // Only for padding: the kernel sees to it that no packet is too large.
        MtuWatcher::new(u16::MAX)
    }
}

fn open(name: &str) -> io::Result<Tun> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    // SAFETY: an ifreq is plain data, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        libc::c_short::try_from(libc::IFF_TUN | libc::IFF_NO_PI).map_err(io::Error::other)?;
    // SAFETY: the request is a valid ifreq that lives across the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the argument of this call is a plain number.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST, 1) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the file is never taken out or replaced, so its descriptor stays the same and open.
    let registered = unsafe { AsyncFd::register(file) }?;
    Ok(Tun(Arc::new(registered)))
}
