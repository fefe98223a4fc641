//! The state of a cluster, for `tombolo status`.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use serde::Serialize;
use tombolo_api::discovery::{ForeignCluster, condition as conditions};
use tombolo_api::names;
use tombolo_api::net::TunnelEndpoint;
use tombolo_api::offloading::NamespaceOffloading;
use tombolo_api::sharing::ResourceOffer;
use tombolo_core::node::is_ready;
use tombolo_core::owner::belongs_to;
use tombolo_core::view;

use crate::install::{self, Component};
use crate::peers;
use crate::watching::{condition, is_true};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Settings of the installation.
    pub cluster: BTreeMap<String, String>,
    pub components: Vec<Component>,
    pub peers: Vec<Peer>,
    pub namespaces: Vec<Namespace>,
}

/// Another cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Name of the ForeignCluster.
    pub name: String,
    /// Name of the cluster.
    pub cluster_name: String,
    #[serde(rename = "clusterID")]
    pub cluster_id: Option<String>,
    pub found_by: Option<String>,
    pub auth_url: String,
    pub join: bool,
    pub authentication: String,
    pub authenticated: State,
    pub outgoing: State,
    pub incoming: State,
    pub network: State,
    pub api_server: State,
    pub borrowed: Option<Borrowed>,
    pub lent: Option<Lent>,
}

/// Status and message of a condition.
#[derive(Debug, Default, Serialize)]
pub struct State {
    /// True, False or Unknown.
    pub status: String,
    pub message: String,
}

/// Resources that the peer offers to this cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Borrowed {
    pub node: Option<String>,
    pub ready: bool,
    pub resources: BTreeMap<String, String>,
    pub pods: usize,
}

/// Resources that this cluster offers to the peer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lent {
    pub resources: BTreeMap<String, String>,
    pub pods: usize,
}

/// An offloaded namespace.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Namespace {
    pub name: String,
    pub pods: String,
    pub ready: bool,
    /// Twin namespaces, by cluster.
    pub clusters: BTreeMap<String, String>,
}

struct Objects {
    tunnels: Vec<TunnelEndpoint>,
    offers: Vec<ResourceOffer>,
    nodes: Vec<Node>,
    pods: Vec<Pod>,
}

impl Report {
    pub async fn read(client: &Client) -> Result<Self> {
        let objects = Objects {
            tunnels: all(client, "TunnelEndpoints").await?,
            offers: all(client, "ResourceOffers").await?,
            nodes: all(client, "Nodes").await?,
            pods: all(client, "Pods").await?,
        };
        let settings = install::settings(client).await?.and_then(|map| map.data);
        let clusters = peers::list(client).await?;
        let offloadings: Vec<NamespaceOffloading> = all(client, "NamespaceOffloadings").await?;
        Ok(Self {
            cluster: settings.unwrap_or_default(),
            components: install::components(client).await?,
            namespaces: offloadings.iter().map(|o| namespace(o, &clusters)).collect(),
            peers: clusters.iter().map(|cluster| peer(cluster, &objects)).collect(),
        })
    }
}

async fn all<K>(client: &Client, what: &str) -> Result<Vec<K>>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::all(client.clone());
    let found = api.list(&ListParams::default()).await;
    Ok(found.with_context(|| format!("list the {what}"))?.items)
}

fn peer(cluster: &ForeignCluster, objects: &Objects) -> Peer {
    let status = cluster.status.clone().unwrap_or_default();
    let state = |kind: &str| match condition(&status.conditions, kind) {
        Some(found) => State { status: found.status.clone(), message: found.message.clone() },
        None => State { status: "Unknown".into(), message: String::new() },
    };
    let peer = view::Peer::from_resource(cluster);
    let id = peer.id().cloned();
    let offer = |of: &dyn Fn(&ResourceOffer) -> bool| objects.offers.iter().find(|o| of(o));
    let (borrowed, lent) = match (peer.identity, peer.tenant) {
        (Some(peer), Some(namespace)) => {
            let is_theirs = |o: &ResourceOffer| belongs_to(&o.name_any(), &peer.cluster_name);
            let is_there = |o: &ResourceOffer| o.namespace().as_deref() == Some(namespace);
            (offer(&|o| is_there(o) && is_theirs(o)), offer(&|o| is_there(o) && !is_theirs(o)))
        }
        _ => (None, None),
    };
    let mut network = state(conditions::TUNNEL_ENDPOINT);
    let tunnel = objects.tunnels.iter().find(|t| Some(&t.spec.cluster_id) == id.as_ref());
    if let Some(connection) =
        tunnel.and_then(|t| t.status.as_ref()?.connection.as_ref()?.status_message.clone())
        && network.message.is_empty()
    {
        network.message = connection;
    }
    Peer {
        name: cluster.name_any(),
        cluster_name: peers::display_name(cluster),
        found_by: cluster.labels().get(names::DISCOVERY_TYPE_LABEL).cloned(),
        auth_url: cluster.spec.auth_url.clone(),
        join: cluster.spec.join,
        authentication: status.auth_status.map_or("Pending".into(), |auth| format!("{auth:?}")),
        authenticated: state(conditions::AUTHENTICATED),
        outgoing: state(conditions::OUTGOING_PEERING),
        incoming: state(conditions::INCOMING_PEERING),
        network,
        api_server: state(conditions::API_SERVER),
        borrowed: borrowed.map(|offer| borrowed_as(offer, objects)),
        lent: lent.map(|offer| Lent {
            resources: resources(offer),
            pods: objects.pods.iter().filter(|pod| hosted_for(pod, id.as_ref())).count(),
        }),
        cluster_id: id.map(|id| id.to_string()),
    }
}

fn borrowed_as(offer: &ResourceOffer, objects: &Objects) -> Borrowed {
    let node = offer.status.as_ref().and_then(|status| status.virtual_node.clone());
    let object = objects.nodes.iter().find(|n| Some(n.name_any()) == node);
    let on_it =
        |pod: &&Pod| node.is_some() && pod.spec.as_ref().is_some_and(|s| s.node_name == node);
    Borrowed {
        ready: object.is_some_and(is_ready),
        resources: resources(offer),
        pods: objects.pods.iter().filter(on_it).count(),
        node,
    }
}

fn hosted_for(pod: &Pod, id: Option<&tombolo_api::ClusterId>) -> bool {
    let labels = pod.labels();
    let is = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    is(names::MANAGED_BY_LABEL, names::SHADOW_POD)
        && id.is_some_and(|id| is(names::ORIGIN_LABEL, id.as_str()))
}

fn resources(offer: &ResourceOffer) -> BTreeMap<String, String> {
    let hard = &offer.spec.resource_quota.hard;
    hard.iter().map(|(name, amount)| (name.clone(), amount.0.clone())).collect()
}

fn namespace(object: &NamespaceOffloading, clusters: &[ForeignCluster]) -> Namespace {
    let status = object.status.clone().unwrap_or_default();
    Namespace {
        name: object.namespace().unwrap_or_default(),
        pods: format!("{:?}", object.spec.pod_offloading_strategy),
        ready: is_true(&status.conditions, "Ready"),
        clusters: status
            .clusters
            .iter()
            .map(|c| {
                (
                    peers::name_of(clusters, &c.cluster_id),
                    c.remote_namespace_name.clone().unwrap_or_default(),
                )
            })
            .collect(),
    }
}
