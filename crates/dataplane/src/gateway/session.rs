//! The time in which a gateway is active: it follows the TunnelEndpoints and NatMappings, and writes
//! back how the tunnels are.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{reflector::Store, watcher},
};
use tokio::{sync::watch, time};
use tombolo_api::{
    ClusterId,
    names::GATEWAY_PORT,
    net::{Connection, ConnectionStatus, NatMapping, TunnelEndpoint, TunnelEndpointStatus},
};
use tombolo_core::plan::{
    HOST, TUNNEL,
    gateway::{Inputs, Peer},
    peers::{NoTunnel, peers},
    probe,
};
use tombolo_runtime::{observe::Observer, settings::Settings, writer};
use tracing::{info, warn};

use super::{
    announce::Announcer,
    key,
    machine::{Machine, Place},
};
use crate::driver::namespace::Watch;

/// Field manager of what the gateway writes.
pub const MANAGER: &str = "liqo-gateway";

/// Time in which changes of the network by others are collected.
const CALM: Duration = Duration::from_millis(100);

/// Time after which something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// An active gateway.
pub struct Session {
    client: Client,
    node: IpAddr,
    machine: Machine,
    connections: watch::Receiver<BTreeMap<ClusterId, ConnectionStatus>>,
    watches: [Watch; 2],
    observer: Observer,
    endpoints: Store<TunnelEndpoint>,
    mappings: Store<NatMapping>,
    announcer: Announcer,
}

impl Session {
    /// Starts the gateway, once it is known what it should be: until then, what one before it left
    /// is right, and connections go on with it.
    pub async fn start(
        settings: &Settings,
        client: &Client,
        place: &Place,
    ) -> anyhow::Result<Self> {
        let key = key::get_or_make(client).await?;
        let mut observer = Observer::new();
        let all = watcher::Config::default;
        let endpoints = observer.watch(Api::all(client.clone()), all());
        let mappings = observer.watch(Api::all(client.clone()), all());
        observer.synced().await;
        let machine = Machine::start(place, &key, GATEWAY_PORT).await?;
        Ok(Self {
            client: client.clone(),
            node: settings.host_ip,
            connections: machine.connections(),
            watches: machine.watch()?,
            machine,
            observer,
            endpoints,
            mappings,
            announcer: Announcer::new(client, settings.host_ip, key.public()),
        })
    }

    /// Works until the tunnels break for good.
    pub async fn work(&mut self) -> anyhow::Result<()> {
        loop {
            let failed = self.step().await.inspect_err(|error| warn!("{error:#}")).is_err();
            let [host, inside] = &mut self.watches;
            tokio::select! {
                () = self.observer.changed() => {}
                _ = self.connections.changed() => {}
                () = host.changed() => self.calm().await,
                () = inside.changed() => self.calm().await,
                () = time::sleep(RETRY), if failed => {}
                () = self.machine.broken() => bail!("the tunnels have failed: restarting them"),
            }
        }
    }

    /// Others change the network in many small steps. What we are told has not to wait for that.
    async fn calm(&mut self) {
        tokio::select! {
            () = self.observer.changed() => {}
            _ = self.connections.changed() => {}
            () = time::sleep(CALM) => {}
        }
    }

    async fn step(&mut self) -> anyhow::Result<()> {
        let found = self.found();
        let peers = found.iter().filter_map(|(endpoint, peer)| {
            Some((endpoint.spec.cluster_id.clone(), peer.as_ref().ok()?.clone()))
        });
        let inputs = Inputs { mtu: mtu(&self.machine, self.node).await?, peers: peers.collect() };
        let changed = self.machine.apply(&inputs).await?;
        self.announcer.start();
        if changed > 0 {
            info!(changed, peers = inputs.peers.len(), "changed the gateway's network");
        }
        let (tunnel, host) = self.machine.indexes().await?;
        for (endpoint, peer) in found {
            let status = TunnelEndpointStatus {
                connection: Some(self.connection(&endpoint, peer.as_ref())),
                gateway_ip: Some(self.node),
                tunnel_iface_index: tunnel,
                tunnel_iface_name: Some(TUNNEL.into()),
                veth_iface_index: host,
                veth_iface_name: Some(HOST.into()),
                ..TunnelEndpointStatus::default()
            };
            self.show(&endpoint, &status).await?;
        }
        Ok(())
    }

    fn found(&self) -> Vec<(Arc<TunnelEndpoint>, Result<Peer, NoTunnel>)> {
        peers(self.endpoints.state(), &self.mappings.state())
    }

    fn connection(&self, endpoint: &TunnelEndpoint, peer: Result<&Peer, &NoTunnel>) -> Connection {
        let (status, message) = match peer {
            Ok(_) => {
                let connections = self.connections.borrow();
                let status = connections.get(&endpoint.spec.cluster_id).copied();
                let status = status.unwrap_or(ConnectionStatus::Connecting);
                (status, probe::message(status).to_owned())
            }
            Err(NoTunnel::Networks) => {
                (ConnectionStatus::Connecting, NoTunnel::Networks.to_string())
            }
            Err(error) => (ConnectionStatus::Error, error.to_string()),
        };
        Connection {
            status: Some(status),
            status_message: Some(message),
            peer_configuration: endpoint.spec.backend_config.clone(),
        }
    }

    async fn show(
        &self,
        endpoint: &TunnelEndpoint,
        status: &TunnelEndpointStatus,
    ) -> anyhow::Result<()> {
        let shown = endpoint.status.clone().unwrap_or_default();
        let ours = TunnelEndpointStatus {
            connection: shown.connection,
            gateway_ip: shown.gateway_ip,
            tunnel_iface_index: shown.tunnel_iface_index,
            tunnel_iface_name: shown.tunnel_iface_name,
            veth_iface_index: shown.veth_iface_index,
            veth_iface_name: shown.veth_iface_name,
            ..TunnelEndpointStatus::default()
        };
        if ours == *status {
            return Ok(());
        }
        let (namespace, name) = (endpoint.namespace().unwrap_or_default(), endpoint.name_any());
        let connection = status.connection.clone().unwrap_or_default();
        let (peer, state) = (&endpoint.spec.cluster_id, connection.status);
        if state == Some(ConnectionStatus::Error) {
            let why = connection.status_message.unwrap_or_default();
            warn!(%peer, ?state, "the tunnel has changed: {why}");
        } else {
            info!(%peer, ?state, "the tunnel has changed");
        }
        let api = Api::<TunnelEndpoint>::namespaced(self.client.clone(), &namespace);
        let applied = writer::apply_status(&api, MANAGER, &name, status).await.map(drop);
        writer::absent_is_fine(applied)
            .with_context(|| format!("apply the status of TunnelEndpoint {namespace}/{name}"))
    }
}

async fn mtu(machine: &Machine, node: IpAddr) -> anyhow::Result<u32> {
    machine.mtu(node).await?.with_context(|| {
        format!("no interface has the node's address {node}: is this pod in the host network?")
    })
}
