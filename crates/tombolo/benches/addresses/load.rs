//! Clients that ask the address service, each with a connection of its own and one request at a time,
//! as virtual nodes do.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::task::JoinSet;
use tombolo_api::ipam::MapRequest;

use crate::common::control::{Control, PEERS};

/// Endpoints that are no pods: a network for benchmarks.
const ENDPOINTS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);

#[derive(Clone, Copy)]
pub struct Load {
    pub clients: usize,
    /// Requests of each client.
    pub each: usize,
    /// How many peers they ask for, in turn: the clients for one peer ask for the same endpoints as
    /// those for another.
    pub peers: usize,
    /// Where the endpoints begin.
    pub first: usize,
}

/// Maps them all, and says how long that took.
pub async fn map_all(control: &Control, load: Load) -> Result<Duration> {
    let mut clients = Vec::new();
    for _ in 0..load.clients {
        clients.push(control.client().await?);
    }
    let start = Instant::now();
    let mut tasks = JoinSet::new();
    for (n, mut client) in clients.into_iter().enumerate() {
        let cluster_id = PEERS[n % load.peers].0;
        let first = load.first + n / load.peers * load.each;
        tasks.spawn(async move {
            for endpoint in first..first + load.each {
                let ip = u32::from(ENDPOINTS) + u32::try_from(endpoint)?;
                let ip = Ipv4Addr::from(ip).to_string();
                client.map_endpoint_ip(MapRequest { cluster_id: cluster_id.into(), ip }).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(start.elapsed())
}
