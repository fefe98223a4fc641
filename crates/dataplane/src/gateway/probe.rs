//! Probes: small UDP packets through each tunnel, which the gateway on the other side sends back.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::{
    net::UdpSocket,
    sync::{Notify, watch},
    time,
};
use tombolo_api::{ClusterId, net::ConnectionStatus};
use tombolo_core::plan::{PROBE_PORT, probe};
use tombolo_runtime::task::Tasks;

use crate::driver::{Error, Result, netns::Netns};

/// Least time between two probes, whatever prompts them.
const GAP: Duration = Duration::from_millis(50);

/// Sends probes to peers and answers theirs, until dropped.
#[derive(Debug)]
pub struct Prober {
    targets: watch::Sender<BTreeMap<ClusterId, IpAddr>>,
    connections: watch::Receiver<BTreeMap<ClusterId, ConnectionStatus>>,
    _tasks: Tasks,
}

impl Prober {
    /// Starts in a network namespace.
    pub fn start(netns: &Netns) -> Result<Self> {
        let server = bind(netns, PROBE_PORT)?;
        let client = bind(netns, 0)?;
        let (targets, aimed) = watch::channel(BTreeMap::new());
        let (found, connections) = watch::channel(BTreeMap::new());
        let mut tasks = Tasks::new();
        let heard = Arc::new(Notify::new());
        tasks.spawn("answers to tunnel probes", answer(server, heard.clone()));
        tasks.spawn("tunnel probes", ask(client, aimed, found, heard));
        Ok(Self { targets, connections, _tasks: tasks })
    }

    /// Says where to send probes to, for each peer.
    pub fn aim(&self, targets: BTreeMap<ClusterId, IpAddr>) {
        self.targets.send_if_modified(|old| {
            let changed = *old != targets;
            *old = targets;
            changed
        });
    }

    /// The state of each tunnel.
    pub fn connections(&self) -> watch::Receiver<BTreeMap<ClusterId, ConnectionStatus>> {
        self.connections.clone()
    }
}

fn bind(netns: &Netns, port: u16) -> Result<UdpSocket> {
    let bound = netns.run(|| -> io::Result<UdpSocket> {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    })?;
    bound.map_err(Error::Socket)
}

async fn answer(socket: UdpSocket, heard: Arc<Notify>) {
    let mut buffer = [0; 64];
    loop {
        let Ok((length, from)) = socket.recv_from(&mut buffer).await else { continue };
        let _ = socket.send_to(&buffer[..length], from).await;
        heard.notify_one();
    }
}

async fn ask(
    socket: UdpSocket,
    mut targets: watch::Receiver<BTreeMap<ClusterId, IpAddr>>,
    found: watch::Sender<BTreeMap<ClusterId, ConnectionStatus>>,
    heard: Arc<Notify>,
) {
    let mut answered = BTreeMap::<IpAddr, Timestamp>::new();
    let mut clock = time::interval(probe::INTERVAL);
    clock.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    let mut buffer = [0; 64];
    let mut sent = Instant::now();
    let is_waiting = || found.borrow().values().any(|it| *it != ConnectionStatus::Connected);
    loop {
        tokio::select! {
            _ = clock.tick() => sent = send(&socket, &targets).await,
            changed = targets.changed() => match changed {
                Ok(()) => sent = send(&socket, &targets).await,
                Err(_) => return,
            },
            // Who reaches us can most likely be reached.
            () = heard.notified() => if is_waiting() && sent.elapsed() >= GAP {
                sent = send(&socket, &targets).await;
            },
            received = socket.recv_from(&mut buffer) => if let Ok((_, from)) = received {
                answered.insert(from.ip(), Timestamp::now());
            },
        }
        let now = Timestamp::now();
        let status = |target| probe::status(answered.get(target).copied(), now);
        let connections: BTreeMap<_, _> =
            targets.borrow().iter().map(|(id, target)| (id.clone(), status(target))).collect();
        found.send_if_modified(|old| {
            let changed = *old != connections;
            *old = connections;
            changed
        });
    }
}

/// Sends a probe to everybody, and says when.
async fn send(
    socket: &UdpSocket,
    targets: &watch::Receiver<BTreeMap<ClusterId, IpAddr>>,
) -> Instant {
    let targets: Vec<_> = targets.borrow().values().copied().collect();
    for target in targets {
        // Lost where there is no way yet; the next one may find it.
        let _ = socket.send_to(b"tombolo", SocketAddr::new(target, PROBE_PORT)).await;
    }
    Instant::now()
}
