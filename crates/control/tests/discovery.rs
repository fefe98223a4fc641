//! Two clusters on one network find each other by mDNS, as far as they are of one group, and
//! forget each other when they are gone. Each discovery runs in the network of its node.

use std::{
    fmt::Debug,
    fs::File,
    os::fd::AsFd,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};
use tokio::sync::watch;
use tombolo_api::{config::ClusterConfig, discovery::ForeignCluster};
use tombolo_control::discovery;
use tombolo_runtime::{settings::Settings, shutdown::Shutdown};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed};

#[tokio::test(flavor = "multi_thread")]
async fn clusters_find_and_forget_each_other() {
    let cluster = |name| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("discovery").cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the API servers start");
    let rome = Side::new(bed.cluster("rome")).await;
    let milan = Side::new(bed.cluster("milan")).await;
    rome.configure(json!({ "ttlSeconds": 3 })).await;
    milan.configure(json!({ "ttlSeconds": 3 })).await;

    // They find each other, and nobody itself.
    let at_rome = rome.start();
    let start = Instant::now();
    let at_milan = milan.start();
    rome.finds("milan").await;
    println!("found {} ms after its start", start.elapsed().as_millis());
    milan.finds("rome").await;
    let entry = rome.entry("milan").await.expect("it was found");
    let port = milan.port().await;
    assert_eq!(entry.spec.auth_url, format!("https://{}:{port}", milan.cluster.node(1).address()));
    assert_eq!(entry.spec.ttl, Some(3));
    assert_eq!(entry.spec.fingerprint.expect("a fingerprint").to_string(), "0f".repeat(32));
    assert!(!entry.spec.join);
    assert_eq!(entry.labels()["discovery.liqo.io/discovery-type"], "LAN");
    assert!(rome.entry("rome").await.is_none() && milan.entry("milan").await.is_none());

    // A live entry stays, and is seen anew again and again; what people set in it stays too.
    let (uid, first) = (entry.uid(), seen(&entry));
    rome.join("milan", true).await;
    let later = async || rome.entry("milan").await.map(|entry| seen(&entry));
    eventually("it is seen anew", later, |time| time.as_ref().is_some_and(|time| *time > first))
        .await;
    let entry = rome.entry("milan").await.expect("it is there");
    assert!(entry.uid() == uid && entry.spec.join);

    // Milan goes. Whom rome peers with stays; without a peering the entry goes.
    at_milan.stop();
    milan.forgets("rome", false).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(rome.entry("milan").await.is_some(), "there is a peering");
    rome.join("milan", false).await;
    rome.forgets("milan", true).await;

    // In different groups they do not find each other, in the same one they do.
    milan.configure(json!({ "ttlSeconds": 3, "group": "campus" })).await;
    let at_milan = milan.start();
    milan.forgets("rome", true).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(rome.entry("milan").await.is_none() && milan.entry("rome").await.is_none());
    rome.configure(json!({ "ttlSeconds": 3, "group": "campus" })).await;
    rome.finds("milan").await;
    milan.finds("rome").await;

    // Milan hides.
    milan.configure(json!({ "ttlSeconds": 3, "group": "campus", "advertise": false })).await;
    rome.forgets("milan", true).await;
    assert!(milan.entry("rome").await.is_some());
    at_milan.stop();
    at_rome.stop();
}

struct Side {
    cluster: Cluster,
    client: Client,
    settings: Settings,
}

/// A discovery that runs.
struct Running {
    shutdown: Shutdown,
    thread: JoinHandle<()>,
}

impl Running {
    fn stop(self) {
        self.shutdown.ask();
        self.thread.join().expect("it ends well");
    }
}

