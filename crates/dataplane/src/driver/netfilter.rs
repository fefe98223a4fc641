//! Messages to and from netfilter.

use std::{io, os::fd::AsRawFd as _};

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::{
    NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_NETFILTER};

/// A message as it is sent.
pub fn message(inner: impl Into<NetfilterMessageInner>, flags: u16, sequence: u32) -> Vec<u8> {
    const NFNL_SUBSYS_NFTABLES: u16 = 10;
    let inner = inner.into();
    let (family, resource) = match &inner {
        NetfilterMessageInner::None(_) => (NetfilterProtoFamily::Unspec, NFNL_SUBSYS_NFTABLES),
        _ => (NetfilterProtoFamily::IPv4, 0),
    };
    let header = NetfilterHeader::new(family, 0, resource);
    let mut message = NetlinkMessage::from(NetfilterMessage::new(header, inner));
    message.header.flags = NLM_F_REQUEST | flags;
    message.header.sequence_number = sequence;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    bytes
}

/// Sends one message and returns the answers.
pub fn request(
    inner: impl Into<NetfilterMessageInner>,
    flags: u16,
) -> io::Result<Vec<NetfilterMessageInner>> {
    // The end of a list is told in any case.
    let acknowledge = if flags & NLM_F_DUMP == 0 { NLM_F_ACK } else { 0 };
    exchange(&message(inner, flags | acknowledge, 1))
}

/// Sends messages and returns the answers up to the first acknowledgement or error.
pub fn exchange(messages: &[u8]) -> io::Result<Vec<NetfilterMessageInner>> {
    let socket = open(messages.len())?;
    socket.send_to(messages, &SocketAddr::new(0, 0), 0)?;
    receive(&socket)
}

fn open(size: usize) -> io::Result<Socket> {
    let socket = Socket::new(NETLINK_NETFILTER)?;
    let size = libc::c_int::try_from(size.max(1 << 17) * 2).map_err(io::Error::other)?;
    let length = libc::socklen_t::try_from(size_of_val(&size)).map_err(io::Error::other)?;
    // SAFETY: the option takes an int, which lives across the call.
    let result = unsafe {
        let value = (&raw const size).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, value, length)
    };
    if result == 0 { Ok(socket) } else { Err(io::Error::last_os_error()) }
}

fn receive(socket: &Socket) -> io::Result<Vec<NetfilterMessageInner>> {
    let mut answers = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let answer = NetlinkMessage::<NetfilterMessage>::deserialize(rest)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            let length = usize::try_from(answer.header.length).map_err(io::Error::other)?;
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
            match answer.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) | NetlinkPayload::Done(_) => return Ok(answers),
                NetlinkPayload::InnerMessage(message) => answers.push(message.inner),
                _ => {}
            }
        }
    }
}
