//! A namespace, its twin, and the reflection between them.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use serde_json::{Value, json};
use tokio::{
    sync::{OnceCell, watch},
    task::JoinHandle,
};
use tombolo_api::{ClusterIdentity, ipam::ipam_client::IpamClient};
use tombolo_core::translate::Networks;
use tombolo_kubelet::{
    peer::Peer,
    reflection::{Homes, run_with},
};
use tombolo_runtime::{remote::Remote, shutdown::Shutdown};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed};
use tombolo_testing::{Namespaced, Side};
use tonic::transport::Channel;

use crate::ipam;

static BED: OnceCell<Testbed> = OnceCell::const_new();

/// A namespace of rome and its twin in milan.
pub struct Shop {
    pub rome: Side,
    pub milan: Side,
    pub cluster: ClusterIdentity,
    pub namespace: String,
    pub twin: String,
    pub namespaces: watch::Sender<BTreeMap<String, String>>,
    pub networks: watch::Sender<Option<Networks>>,
    address_service: Channel,
}

/// A running reflection.
pub struct Reflection {
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Reflection {
    pub async fn end(self) {
        self.shutdown.trigger();
        self.task.await.expect("it ends");
    }
}

impl Shop {
    pub async fn new(namespace: &str) -> Self {
        let bed = BED.get_or_init(start).await;
        let rome = Side::again(bed.cluster("rome")).await;
        let milan = Side::again(bed.cluster("milan")).await;
        let twin = format!("{namespace}-rome");
        rome.put::<Namespace>(namespace, json!({})).await;
        milan.put::<Namespace>(&twin, json!({})).await;
        // A cluster id of its own, so that no test unmaps the endpoints of another one.
        let cluster = ClusterIdentity {
            cluster_id: format!("id-of-{namespace}").parse().expect("an id"),
            cluster_name: milan.settings.cluster_name.clone(),
        };
        let address_service = ipam::client(&rome, &cluster.cluster_id).await;
        let (namespaces, _) = watch::channel([(namespace.to_owned(), twin.clone())].into());
        let (networks, _) = watch::channel(None);
        let namespace = namespace.to_owned();
        Self { rome, milan, cluster, namespace, twin, namespaces, networks, address_service }
    }

    /// The cluster of all twin namespaces.
    pub async fn milan() -> &'static Cluster {
        BED.get_or_init(start).await.cluster("milan")
    }

    /// Starts the reflection.
    pub fn reflect(&self) -> Reflection {
        let shutdown = Shutdown::new();
        let cluster = self.cluster.clone();
        let peer = Peer {
            home: self.rome.client.clone(),
            settings: Arc::new(self.rome.settings.clone()),
            remote: Remote::new(
                self.milan.client.clone(),
                "liqo-tenant-rome".into(),
                cluster.clone(),
                self.milan.settings.api_server_url.clone(),
            ),
            cluster,
            node: "liqo-milan".into(),
            tenant_namespace: "liqo-tenant-milan".into(),
            namespaces: self.namespaces.subscribe(),
            networks: self.networks.subscribe(),
            shutdown: shutdown.clone(),
        };
        let homes = Arc::new(Homes::new(self.rome.client.clone()));
        let running = run_with(Arc::new(peer), homes, self.address_service.clone());
        Reflection { shutdown, task: tokio::spawn(running) }
    }

    /// Rome's address service, for clients other than the kubelet.
    pub fn address_service(&self) -> IpamClient<Channel> {
        IpamClient::new(self.address_service.clone())
    }

    pub fn remote_api<K: Namespaced>(&self) -> Api<K> {
        self.milan.within(&self.twin)
    }

    pub async fn put<K: Namespaced>(&self, name: &str, object: Value) {
        self.rome.put_in::<K>(&self.namespace, name, object).await;
    }

    pub async fn delete<K: Namespaced>(&self, name: &str) {
        self.rome.delete_in::<K>(&self.namespace, name).await;
    }

    pub async fn there<K: Namespaced>(&self, name: &str, is_as_wanted: impl Fn(&K) -> bool) -> K {
        self.milan.until_in(&self.twin, name, is_as_wanted).await
    }

    pub async fn gone<K: Namespaced>(&self, name: &str) {
        self.milan.until_gone_in::<K>(&self.twin, name).await;
    }
}

async fn start() -> Testbed {
    let cluster = |name: &str| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("reflection").cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the control planes start");
    for name in ["rome", "milan"] {
        Side::new(bed.cluster(name)).await;
    }
    bed
}
