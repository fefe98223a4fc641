//! One cluster of a peering.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tombolo_api::{discovery::ForeignCluster, names::NAMESPACE};
use tombolo_runtime::settings::Settings;
use tombolo_testbed::{Cluster, eventually};

use crate::{define, settings};

/// A cluster with the CRDs and the namespace of Tombolo. The test starts the components.
#[derive(Clone)]
pub struct Side {
    /// Address of its API server.
    pub cluster: Cluster,
    /// Client with all rights.
    pub client: Client,
    /// Settings of its components.
    pub settings: Settings,
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Side").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Side {
    /// Sets up a cluster.
    pub async fn new(cluster: &Cluster) -> Self {
        let side = Self::again(cluster).await;
        define(&side.client).await;
        side.put::<Namespace>(NAMESPACE, json!({})).await;
        side
    }

    /// A cluster that is set up already. Its client belongs to the current runtime.
    pub async fn again(cluster: &Cluster) -> Self {
        Self {
            client: cluster.client().await.expect("a client"),
            settings: settings(cluster.name(), cluster.node(1).address()),
            cluster: cluster.clone(),
        }
    }

    /// Sets `join` of a ForeignCluster.
    pub async fn join(&self, peer: &str, join: bool) {
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let patch = Patch::Merge(json!({ "spec": { "join": join } }));
        clusters.patch(peer, &PatchParams::default(), &patch).await.expect("it can be set");
    }

    /// Waits until a condition of a ForeignCluster has this reason, and returns its message.
    pub async fn says(&self, peer: &str, condition: &str, reason: &str) -> String {
        let ask = async || {
            let status = self.get::<ForeignCluster>(peer).await?.status?;
            let said = status.conditions.into_iter().find(|it| it.type_ == condition)?;
            Some((said.reason, said.message))
        };
        let name = &self.settings.cluster_name;
        let what = format!("{name} says of {peer} that {condition} is {reason}");
        let is_it = |said: &Option<(String, _)>| said.as_ref().is_some_and(|it| it.0 == reason);
        eventually(&what, ask, is_it).await.expect("it was said").1
    }
}
