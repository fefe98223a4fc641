//! Simulated clusters that are only announced in a local network.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use mdns_sd::{IfKind, ServiceDaemon, ServiceInfo};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tombolo_runtime::task::Task;
use tombolo_testbed::Node;

const SERVICE: &str = "_liqo_auth._tcp.local.";
/// TTL of announcements in seconds, and announcements per TTL.
const TTL: u32 = 90;
const TIMES: u32 = 3;
/// In the address range for benchmarks (RFC 2544).
const FIRST: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 0);

/// The announcements end on drop.
pub struct Crowd {
    namespace: String,
    daemon: ServiceDaemon,
    _talk: Task,
}

impl Crowd {
    /// Announces this many clusters in a network of the node. Returns after the first
    /// announcements, so that a new listener has to query.
    pub async fn gather(node: &Node, clusters: u16) -> Result<Self> {
        let namespace = format!("tombolo-crowd-{}", std::process::id());
        let near = node.network_namespace();
        for words in [
            format!("netns add {namespace}"),
            format!("-n {namespace} link add lan0 type veth peer name lan0 netns {near}"),
            format!("-n {namespace} addr add 198.18.0.1/15 dev lan0"),
            format!("-n {namespace} link set lan0 up"),
            format!("-n {near} addr add 198.18.0.2/15 dev lan0"),
            format!("-n {near} link set lan0 up"),
        ] {
            let done = Command::new("ip").args(words.split(' ')).status().context("run ip")?;
            ensure!(done.success(), "ip {words}");
        }
        let network = File::open(format!("/run/netns/{namespace}")).context("open the network")?;
        let within = thread::spawn(move || -> Result<ServiceDaemon> {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
            let daemon = ServiceDaemon::new()?;
            daemon.disable_interface(IfKind::All)?;
            daemon.enable_interface("lan0")?;
            Ok(daemon)
        });
        let daemon = within.join().expect("the thread does not panic").context("speak mDNS")?;
        for number in 0..clusters {
            announce(&daemon, number, 0).await?;
        }
        let talk = Task::spawn("announcements", talk(daemon.clone(), clusters));
        Ok(Self { namespace, daemon, _talk: talk })
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        let _ = self.daemon.shutdown();
        let _ = Command::new("ip").args(["netns", "del", &self.namespace]).status();
    }
}

/// Announces each cluster periodically, at different times.
async fn talk(daemon: ServiceDaemon, clusters: u16) {
    let pause = Duration::from_secs((TTL / TIMES).into()) / u32::from(clusters);
    let mut clock = tokio::time::interval(pause);
    for times in 1.. {
        for number in 0..clusters {
            clock.tick().await;
            if let Err(error) = announce(&daemon, number, times).await {
                return eprintln!("announce a cluster: {error}");
            }
        }
    }
}

async fn announce(daemon: &ServiceDaemon, number: u16, times: u32) -> Result<()> {
    let (id, address) = (format!("crowd-{number}"), u32::from(FIRST) + u32::from(number));
    let properties = [
        ("version", "1".to_owned()),
        ("name", id.clone()),
        ("ttl", TTL.to_string()),
        ("fingerprint", "0f".repeat(32)),
        ("times", times.to_string()),
    ];
    let host = format!("{id}.local.");
    let address = Ipv4Addr::from(address).to_string();
    let mut info = ServiceInfo::new(SERVICE, &id, &host, address, 31443, &properties[..])?;
    info.set_requires_probe(false);
    loop {
        match daemon.register(info.clone()) {
            // Its queue is full.
            Err(mdns_sd::Error::Again) => tokio::time::sleep(Duration::from_millis(1)).await,
            done => return Ok(done?),
        }
    }
}
