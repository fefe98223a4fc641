//! Two clusters, one of which discovers the other repeatedly.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;
use tombolo_api::config::ClusterConfig;
use tombolo_api::discovery::{AuthStatus, ForeignCluster};
use tombolo_api::names::{AUTH_NAMESPACE, CLUSTER_SETTINGS, COMPONENT_LABEL, NAMESPACE};
use tombolo_testbed::{Cluster, Node};

use crate::common::{SOON, within};
use crate::figures::milliseconds;
use crate::moments::{Moments, Step};
use crate::packets::Packets;
use crate::round_trip;
use crate::scraped::Scraped;
use crate::steps::Run;

const KNOWN: Step = "identity at the other";

/// TTLs of announcements in seconds: long where they must not expire, otherwise short.
const LONG: u32 = 300;
const SHORT: u32 = 2;

/// How long after the deletion of a namespace the API server checks for it before each write to a
/// namespace of the same name. Clusters that peer for the first time have no such delay.
const NAMESPACE_CHECK: Duration = Duration::from_secs(30);

pub struct Pair {
    rome: Client,
    milan: Client,
    /// Client of rome.
    id: String,
    packets: Packets,
}

impl Pair {
    /// Rome discovers milan, which is announced from time to time and does not discover.
    pub async fn new(rome: &Cluster, milan: &Cluster) -> Result<Self> {
        let (at_rome, at_milan) = (rome.client().await?, milan.client().await?);
        let milan_id = id(&at_milan).await?;
        // Not the node of discovery, so that unicast packets reach the right socket.
        let pods = Api::<Pod>::namespaced(at_rome.clone(), NAMESPACE);
        let only = ListParams::default().labels(&format!("{COMPONENT_LABEL}=liqo-discovery"));
        let pod = pods.list(&only).await?.items.into_iter().next();
        let busy = pod.and_then(|pod| pod.spec?.node_name).context("discovery runs nowhere")?;
        let node = rome.nodes().iter().find(|node| node.name() != busy).context("one node only")?;
        let from = milan.nodes().iter().map(Node::address).collect();
        let packets = Packets::listen(node, from, &milan_id)?;
        let pair = Self { id: id(&at_rome).await?, rome: at_rome, milan: at_milan, packets };
        configure(&pair.rome, json!({ "advertise": false, "enabled": true })).await?;
        // Entries from the installation.
        forget(&pair.milan).await?;
        pair.forgets_all().await?;
        Ok(pair)
    }

    pub async fn meets_for_the_first_time(&self) -> Result<Run> {
        let run = self.meets(LONG).await?;
        if run.steps[3].is_none() {
            bail!("there was an identity already: {run:?}");
        }
        Ok(run)
    }

    /// Stops the announcement of milan until its entry has expired in rome, then announces it
    /// again.
    pub async fn meets_again(&self) -> Result<Run> {
        self.shows(true, SHORT).await?;
        let clusters = Api::<ForeignCluster>::all(self.rome.clone());
        let ttl = async || {
            let entry = clusters.get_opt("milan").await.expect("an answer");
            entry.and_then(|entry| entry.spec.ttl)
        };
        within(SOON, "rome knows how long it holds", ttl, |ttl| *ttl == Some(SHORT)).await;
        self.hides(SHORT).await?;
        gone(&clusters, "milan").await;
        let run = self.meets(SHORT).await?;
        if run.steps[3].is_some() {
            bail!("another identity was asked for: {run:?}");
        }
        Ok(run)
    }

    /// Restores the state before the first discovery.
    pub async fn forgets_all(&self) -> Result<()> {
        self.hides(LONG).await?;
        forget(&self.rome).await?;
        gone(&Api::<Namespace>::all(self.rome.clone()), "liqo-tenant-milan").await;
        let records = Api::<Secret>::namespaced(self.milan.clone(), AUTH_NAMESPACE);
        gone(&records, &format!("identity-{}", self.id)).await;
        gone(&Api::<Namespace>::all(self.milan.clone()), "liqo-tenant-rome").await;
        tokio::time::sleep(NAMESPACE_CHECK).await;
        Ok(())
    }

    /// Stops the announcement of milan, and waits until rome has received the goodbye.
    async fn hides(&self, ttl: u32) -> Result<()> {
        self.shows(false, ttl).await?;
        let heard = async || Scraped::of(&self.rome).await.expect("figures").neighbours();
        within(SOON, "milan is not announced any more", heard, |count| *count == 0.0).await;
        Ok(())
    }

    async fn meets(&self, ttl: u32) -> Result<Run> {
        let mut moments = Moments::new();
        moments.watch(Api::<ForeignCluster>::all(self.rome.clone()), |cluster| {
            let status = cluster.status.as_ref().and_then(|status| status.auth_status);
            if status == Some(AuthStatus::Accepted) { vec![KNOWN] } else { Vec::new() }
        });
        moments.begun().await?;
        let write = round_trip::of_a_write(&self.rome).await?;
        let before = Scraped::of(&self.rome).await?;
        self.packets.forget();
        self.shows(true, ttl).await?;
        let seen = moments.of(&[KNOWN]).await?;
        let packet = self.packets.next()?;
        let after = Scraped::of(&self.rome).await?;
        let run = Run::of(&before, &after, milliseconds(seen[KNOWN] - packet), write);
        eprintln!("{run:.1?}");
        Ok(run)
    }

    async fn shows(&self, itself: bool, ttl: u32) -> Result<()> {
        let discovery = json!({ "advertise": itself, "enabled": false, "ttlSeconds": ttl });
        configure(&self.milan, discovery).await
    }
}

async fn configure(client: &Client, discovery: serde_json::Value) -> Result<()> {
    let configs = Api::<ClusterConfig>::all(client.clone());
    let patch = Patch::Merge(json!({ "spec": { "discovery": discovery } }));
    configs.patch("cluster", &PatchParams::default(), &patch).await?;
    Ok(())
}

async fn id(client: &Client) -> Result<String> {
    let maps = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
    let mut data = maps.get(CLUSTER_SETTINGS).await?.data.unwrap_or_default();
    data.remove("CLUSTER_ID").context("the cluster has no id")
}

/// Deletes all ForeignClusters.
async fn forget(client: &Client) -> Result<()> {
    let clusters = Api::<ForeignCluster>::all(client.clone());
    clusters.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    let count = async || clusters.list(&ListParams::default()).await.expect("a list").items.len();
    within(SOON, "no ForeignCluster is left", count, |count| *count == 0).await;
    Ok(())
}

async fn gone<K>(api: &Api<K>, name: &str)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let there = async || api.get_metadata_opt(name).await.expect("an answer").is_some();
    let what = format!("{} {name} is gone", K::kind(&()));
    within(Duration::from_secs(90), &what, there, |there| !there).await;
}
