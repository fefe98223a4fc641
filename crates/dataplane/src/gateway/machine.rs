//! A gateway as a function of values: its network namespace, the way there, tunnels, translation
//! and probes. No Kubernetes here.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    path::{Path, PathBuf},
};

use tokio::sync::watch;
use tombolo_api::{ClusterId, net::ConnectionStatus};
use tombolo_core::plan::{
    GATEWAY, GATEWAY_NETNS, HOST, TUNNEL,
    gateway::{self, Inputs},
};

use super::probe::Prober;
use crate::driver::{
    Result, conntrack,
    namespace::{Network, Watch},
    netns::{self, Netns},
    tunnel::{PrivateKey, Tunnels, UserSpace},
};

/// Where a gateway works.
#[derive(Clone, Debug)]
pub struct Place {
    /// The node's network.
    pub host: Netns,
    /// Where the gateway's own network namespace is kept.
    pub path: PathBuf,
}

impl Place {
    /// The node that this process is on.
    pub fn here() -> Result<Self> {
        let path = Path::new(netns::DIRECTORY).join(GATEWAY_NETNS);
        Ok(Self { host: Netns::current()?, path })
    }
}

/// A running gateway.
#[derive(Debug)]
pub struct Machine<T = UserSpace> {
    host: Network,
    inside: Network,
    tunnels: T,
    prober: Prober,
}

impl Machine {
    /// Starts a gateway: in its own network namespace, which it makes or finds, with the tunnels'
    /// socket on the node. What it finds there stays as it is until a plan says otherwise.
    pub async fn start(place: &Place, key: &PrivateKey, port: u16) -> Result<Self> {
        let host = Network::open(place.host.clone())?;
        let inside = Network::open(Netns::open_or_create(&place.path)?)?;
        // The tunnels come first: without them it would be taken for one that was left.
        let tunnels = UserSpace::open(host.netns(), inside.netns(), TUNNEL, key, port).await?;
        host.join(HOST, &inside, GATEWAY).await?;
        let prober = Prober::start(inside.netns())?;
        Ok(Self { host, inside, tunnels, prober })
    }
}

impl<T: Tunnels> Machine<T> {
    /// Makes everything what it should be; says how much had to be changed.
    pub async fn apply(&mut self, inputs: &Inputs) -> Result<usize> {
        let plan = gateway::plan(inputs);
        let mut changed = usize::from(self.host.join(HOST, &self.inside, GATEWAY).await?);
        changed += self.inside.apply(&plan.gateway).await?.changed;
        changed += self.host.apply(&plan.host).await?.changed;
        changed += self.tunnels.apply(&plan.tunnels).await?;
        if changed > 0 {
            conntrack::forget(self.inside.netns(), |it| gateway::is_stale(inputs, it))?;
        }
        let targets =
            inputs.peers.iter().map(|(id, peer)| (id.clone(), peer.networks.peer_gateway_ip().0));
        self.prober.aim(targets.collect());
        Ok(changed)
    }

    /// The state of each tunnel, as probes find it.
    pub fn connections(&self) -> watch::Receiver<BTreeMap<ClusterId, ConnectionStatus>> {
        self.prober.connections()
    }

    /// MTU of the node's own network, found by the node's address.
    pub async fn mtu(&self, node: IpAddr) -> Result<Option<u32>> {
        self.host.mtu_of(node).await
    }

    /// Indexes of the tunnels' interface and of the one that leads from the node to the gateway.
    pub async fn indexes(&self) -> Result<(Option<u32>, Option<u32>)> {
        let tunnel = self.inside.links().await?.get(TUNNEL).map(|found| found.index);
        let host = self.host.links().await?.get(HOST).map(|found| found.index);
        Ok((tunnel, host))
    }

    /// Says when somebody changes the gateway's network, inside or on the node.
    pub fn watch(&self) -> Result<[Watch; 2]> {
        Ok([self.host.watch()?, self.inside.watch()?])
    }

    /// Waits until the tunnels are broken for good.
    pub async fn broken(&mut self) {
        self.tunnels.broken().await;
    }
}

/// Whether there is a gateway without a process.
pub async fn is_left(place: &Place) -> Result<bool> {
    let Some(inside) = Netns::open(&place.path)? else {
        return Ok(Network::open(place.host.clone())?.links().await?.contains_key(HOST));
    };
    let links = Network::open(inside)?.links().await?;
    Ok(links.contains_key(GATEWAY) && !links.get(TUNNEL).is_some_and(|found| found.carrier))
}

/// Removes a gateway from a node: the way to it, and its network namespace.
pub async fn remove(place: &Place) -> Result<()> {
    let host = Network::open(place.host.clone())?;
    let nothing = Inputs { mtu: 0, peers: BTreeMap::new() };
    host.clear(&gateway::plan(&nothing).host.owned).await?;
    Netns::remove(&place.path)
}
