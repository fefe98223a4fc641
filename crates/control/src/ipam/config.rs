//! Which networks the address service may use: by the ClusterConfig, and by where the nodes are.

use std::{collections::BTreeSet, sync::Arc};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::ListParams,
    runtime::{reflector::Store, watcher},
};
use tombolo_api::{
    Cidr,
    config::ClusterConfig,
    names::{CLUSTER_CONFIG, TYPE_LABEL, VIRTUAL_NODE},
};
use tombolo_core::ipam::{Config, node_network, pools};
use tombolo_runtime::{settings::Settings, shutdown::Shutdown};

use super::Ipam;
use crate::cache::{self, Changes};

/// The settings as they are now.
pub(super) async fn read(client: &Client, settings: &Settings) -> kube::Result<Config> {
    let nodes: Api<Node> = Api::all(client.clone());
    let configs: Api<ClusterConfig> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default().labels(&real_nodes())).await?.items;
    let config = configs.get_opt(CLUSTER_CONFIG).await?;
    Ok(combine(settings, nodes.iter(), config.as_ref()))
}

/// Tells the service whenever they change.
pub(super) async fn follow(client: Client, settings: Settings, ipam: Ipam, shutdown: Shutdown) {
    let (changes, mut changed) = Changes::channel();
    let only_real = watcher::Config::default().labels(&real_nodes());
    let nodes = cache::follow(Api::all(client.clone()), only_real, changes.clone(), &shutdown);
    let configs = cache::follow(Api::all(client), watcher::Config::default(), changes, &shutdown);
    if shutdown.or(ready(&nodes, &configs)).await != Some(true) {
        return;
    }
    let mut known = None;
    while let Some(Some(())) = shutdown.or(changed.next()).await {
        let (nodes, configs) = (nodes.state(), configs.state());
        let config =
            combine(&settings, nodes.iter().map(Arc::as_ref), configs.first().map(Arc::as_ref));
        if known.as_ref() == Some(&config) {
            continue;
        }
        known = Some(config.clone());
        // Not stored: it counts all the same, and is stored with what comes next.
        drop(ipam.ask(move |state| state.configure(config)).await);
    }
}

async fn ready(nodes: &Store<Node>, configs: &Store<ClusterConfig>) -> bool {
    nodes.wait_until_ready().await.is_ok() && configs.wait_until_ready().await.is_ok()
}

fn combine<'a>(
    settings: &Settings,
    nodes: impl Iterator<Item = &'a Node>,
    config: Option<&ClusterConfig>,
) -> Config {
    let network = config.map(|config| config.spec.network.clone()).unwrap_or_default();
    let reserved: BTreeSet<Cidr> =
        nodes.flat_map(networks_of).chain(network.reserved_subnets).collect();
    Config {
        pod_cidr: settings.pod_cidr,
        service_cidr: settings.service_cidr,
        pools: pools(&network.additional_pools),
        reserved: reserved.into_iter().collect(),
    }
}

fn real_nodes() -> String {
    format!("{TYPE_LABEL}!={VIRTUAL_NODE}")
}

fn networks_of(node: &Node) -> impl Iterator<Item = Cidr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.filter_map(|address| address.address.parse().ok()).map(node_network)
}
