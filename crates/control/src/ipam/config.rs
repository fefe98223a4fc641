//! Which networks the address service may use: by the ClusterConfig, and by where the nodes are.

use std::collections::BTreeSet;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};
use tombolo_api::{
    Cidr,
    config::ClusterConfig,
    names::{CLUSTER_CONFIG, TYPE_LABEL, VIRTUAL_NODE},
};
use tombolo_core::ipam::{Config, node_network, pools};
use tombolo_runtime::{controller::Chain, settings::Settings, shutdown::Shutdown};
use tracing::warn;

use super::Ipam;

/// The settings as they are now.
pub(super) async fn read(client: &Client, settings: &Settings) -> kube::Result<Config> {
    let nodes: Api<Node> = Api::all(client.clone());
    let configs: Api<ClusterConfig> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default().labels(&real_nodes())).await?.items;
    let network = configs.get_opt(CLUSTER_CONFIG).await?;
    let network = network.map(|config| config.spec.network).unwrap_or_default();
    let reserved: BTreeSet<Cidr> =
        nodes.iter().flat_map(networks_of).chain(network.reserved_subnets).collect();
    Ok(Config {
        pod_cidr: settings.pod_cidr,
        service_cidr: settings.service_cidr,
        pools: pools(&network.additional_pools),
        reserved: reserved.into_iter().collect(),
    })
}

/// Tells the service whenever they change.
pub(super) async fn follow(client: Client, settings: Settings, ipam: Ipam, shutdown: Shutdown) {
    let nodes =
        watcher(Api::<Node>::all(client.clone()), watcher::Config::default().labels(&real_nodes()))
            .default_backoff()
            .applied_objects()
            .map(|result| result.map(|node| networks_of(&node).collect::<Vec<_>>()));
    let configs = watcher(Api::<ClusterConfig>::all(client.clone()), watcher::Config::default())
        .default_backoff()
        .touched_objects()
        .map(|result| result.map(|_| Vec::new()));
    let changes = futures::stream::select(nodes, configs);
    tokio::pin!(changes);
    let mut known: BTreeSet<Cidr> = BTreeSet::new();
    while let Some(Some(change)) = shutdown.or(changes.next()).await {
        let networks = match change {
            Ok(networks) => networks,
            Err(error) => {
                warn!("nodes or the ClusterConfig can't be watched: {}", Chain(&error));
                continue;
            }
        };
        // Nodes change every few seconds, their addresses hardly ever.
        if !networks.is_empty() && networks.iter().all(|network| known.contains(network)) {
            continue;
        }
        known.extend(networks);
        match read(&client, &settings).await {
            Ok(config) => drop(ipam.ask(move |state| state.configure(config)).await),
            Err(error) => warn!("the settings of the network can't be read: {}", Chain(&error)),
        }
    }
}

fn real_nodes() -> String {
    format!("{TYPE_LABEL}!={VIRTUAL_NODE}")
}

fn networks_of(node: &Node) -> impl Iterator<Item = Cidr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.filter_map(|address| address.address.parse().ok()).map(node_network)
}
