//! Where components listen: at all addresses of this machine, of both families where it has both.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener},
};

use rustix::{
    io::Errno,
    net::{self, AddressFamily, SocketFlags, SocketType, sockopt},
};

/// How many callers wait until they are let in.
const BACKLOG: i32 = 1024;

/// At all addresses. Who calls from an IPv4 address seems to come from the IPv6 address that stands for
/// it: see [`std::net::IpAddr::to_canonical`].
pub fn everywhere(port: u16) -> io::Result<TcpListener> {
    on((Ipv6Addr::UNSPECIFIED, port).into())
}

/// At this address; for `[::]`, at all of both families. Made for tasks: it never blocks.
pub fn on(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = match address {
        SocketAddr::V6(all) if all.ip().is_unspecified() => match of_both_families(&all) {
            // There is no IPv6 here.
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

/// Whatever the machine's default is for what IPv6 sockets take.
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
    async fn callers_of_both_families_are_heard() {
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
    fn one_address_is_one_address() {
        let listener = on((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        assert!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_err());
    }
}
