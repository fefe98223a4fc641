//! Listening sockets for IPv4 and IPv6, or for IPv4 alone on hosts without IPv6.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener},
};

use rustix::{
    io::Errno,
    net::{self, AddressFamily, SocketFlags, SocketType, sockopt},
};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Listens on all addresses. IPv4 clients have IPv4-mapped IPv6 addresses: see
/// [`std::net::IpAddr::to_canonical`].
pub fn everywhere(port: u16) -> io::Result<TcpListener> {
    on((Ipv6Addr::UNSPECIFIED, port).into())
}

/// Listens on one address, or on all of both families for `[::]`. The socket is non-blocking.
pub fn on(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match address {
        SocketAddr::V6(all) if all.ip().is_unspecified() => match of_both_families(&all) {
            // The host has no IPv6.
            Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
                TcpListener::bind((Ipv4Addr::UNSPECIFIED, all.port()))?
            }
            both => both?,
        },
        one => TcpListener::bind(one)?,
    };
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Accepts IPv4 too, whatever the sysctl `net.ipv6.bindv6only` says.
fn of_both_families(address: &SocketAddrV6) -> rustix::io::Result<TcpListener> {
    let (family, kind) = (AddressFamily::INET6, SocketType::STREAM);
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    net::bind(&socket, address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpStream};

    use super::*;

    #[tokio::test]
    async fn everywhere_accepts_both_families() {
        let listener = tokio::net::TcpListener::from_std(everywhere(0).unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let caller = TcpStream::connect((address, port)).unwrap();
            let (_, from) = listener.accept().await.unwrap();
            assert_eq!(from.ip().to_canonical(), address);
            assert_eq!(from.port(), caller.local_addr().unwrap().port());
        }
    }

    #[test]
    fn a_single_address_accepts_nothing_on_others() {
        let listener = on((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_err());
    }
}
