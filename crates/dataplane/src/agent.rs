//! The agent: brings its node's network to what the cluster's nodes and peers ask for.

pub mod machine;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, bail};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use kube::{
    Api, Client,
    runtime::{reflector::Store, watcher},
};
use tokio::{sync::watch, time};
use tombolo_api::{
    ClusterId,
    names::{GATEWAY_LEASE, GATEWAY_NODE_IP_ANNOTATION, NAMESPACE, TYPE_LABEL, VIRTUAL_NODE},
    net::TunnelEndpoint,
};
use tombolo_core::{
    plan::agent::{self, Inputs},
    translate::{Mismatch, Networks, PeerNetworks},
};
use tombolo_runtime::{
    client, health,
    observe::{Observer, named},
    settings::Settings,
    shutdown::Shutdown,
};
use tracing::{debug, info, warn};

use self::machine::Machine;
use crate::{gateway::machine::Place, uninstall::Uninstall};

const HEALTH_PORT: u16 = 10283;

/// Time in which changes of the node's network by others are collected.
const CALM: Duration = Duration::from_millis(100);

/// Time after which something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until shutdown. What was made stays: the node's traffic goes on without us.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let IpAddr::V4(node) = settings.host_ip else {
        bail!("the node's address {} is not IPv4: only that is served", settings.host_ip);
    };
    let (ready, is_ready) = watch::channel(false);
    let health = health::start(HEALTH_PORT, is_ready, shutdown.clone());
    let agent = Agent::start(node, &settings.node_name).await?;
    shutdown.or(agent.work(&ready)).await.transpose()?;
    Ok(health.await??)
}

struct Agent {
    node: Ipv4Addr,
    machine: Machine,
    objects: Objects,
    uninstall: Uninstall,
    observer: Observer,
    /// Of the gateway's Lease, which is renewed all the time.
    heartbeat: Observer,
}

impl Agent {
    async fn start(node: Ipv4Addr, name: &str) -> anyhow::Result<Self> {
        let client = client::local().await?;
        let (mut observer, mut heartbeat) = (Observer::new(), Observer::new());
        Ok(Self {
            node,
            machine: Machine::open(Place::here()?)?,
            objects: Objects::follow(&client, &mut observer, &mut heartbeat),
            uninstall: Uninstall::follow(&client, &mut observer, "agent", name),
            observer,
            heartbeat,
        })
    }

    async fn work(&self, ready: &watch::Sender<bool>) -> anyhow::Result<()> {
        self.observer.synced().await;
        self.heartbeat.synced().await;
        let mut network = self.machine.watch()?;
        let mut wrong = BTreeMap::new();
        loop {
            let gateway = self.objects.gateway();
            let retry = match self.step(&mut wrong).await {
                Ok(()) => {
                    ready.send_replace(true);
                    None
                }
                Err(error) => {
                    warn!("can't set up the node's network: {error:#}");
                    Some(RETRY)
                }
            };
            tokio::select! {
                () = self.observer.changed() => {}
                () = self.is_not(gateway) => {}
                () = network.changed() => time::sleep(CALM).await,
                () = after(retry) => {}
            }
        }
    }

    /// Waits until the gateway is elsewhere.
    async fn is_not(&self, gateway: Option<Ipv4Addr>) {
        let heard = async || self.heartbeat.changed().await;
        until_other(&gateway, || self.objects.gateway(), heard).await;
    }

    /// `wrong` is what has been said to be wrong.
    async fn step(&self, wrong: &mut BTreeMap<ClusterId, Mismatch>) -> anyhow::Result<()> {
        if self.uninstall.is_requested() {
            if !self.uninstall.is_reported() {
                self.machine.remove().await?;
                info!("removed everything from the node");
                self.uninstall.report().await.context("report that the node is clean")?;
            }
            return Ok(());
        }
        let mtu = self.machine.mtu(self.node.into()).await?;
        let mtu = mtu.with_context(|| {
            format!(
                "no interface has the node's address {}: is this pod in the host network?",
                self.node
            )
        })?;
        let peers = self.objects.peers();
        for (peer, why) in peers.newly_wrong(wrong) {
            warn!(%peer, "can't route to the peer: {why}");
        }
        *wrong = peers.wrong;
        let report = self.machine.apply(&self.objects.inputs(self.node, mtu, peers.known)).await?;
        if report.changed > 0 {
            info!(changed = report.changed, "changed the node's network");
        }
        if !report.missing.is_empty() {
            debug!(missing = ?report.missing, "waiting for interfaces");
        }
        Ok(())
    }
}

async fn after(delay: Option<Duration>) {
    match delay {
        Some(delay) => time::sleep(delay).await,
        None => std::future::pending().await,
    }
}

/// Waits until what `look` finds is not `before` any more; it looks again whenever `heard` returns.
async fn until_other<T: PartialEq>(before: &T, look: impl Fn() -> T, mut heard: impl AsyncFnMut()) {
    while look() == *before {
        heard().await;
    }
}

struct Objects {
    nodes: Store<Node>,
    endpoints: Store<TunnelEndpoint>,
    leases: Store<Lease>,
}

impl Objects {
    fn follow(client: &Client, observer: &mut Observer, heartbeat: &mut Observer) -> Self {
        let real = watcher::Config::default().labels(&format!("{TYPE_LABEL}!={VIRTUAL_NODE}"));
        let leases = Api::namespaced(client.clone(), NAMESPACE);
        Self {
            nodes: observer.watch(Api::all(client.clone()), real),
            endpoints: observer.watch(Api::all(client.clone()), watcher::Config::default()),
            leases: heartbeat.watch(leases, named(GATEWAY_LEASE)),
        }
    }

    fn peers(&self) -> PeerNetworks {
        PeerNetworks::from_tunnel_endpoints(self.endpoints.state().iter().map(Arc::as_ref))
    }

    fn inputs(&self, node: Ipv4Addr, mtu: u32, peers: BTreeMap<ClusterId, Networks>) -> Inputs {
        let mut nodes: Vec<_> =
            self.nodes.state().iter().filter_map(|node| agent::Node::of(node)).collect();
        nodes.sort_by_key(|node| node.address);
        Inputs { node, mtu, nodes, gateway: self.gateway(), peers }
    }

    /// The Lease knows first where the gateway is.
    fn gateway(&self) -> Option<Ipv4Addr> {
        let lease = self.leases.state().into_iter().find_map(|lease| {
            lease.metadata.annotations.as_ref()?.get(GATEWAY_NODE_IP_ANNOTATION)?.parse().ok()
        });
        lease.or_else(|| {
            let of = |endpoint: &TunnelEndpoint| endpoint.status.as_ref()?.gateway_ip;
            match self.endpoints.state().iter().find_map(|endpoint| of(endpoint))? {
                IpAddr::V4(ip) => Some(ip),
                IpAddr::V6(_) => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_lease_that_is_only_renewed_wakes_nobody() {
        let renewals = Cell::new(0);
        let gateway = || if renewals.get() < 5 { "node-1" } else { "node-2" };
        until_other(&"node-1", gateway, async || renewals.set(renewals.get() + 1)).await;
        assert_eq!(renewals.get(), 5);
        until_other(&"node-1", gateway, async || panic!("it is elsewhere already")).await;
    }
}
