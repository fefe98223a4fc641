//! Clients of the address service, each with one request at a time.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::runtime;
use tombolo_api::ipam::MapRequest;
use tombolo_api::ipam::ipam_client::IpamClient;
use tombolo_runtime::task::Tasks;

use crate::common::control::{Control, PEERS};

/// Non-pod endpoints, in the address range for benchmarks (RFC 2544).
const ENDPOINTS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

#[derive(Clone, Copy)]
pub struct Load {
    pub clients: usize,
    /// Number of shared connections: one, like the virtual nodes of a cluster in one process, or
    /// one per client.
    pub connections: usize,
    /// Average requests per client: a client takes the next request after each answer, so that all
    /// are busy until the end.
    pub each: usize,
    /// Number of endpoints that are mapped already.
    pub after: usize,
}

/// Times of the answers.
pub struct Moments {
    start: Instant,
    all: Vec<Instant>,
}

impl Moments {
    /// Until the last answer.
    pub fn took(&self) -> Duration {
        self.all[self.all.len() - 1] - self.start
    }

    /// Duration of each group of `every` answers.
    pub fn steps(&self, every: usize) -> Vec<Duration> {
        let ends = self.all.iter().skip(every - 1).step_by(every);
        let begins = std::iter::once(&self.start).chain(ends.clone());
        ends.zip(begins).map(|(end, begin)| *end - *begin).collect()
    }
}

/// Maps all endpoints. The clients share one thread, to leave the CPU to the service.
pub async fn map_all(control: &Control, load: Load) -> Result<Moments> {
    let address = control.address;
    let clients = move || {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(ask_for_all(address, load))
    };
    tokio::task::spawn_blocking(clients).await?
}

async fn ask_for_all(address: SocketAddr, load: Load) -> Result<Moments> {
    let mut connections = Vec::new();
    for _ in 0..load.connections {
        connections.push(IpamClient::connect(format!("http://{address}")).await?);
    }
    let clients = connections.iter().cycle().take(load.clients).cloned();
    let next = Arc::new(AtomicUsize::new(load.after));
    let end = load.after + load.clients * load.each;
    let start = Instant::now();
    let mut tasks = Tasks::new();
    for mut client in clients {
        let cluster_id = PEERS[0].0;
        let next = next.clone();
        tasks.spawn("client", async move {
            let mut answered = Vec::with_capacity(load.each);
            loop {
                let endpoint = next.fetch_add(1, Ordering::Relaxed);
                if endpoint >= end {
                    return anyhow::Ok(answered);
                }
                let ip = u32::from(ENDPOINTS) + u32::try_from(endpoint)?;
                let ip = Ipv4Addr::from(ip).to_string();
                client
                    .map_endpoint_ip(MapRequest { cluster_id: cluster_id.into(), ip, owner: None })
                    .await?;
                answered.push(Instant::now());
            }
        });
    }
    let mut all = Vec::new();
    while let Some(answered) = tasks.join_next().await {
        all.extend(answered??);
    }
    all.sort();
    Ok(Moments { start, all })
}
