//! Two API servers, the controllers of both clusters, identities made by hand: a peering starts
//! when it is asked for, survives what happens to it, and leaves nothing.

use std::{fmt::Debug, sync::Arc, time::Duration};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, Node, Secret, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tombolo_api::{
    config::ClusterConfig,
    discovery::{ForeignCluster, ResourceRequest},
    names,
    sharing::ResourceOffer,
};
use tombolo_control::{context::Context, health, offer, peering, replicator};
use tombolo_runtime::{
    events::Events, remote::Remotes, settings::Settings, shutdown::Shutdown, writer,
};
use tombolo_testbed::{Cluster, ClusterSpec, Component, Testbed};

#[tokio::test(flavor = "multi_thread")]
async fn a_peering_starts_survives_and_leaves_nothing() {
    let cluster = |name| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("peering").cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the API servers start");
    let rome = Side::new(bed.cluster("rome")).await;
    let milan = Side::new(bed.cluster("milan")).await;
    rome.knows(&milan).await;
    milan.knows(&rome).await;
    let at_rome = rome.start();
    let at_milan = milan.start();

    // Nothing happens before somebody wants it.
    rome.says("milan", "OutgoingPeering", "NotWanted").await;
    rome.says("milan", "APIServer", "Answers").await;

    rome.join("milan", true).await;
    rome.says("milan", "OutgoingPeering", "Established").await;
    milan.says("rome", "IncomingPeering", "Established").await;
    milan.says("rome", "OutgoingPeering", "NotWanted").await;
    let offer = rome.get::<ResourceOffer>("liqo-tenant-milan", "milan").await.expect("an offer");
    assert_eq!(offer.spec.resource_quota.hard["cpu"].0, "600m", "30 % of two cores");

    // Somebody deletes the copy of the request: it comes again, and so does the offer.
    let requests = Api::<ResourceRequest>::namespaced(milan.client.clone(), "liqo-tenant-rome");
    let first = requests.get("rome").await.expect("the copy").uid();
    requests.delete("rome", &DeleteParams::default()).await.expect("it can be deleted");
    let copied_again =
        async || requests.get_opt("rome").await.ok().flatten().map(|copy| copy.uid() != first);
    eventually("another copy", copied_again, |again| *again == Some(true)).await;
    rome.says("milan", "OutgoingPeering", "Established").await;

    // Milan refuses what it had accepted, and thinks better of it.
    milan.answers("rome", "Refused").await;
    rome.says("milan", "OutgoingPeering", "RequestRefused").await;
    milan.says("rome", "IncomingPeering", "Refused").await;
    rome.none::<ResourceOffer>().await;
    milan.none::<ResourceOffer>().await;
    milan.answers("rome", "Accepted").await;
    rome.says("milan", "OutgoingPeering", "Established").await;

    // The controllers end, and others go on.
    at_rome.ask();
    at_milan.ask();
    let at_rome = rome.start();
    let at_milan = milan.start();

    // Milan's API server is silent, then answers again.
    let frozen = bed.cluster("milan").freeze(1, Component::ApiServer).expect("it freezes");
    rome.says("milan", "APIServer", "Unreachable").await;
    drop(frozen);
    rome.says("milan", "APIServer", "Answers").await;

    // Without an identity nobody knows whether it does.
    rome.is_authenticated("milan", false).await;
    rome.says("milan", "APIServer", "NotAuthenticated").await;
    rome.is_authenticated("milan", true).await;
    rome.says("milan", "APIServer", "Answers").await;

    rome.join("milan", false).await;
    rome.says("milan", "OutgoingPeering", "NotWanted").await;
    milan.says("rome", "IncomingPeering", "NotAsked").await;
    for side in [&rome, &milan] {
        side.none::<ResourceRequest>().await;
        side.none::<ResourceOffer>().await;
    }

    // And once more, now that somebody in milan has to accept, until nobody has to.
    milan.accepts_all(false).await;
    rome.join("milan", true).await;
    rome.says("milan", "OutgoingPeering", "RequestPending").await;
    milan.says("rome", "IncomingPeering", "Pending").await;
    milan.accepts_all(true).await;
    rome.says("milan", "OutgoingPeering", "Established").await;
    at_rome.ask();
    at_milan.ask();
}

