//! The clusters that all tests share: Tombolo installed in both, rome peered with milan, namespace
//! `shop` offloaded, and in it a Deployment and a Service.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed};

use crate::common::load::{Client, clients};
use crate::common::look::Before;
use crate::common::{self, SOON, condition, get, list, name, tombolo, within};

pub const URL: &str = "http://web.shop.svc/cgi-bin/hello";
pub const NODE: &str = "liqo-milan";

const SHOP: &str = include_str!("../../src/playground/shop.yaml");

pub struct Story {
    pub bed: Testbed,
    pub before: Before,
    /// Clients in rome and in milan.
    pub clients: BTreeMap<String, Vec<Client>>,
}

static STORY: Mutex<Option<Story>> = Mutex::const_new(None);

/// The shared clusters, for one test at a time.
pub async fn story() -> MappedMutexGuard<'static, Story> {
    let mut story = STORY.lock().await;
    if story.is_none() {
        *story = Some(start().await);
    }
    let story = MutexGuard::map(story, |story| story.as_mut().expect("it is started"));
    story.settled().await;
    story
}

/// Ends the shared clusters. A later test starts them again.
pub async fn end(last_chapter: impl AsyncFnOnce(&Story)) {
    let mut place = STORY.lock().await;
    let story = match place.take() {
        Some(story) => story,
        None => start().await,
    };
    story.settled().await;
    last_chapter(&story).await;
}

async fn start() -> Story {
    let specs = ["rome", "milan"].map(ClusterSpec::new);
    let bed = common::bed("first-light", specs).start().await.expect("the clusters start");
    let before = Before::of(&bed).await;
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    // Clients of the address service use certificates in one cluster, and none in the other.
    tokio::join!(
        tombolo(rome, &["install", "--empty-token", "--ipam-mtls"]),
        tombolo(milan, &["install", "--empty-token"]),
    );
    let found = async || rome.kubectl(&["get", "foreigncluster", "milan"]).await;
    within(SOON, "rome discovers milan", found, Result::is_ok).await;
    tombolo(rome, &["peer", "milan"]).await;
    let (namespace, application) = SHOP.split_once("---\n").expect("there are several documents");
    rome.apply(namespace).await.expect("the namespace is made");
    tombolo(rome, &["offload", "namespace", "shop", "--same-name"]).await;
    rome.apply(application).await.expect("the application is made");
    rome.deployed("shop", "web").await.expect("the application runs");
    let (in_rome, in_milan) = tokio::join!(clients(rome), clients(milan));
    let clients = BTreeMap::from([("rome".to_owned(), in_rome), ("milan".to_owned(), in_milan)]);
    Story { bed, before, clients }
}

impl Story {
    pub fn rome(&self) -> &Cluster {
        self.bed.cluster("rome")
    }

    pub fn milan(&self) -> &Cluster {
        self.bed.cluster("milan")
    }

    /// All clients of both clusters.
    pub fn everybody(&self) -> impl Iterator<Item = &Client> {
        self.clients.values().flatten()
    }

    /// A client in the pod network of a cluster, on a node without the gateway.
    pub async fn client(&self, cluster: &str) -> &Client {
        let gateway = ["pods", "-n", "liqo", "-l", "app.kubernetes.io/name=liqo-gateway"];
        let gateway = list(self.bed.cluster(cluster), &gateway).await;
        let node = gateway.first().map(|pod| pod["spec"]["nodeName"].clone());
        let all = &self.clients[cluster];
        let elsewhere =
            |client: &&Client| !client.on_host && Some(Value::from(client.node.as_str())) != node;
        all.iter().find(elsewhere).expect("there is a node without the gateway")
    }

    /// The pods of the Deployment, as rome sees them.
    pub async fn pods(&self) -> Vec<Value> {
        let pods = list(self.rome(), &["pods", "-n", "shop", "-l", "app=web"]).await;
        pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect()
    }

    /// Those that run in milan.
    pub async fn offloaded(&self) -> Vec<Value> {
        let pods = self.pods().await;
        pods.into_iter().filter(|pod| pod["spec"]["nodeName"] == NODE).collect()
    }

    /// A pod that runs in milan.
    pub async fn one_offloaded(&self) -> String {
        let pods = self.offloaded().await;
        name(pods.first().expect("a pod runs in milan")).to_owned()
    }

    /// The TunnelEndpoint of a cluster.
    pub async fn tunnel(&self, cluster: &str) -> Value {
        let all = list(self.bed.cluster(cluster), &["tunnelendpoints", "-A"]).await;
        assert_eq!(all.len(), 1, "{all:?}");
        all.into_iter().next().expect("there is one")
    }

    /// Waits until the initial state is restored after the previous test.
    async fn settled(&self) {
        let node = async || condition(&get(self.rome(), &["node", NODE]).await, "Ready").to_owned();
        within(SOON, "liqo-milan is Ready", node, |status| status == "True").await;
        let web = async || get(self.rome(), &["deployment", "-n", "shop", "web"]).await;
        let ready = |web: &Value| web["status"]["readyReplicas"] == web["spec"]["replicas"];
        within(SOON, "all replicas are ready", web, ready).await;
        let tunnels = async || {
            let rome = self.tunnel("rome").await["status"]["connection"]["status"].clone();
            let milan = self.tunnel("milan").await["status"]["connection"]["status"].clone();
            [rome, milan]
        };
        let up = |states: &[Value; 2]| states.iter().all(|state| state == "connected");
        within(Duration::from_secs(30), "the tunnel is up", tunnels, up).await;
    }
}
