//! Traffic between pods, and what the other side sees of it.

use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    process::Command,
    thread,
    time::Duration,
};

use tokio::{net::TcpSocket, runtime::Handle};
use tombolo_dataplane::driver::netns::Netns;

const PATIENCE: Duration = Duration::from_secs(3);

/// Serves TCP and UDP on a port: tells each client the address that it comes from, then all that it
/// sends.
pub fn serve(netns: &Netns, port: u16) {
    let (tcp, udp) = netns
        .run(|| {
            let any = (Ipv4Addr::UNSPECIFIED, port);
            (TcpListener::bind(any).unwrap(), UdpSocket::bind(any).unwrap())
        })
        .unwrap();
    thread::spawn(move || {
        for stream in tcp.incoming() {
            thread::spawn(move || serve_stream(stream?));
        }
    });
    thread::spawn(move || {
        let mut buffer = [0; 2000];
        loop {
            let (_, from) = udp.recv_from(&mut buffer).unwrap();
            let _ = udp.send_to(from.ip().to_string().as_bytes(), from);
        }
    });
}

fn serve_stream(mut stream: TcpStream) -> io::Result<()> {
    let from = format!("{:<15}", stream.peer_addr()?.ip());
    stream.write_all(from.as_bytes())?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        stream.write_all(&buffer[..length])?;
    }
}

/// The source that a server sees of a TCP connection, through which `size` bytes went both ways.
pub fn tcp(from: &Netns, to: Ipv4Addr, port: u16, size: usize) -> io::Result<IpAddr> {
    from.run(|| {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(to.into(), port), PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut seen = [0; 15];
        stream.read_exact(&mut seen)?;
        let sent: Vec<u8> = (0..size).map(|at| (at % 251) as u8).collect();
        let mut writer = stream.try_clone()?;
        let copy = sent.clone();
        let writing = thread::spawn(move || writer.write_all(&copy));
        let mut received = vec![0; size];
        stream.read_exact(&mut received)?;
        writing.join().unwrap()?;
        assert!(sent == received, "what came back is not what was sent");
        Ok(String::from_utf8_lossy(&seen).trim().parse().unwrap())
    })
    .unwrap()
}

/// The source that a server sees of a UDP packet.
pub fn udp(from: &Netns, to: Ipv4Addr, port: u16) -> io::Result<IpAddr> {
    from.run(|| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.send_to(b"who am I?", (to, port))?;
        let mut buffer = [0; 64];
        let (length, answered) = socket.recv_from(&mut buffer)?;
        assert_eq!(answered.ip(), to);
        Ok(String::from_utf8_lossy(&buffer[..length]).parse().unwrap())
    })
    .unwrap()
}

/// Pings once, with a packet of this size that must not be split.
pub fn ping(from: &Netns, to: Ipv4Addr, size: usize) -> Result<(), String> {
    let payload = (size - 28).to_string();
    let to = to.to_string();
    let output = from
        .run(|| Command::new("ping").args(["-c1", "-W2", "-Mdo", "-s", &payload, &to]).output())
        .unwrap()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// How many TCP connections are being opened and have no answer yet.
pub fn opening(netns: &Netns) -> usize {
    const SYN_SENT: &str = "02";
    let read = || std::fs::read_to_string("/proc/thread-self/net/tcp");
    let sockets = netns.run(read).unwrap().unwrap();
    let states = sockets.lines().filter_map(|line| line.split_whitespace().nth(3));
    states.filter(|state| *state == SYN_SENT).count()
}

/// How many packets have left by an interface.
pub fn packets_to(netns: &Netns, link: &str) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/dev");
    let links = netns.run(read).unwrap().unwrap();
    let counters = links.lines().find_map(|line| line.trim().strip_prefix(link)).unwrap();
    counters.split_whitespace().nth(10).unwrap().parse().unwrap()
}

/// A TCP connection that stays open.
pub struct Open(TcpStream);

impl Open {
    pub fn connect(from: &Netns, to: Ipv4Addr, port: u16) -> Self {
        Self::connect_from(from, 0, to, port)
    }

    /// From this port.
    pub fn connect_from(from: &Netns, own_port: u16, to: Ipv4Addr, port: u16) -> Self {
        let connect = || -> io::Result<TcpStream> {
            let socket = TcpSocket::new_v4()?;
            socket.bind((Ipv4Addr::UNSPECIFIED, own_port).into())?;
            let stream = Handle::current().block_on(socket.connect((to, port).into()))?;
            stream.into_std()
        };
        let stream = from.run(connect).unwrap().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut seen = [0; 15];
        (&stream).read_exact(&mut seen).unwrap();
        Self(stream)
    }

    pub fn say_something(&mut self) -> io::Result<()> {
        self.0.write_all(b"hello")?;
        self.0.read_exact(&mut [0; 5])
    }
}