struct Side {
    client: Client,
    settings: Settings,
}

impl Side {
    async fn new(cluster: &Cluster) -> Self {
        let client = cluster.client().await.expect("a client");
        define(&client).await;
        let settings = Settings {
            cluster_id: format!("id-of-{}", cluster.name()).parse().unwrap(),
            cluster_name: cluster.name().parse().unwrap(),
            api_server_url: format!("https://{}:6443", cluster.node(1).address()),
            pod_cidr: "10.244.0.0/16".parse().unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            pod_name: "control".into(),
            pod_ip: "127.0.0.1".parse().unwrap(),
            node_name: String::new(),
            host_ip: "127.0.0.1".parse().unwrap(),
        };
        let side = Self { client, settings };
        side.make::<Namespace>(json!({ "metadata": { "name": "liqo" } })).await;
        let service = json!({
            "metadata": { "name": "liqo-auth", "namespace": "liqo" },
            "spec": { "type": "NodePort", "ports": [{ "port": 443 }] },
        });
        side.make_in::<k8s_openapi::api::core::v1::Service>("liqo", service).await;
        side.add_node().await;
        side
    }

    /// A node that has two cores and an address; nothing runs on it.
    async fn add_node(&self) {
        self.make::<Node>(json!({ "metadata": { "name": "one" } })).await;
        let status = json!({ "status": {
            "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "110" },
            "addresses": [{ "type": "InternalIP", "address": "192.0.2.1" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        let nodes = Api::<Node>::all(self.client.clone());
        let patch = Patch::Merge(&status);
        nodes.patch_status("one", &PatchParams::default(), &patch).await.expect("a node");
    }

    /// What discovery and authentication would have brought about.
    async fn knows(&self, other: &Side) {
        let peer = &other.settings;
        let (ours, theirs) = (
            names::tenant_namespace(&peer.cluster_name),
            names::tenant_namespace(&self.settings.cluster_name),
        );
        self.make::<Namespace>(json!({ "metadata": { "name": ours } })).await;
        let kubeconfig = other.identity_for(self).await;
        self.make_in::<Secret>(
            &ours,
            json!({
                "metadata": { "name": names::IDENTITY_SECRET },
                "stringData": { "kubeconfig": kubeconfig },
            }),
        )
        .await;
        let identity = json!({ "clusterID": peer.cluster_id, "clusterName": peer.cluster_name });
        self.make::<ForeignCluster>(json!({
            "metadata": { "name": peer.cluster_name },
            "spec": { "authUrl": "https://192.0.2.1:443", "clusterIdentity": identity },
        }))
        .await;
        let status = json!({ "tenantNamespace": { "local": ours, "remote": theirs } });
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        writer::apply_status(&clusters, "test", peer.cluster_name.as_str(), &status)
            .await
            .expect("a status");
        self.is_authenticated(peer.cluster_name.as_str(), true).await;
    }

    async fn is_authenticated(&self, name: &str, is: bool) {
        let status = json!({
            "authStatus": if is { "Accepted" } else { "Refused" },
            "conditions": [{
                "type": "Authenticated", "status": if is { "True" } else { "False" },
                "reason": "Test", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        writer::apply_status(&clusters, "test-auth", name, &status).await.expect("a status");
    }

    async fn identity_for(&self, other: &Side) -> String {
        let namespace = names::tenant_namespace(&other.settings.cluster_name);
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let made = json!({ "metadata": { "name": namespace } });
        let patch = Patch::Apply(
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": made["metadata"] }),
        );
        namespaces.patch(&namespace, &PatchParams::apply("test"), &patch).await.expect("made");
        let account = json!({ "metadata": { "name": "liqo-cluster" } });
        self.make_in::<ServiceAccount>(&namespace, account).await;
        self.make_in::<RoleBinding>(
            &namespace,
            json!({
                "metadata": { "name": "liqo-cluster" },
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "cluster-admin",
                },
                "subjects": [{
                    "kind": "ServiceAccount", "name": "liqo-cluster", "namespace": namespace,
                }],
            }),
        )
        .await;
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace);
        let request = TokenRequest {
            spec: TokenRequestSpec { expiration_seconds: Some(3600), ..Default::default() },
            ..Default::default()
        };
        let token = accounts
            .create_token_request("liqo-cluster", &PostParams::default(), &request)
            .await
            .expect("a token");
        let token = token.status.expect("a token").token;
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{ "name": "it", "cluster": {
                "server": self.settings.api_server_url, "insecure-skip-tls-verify": true,
            } }],
            "users": [{ "name": "it", "user": { "token": token } }],
            "contexts": [{ "name": "it", "context": {
                "cluster": "it", "user": "it", "namespace": namespace,
            } }],
        })
        .to_string()
    }

    fn start(&self) -> Shutdown {
        let shutdown = Shutdown::new();
        let context = Arc::new(Context {
            client: self.client.clone(),
            settings: self.settings.clone(),
            remotes: Remotes::new(self.client.clone()),
            shutdown: shutdown.clone(),
            events: Events::new(self.client.clone(), "test"),
        });
        tokio::spawn(health::run(context.clone()));
        tokio::spawn(offer::run(context.clone()));
        tokio::spawn(peering::run(context.clone()));
        tokio::spawn(replicator::run(context));
        shutdown
    }

    async fn join(&self, name: &str, join: bool) {
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let patch = Patch::Merge(json!({ "spec": { "join": join } }));
        clusters.patch(name, &PatchParams::default(), &patch).await.expect("it can be set");
    }

    async fn accepts_all(&self, all: bool) {
        let config = json!({
            "apiVersion": "config.liqo.io/v1alpha1",
            "kind": "ClusterConfig",
            "metadata": { "name": "cluster" },
            "spec": { "sharing": { "autoAccept": all } },
        });
        let configs = Api::<ClusterConfig>::all(self.client.clone());
        let params = PatchParams::apply("test").force();
        configs.patch("cluster", &params, &Patch::Apply(config)).await.expect("a ClusterConfig");
    }

    /// Somebody answers a request by hand.
    async fn answers(&self, name: &str, state: &str) {
        let namespace = format!("liqo-tenant-{name}");
        let requests = Api::<ResourceRequest>::namespaced(self.client.clone(), &namespace);
        let patch = Patch::Merge(json!({ "status": { "state": state } }));
        requests.patch_status(name, &PatchParams::default(), &patch).await.expect("an answer");
    }

    async fn says(&self, name: &str, type_: &str, reason: &str) {
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let ask = async || {
            let status = clusters.get(name).await.ok()?.status?;
            let found = status.conditions.into_iter().find(|one| one.type_ == type_)?;
            Some((found.reason, found.message))
        };
        let what = format!("{} says of {name} that {type_}", self.settings.cluster_name);
        eventually(&what, ask, |said| said.as_ref().is_some_and(|(said, _)| said == reason)).await;
    }

    async fn get<K>(&self, namespace: &str, name: &str) -> Option<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        Api::<K>::namespaced(self.client.clone(), namespace).get_opt(name).await.expect("an answer")
    }

    async fn none<K>(&self)
    where
        K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api = Api::<K>::all(self.client.clone());
        let ask = async || {
            let list = api.list(&Default::default()).await.expect("a list");
            list.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        };
        eventually(&format!("no {}", K::kind(&())), ask, Vec::is_empty).await;
    }

    async fn make<K>(&self, object: Value)
    where
        K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::Serialize + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).expect("a manifest");
        match Api::<K>::all(self.client.clone()).create(&PostParams::default(), &object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other.expect("it can be made")),
        }
    }

    async fn make_in<K>(&self, namespace: &str, object: Value)
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + Debug
            + serde::Serialize
            + DeserializeOwned,
    {
        let object: K = serde_json::from_value(object).expect("a manifest");
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        api.create(&PostParams::default(), &object).await.expect("it can be made");
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

async fn eventually<T: Debug>(
    what: &str,
    mut ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) {
    let start = std::time::Instant::now();
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{what}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
