//! A cluster that announces itself.

use std::ops::Deref;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;
use serde_json::{Value, json};
use tombolo_api::{config::ClusterConfig, discovery::ForeignCluster};
use tombolo_control::discovery::Servers;
use tombolo_testbed::{Cluster, eventually};

use crate::common::Running;

pub struct Side(tombolo_testing::Side);

impl Deref for Side {
    type Target = tombolo_testing::Side;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Side {
    pub async fn new(cluster: &Cluster) -> Self {
        let mut side = tombolo_testing::Side::new(cluster).await;
        side.settings.host_ip = cluster.node(1).address().into();
        let side = Self(side);
        side.has_certificate(&"0f".repeat(32)).await;
        side
    }

    /// Annotates the Service of the auth service, like the controllers.
    pub async fn has_certificate(&self, fingerprint: &str) {
        let service = json!({
            "metadata": { "annotations": { "discovery.liqo.io/fingerprint": fingerprint } },
            "spec": {
                "type": "NodePort", "ports": [{ "port": 443 }], "ipFamilyPolicy": "PreferDualStack",
            },
        });
        self.put_in::<Service>("liqo", "liqo-auth", service).await;
    }

    pub fn start(&self) -> Running {
        Running::start(self, Servers::ResolvConf)
    }

    pub async fn configure(&self, discovery: Value) {
        self.put::<ClusterConfig>("cluster", json!({ "spec": { "discovery": discovery } })).await;
    }

    pub async fn port(&self) -> i32 {
        let service = self.get_in::<Service>("liqo", "liqo-auth").await.expect("the Service");
        service.spec.expect("a spec").ports.expect("ports")[0].node_port.expect("a node port")
    }

    pub async fn entry(&self, name: &str) -> Option<ForeignCluster> {
        self.get(name).await
    }

    pub async fn finds(&self, name: &str) {
        let what = format!("{} finds {name}", self.settings.cluster_name);
        eventually(&what, async || self.entry(name).await.is_some(), |there| *there).await;
    }

    /// Waits until the entry has expired.
    pub async fn forgets(&self, name: &str) {
        self.until_gone::<ForeignCluster>(name).await;
    }
}

/// Time of the last update of an entry.
pub fn seen(entry: &ForeignCluster) -> Timestamp {
    entry.annotations()["discovery.liqo.io/last-update-time"].parse().expect("a time")
}