impl Side {
    async fn new(cluster: &Cluster) -> Self {
        let client = cluster.client().await.expect("a client");
        define(&client).await;
        let namespaces = Api::<Namespace>::all(client.clone());
        let namespace = serde_json::from_value(json!({ "metadata": { "name": "liqo" } })).unwrap();
        namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace");
        let services = Api::<Service>::namespaced(client.clone(), "liqo");
        let service = serde_json::from_value(json!({
            "metadata": {
                "name": "liqo-auth",
                "annotations": { "discovery.liqo.io/fingerprint": "0f".repeat(32) },
            },
            "spec": { "type": "NodePort", "ports": [{ "port": 443 }] },
        }));
        services.create(&PostParams::default(), &service.unwrap()).await.expect("a Service");
        let settings = Settings {
            cluster_id: format!("id-of-{}", cluster.name()).parse().unwrap(),
            cluster_name: cluster.name().parse().unwrap(),
            api_server_url: format!("https://{}:6443", cluster.node(1).address()),
            pod_cidr: "10.244.0.0/16".parse().unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            pod_name: "discovery".into(),
            pod_ip: "127.0.0.1".parse().unwrap(),
            node_name: String::new(),
            host_ip: cluster.node(1).address().into(),
        };
        Self { cluster: cluster.clone(), client, settings }
    }

    /// In a thread of its own, in the network namespace of the node.
    fn start(&self) -> Running {
        let shutdown = Shutdown::new();
        let (cluster, settings, until) =
            (self.cluster.clone(), self.settings.clone(), shutdown.clone());
        let network = format!("/run/netns/{}", cluster.node(1).network_namespace());
        let thread = thread::spawn(move || {
            let network = File::open(network).expect("the node's network");
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(network.as_fd(), kind).expect("into the network");
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = cluster.client().await.expect("a client");
                let (ready, _) = watch::channel(false);
                discovery::serve(client, settings, ready, until).await.expect("it runs");
            });
        });
        Running { shutdown, thread }
    }

    async fn configure(&self, discovery: Value) {
        let config = json!({
            "apiVersion": "config.liqo.io/v1alpha1",
            "kind": "ClusterConfig",
            "metadata": { "name": "cluster" },
            "spec": { "discovery": discovery },
        });
        let configs = Api::<ClusterConfig>::all(self.client.clone());
        let params = PatchParams::apply("test").force();
        configs.patch("cluster", &params, &Patch::Apply(config)).await.expect("a ClusterConfig");
    }

    async fn join(&self, name: &str, join: bool) {
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let patch = Patch::Merge(json!({ "spec": { "join": join } }));
        clusters.patch(name, &PatchParams::default(), &patch).await.expect("it can be set");
    }

    async fn port(&self) -> i32 {
        let services = Api::<Service>::namespaced(self.client.clone(), "liqo");
        let spec = services.get("liqo-auth").await.expect("the Service").spec.expect("a spec");
        spec.ports.expect("ports")[0].node_port.expect("a node port")
    }

    async fn entry(&self, name: &str) -> Option<ForeignCluster> {
        Api::all(self.client.clone()).get_opt(name).await.expect("an answer")
    }

    async fn finds(&self, name: &str) {
        let what = format!("{} finds {name}", self.settings.cluster_name);
        eventually(&what, async || self.entry(name).await.is_some(), |there| *there).await;
    }

    /// Waits until the entry is gone; with nobody there to collect it, deletes it.
    async fn forgets(&self, name: &str, by_itself: bool) {
        if !by_itself {
            let clusters = Api::<ForeignCluster>::all(self.client.clone());
            let _ = clusters.delete(name, &Default::default()).await;
        }
        let what = format!("{} forgets {name}", self.settings.cluster_name);
        eventually(&what, async || self.entry(name).await.is_none(), |gone| *gone).await;
    }
}

fn seen(entry: &ForeignCluster) -> String {
    entry.annotations()["discovery.liqo.io/last-update-time"].clone()
}

async fn eventually<T: Debug>(
    what: &str,
    mut ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) {
    let start = Instant::now();
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn define(client: &Client) {
    let definitions = Api::all(client.clone());
    for definition in tombolo_api::crds() {
        let name = definition.name_any();
        definitions.create(&PostParams::default(), &definition).await.expect("it is valid");
        let established = kube::runtime::conditions::is_crd_established();
        kube::runtime::wait::await_condition(definitions.clone(), &name, established)
            .await
            .expect("it is established");
    }
}
