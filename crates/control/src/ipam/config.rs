//! The settings of the address service, from the ClusterConfig and the networks of the nodes.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tombolo_api::{
    Cidr,
    config::ClusterConfig,
    names::{CLUSTER_CONFIG, TYPE_LABEL, VIRTUAL_NODE},
};
use tombolo_core::ipam::{Config, node_network, pools};
use tombolo_runtime::{
    observe::{Observer, Watches},
    settings::Settings,
    shutdown::Shutdown,
};

use tracing::warn;

use super::Requests;

/// Reads the current settings.
pub(super) async fn read(client: &Client, settings: &Settings) -> kube::Result<Config> {
    let nodes: Api<Node> = Api::all(client.clone());
    let configs: Api<ClusterConfig> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await?.items;
    let config = configs.get_opt(CLUSTER_CONFIG).await?;
    Ok(combine(settings, nodes.iter().filter(|node| is_real(node)), config.as_ref()))
}

/// Watches the settings and passes changes to the service, until shutdown.
pub(super) async fn follow(
    watches: Watches,
    settings: Settings,
    requests: Requests,
    shutdown: Shutdown,
) {
    let mut observer = Observer::new();
    let (nodes, configs) = (observer.share(watches.of()), observer.share(watches.of()));
    if shutdown.or(observer.synced()).await.is_none() {
        return;
    }
    let mut known = None;
    // Filling the indexes counts as the first change.
    while shutdown.or(observer.changed()).await.is_some() {
        let (nodes, configs) = (nodes.state_filter(is_real), configs.state());
        let config =
            combine(&settings, nodes.iter().map(Arc::as_ref), configs.first().map(Arc::as_ref));
        if known.as_ref() == Some(&config) {
            continue;
        }
        known = Some(config.clone());
        // Settings that could not be stored apply all the same, and are stored with the next write.
        if let Ok(Err(error)) = requests.send(move |state, _| state.configure(config)).await {
            warn!(%error, "can't apply the ClusterConfig to the ExternalCIDR");
        }
        requests.configured.send_replace(());
    }
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
        external_prefix: network.external_prefix_length,
    }
}

fn is_real(node: &Node) -> bool {
    node.labels().get(TYPE_LABEL).is_none_or(|kind| kind != VIRTUAL_NODE)
}

/// The networks of a node's addresses and its PodCIDRs, which may be outside of the cluster's
/// PodCIDR.
fn networks_of(node: &Node) -> impl Iterator<Item = Cidr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let addresses = addresses.filter_map(|address| address.address.parse().ok()).map(node_network);
    let pods = node.spec.iter().flat_map(|spec| spec.pod_cidrs.iter().flatten());
    addresses.chain(pods.filter_map(|cidr| cidr.parse().ok()))
}
