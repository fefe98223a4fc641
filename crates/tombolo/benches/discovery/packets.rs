//! Receives announcements at a node, independently of discovery.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tombolo_testbed::Node;

const GROUP: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 251);
const PORT: u16 = 5353;

/// Arrival times of the announcements of a cluster.
pub struct Packets(Receiver<Instant>);

impl Packets {
    /// Listens at a node for packets from these addresses that contain this name.
    pub fn listen(node: &Node, from: Vec<Ipv4Addr>, name: &str) -> Result<Self> {
        let network = format!("/run/netns/{}", node.network_namespace());
        let network = File::open(&network).with_context(|| format!("open {network}"))?;
        let (address, name) = (node.address(), name.as_bytes().to_vec());
        let (sender, packets) = channel();
        let (ready, is_ready) = channel();
        thread::spawn(move || {
            let listening =
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .context("move into the node's network")
                    .and_then(|()| open(address));
            let socket = match listening {
                Ok(socket) => socket,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            receive(&socket, &from, &name, &sender);
        });
        is_ready.recv().context("nobody listens")??;
        Ok(Self(packets))
    }

    /// Discards received packets.
    pub fn forget(&self) {
        while self.0.try_recv().is_ok() {}
    }

    /// Arrival time of the next packet.
    pub fn next(&self) -> Result<Instant> {
        self.0.recv_timeout(Duration::from_secs(5)).context("no announcement received")
    }
}

fn open(address: Ipv4Addr) -> Result<UdpSocket> {
    let opened = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    sockopt::set_socket_reuseaddr(&opened, true)?;
    sockopt::set_socket_reuseport(&opened, true)?;
    bind(&opened, &SocketAddr::from((GROUP, PORT)))?;
    sockopt::set_ip_add_membership(&opened, &GROUP, &address)?;
    Ok(opened.into())
}

fn receive(socket: &UdpSocket, from: &[Ipv4Addr], name: &[u8], sender: &Sender<Instant>) {
    let mut buffer = [0; 9000];
    loop {
        let Ok((length, source)) = socket.recv_from(&mut buffer) else { return };
        let (now, packet) = (Instant::now(), &buffer[..length]);
        let ours = from.iter().any(|address| source.ip() == *address);
        // Queries contain the name too.
        let is_answer = packet.get(2).is_some_and(|flags| flags & 0x80 != 0);
        let has_name = packet.windows(name.len()).any(|part| part == name);
        if ours && is_answer && has_name && sender.send(now).is_err() {
            return;
        }
    }
}
