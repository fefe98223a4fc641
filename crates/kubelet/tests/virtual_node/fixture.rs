//! Two clusters that have agreed on everything, and rome's virtual node.

use std::{
    net::Ipv4Addr,
    time::{Duration, Instant},
};

use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tombolo_runtime::{events::Events, settings::Settings, shutdown::Shutdown, telemetry};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed, images};

const LIMIT: Duration = Duration::from_secs(90);

pub struct Fixture {
    bed: Testbed,
    pub rome: Cluster,
    pub milan: Cluster,
    pub settings: Settings,
    client: kube::Client,
    kubelet: Option<(Shutdown, JoinHandle<()>)>,
    _control: Shutdown,
}

impl Fixture {
    pub async fn start() -> Self {
        telemetry::init();
        let toolbox = images::toolbox().expect("the toolbox's programs are installed");
        let spec = |name| ClusterSpec::new(name).image(toolbox.clone());
        let bed = Testbed::builder("virtual-node").cluster(spec("rome")).cluster(spec("milan"));
        let bed = bed.start().await.expect("the clusters start");
        let (rome, milan) = (bed.cluster("rome").clone(), bed.cluster("milan").clone());
        for cluster in [&rome, &milan] {
            define(cluster).await;
        }
        let token = be_a_provider(&milan).await;
        let identity = identity(&milan, &token);
        let settings = settings(&rome);
        let client = rome.client().await.expect("a client");
        let control = Shutdown::new();
        let (there, end) = (milan.client().await.expect("a client"), control.clone());
        tokio::spawn(async move {
            let events = Events::new(there.clone(), "liqo-control");
            tombolo_control::shadow_pod::keep_up(there, events, &end).await;
        });
        let mut fixture =
            Self { bed, rome, milan, settings, client, kubelet: None, _control: control };
        fixture.be_a_consumer(&identity).await;
        fixture.start_kubelet();
        fixture
    }

    pub fn start_kubelet(&mut self) {
        let shutdown = Shutdown::new();
        let (client, settings, end) =
            (self.client.clone(), self.settings.clone(), shutdown.clone());
        let task = tokio::spawn(async move {
            tombolo_kubelet::serve(client, settings, end).await.expect("the kubelet starts");
        });
        self.kubelet = Some((shutdown, task));
    }

    pub async fn stop_kubelet(&mut self) {
        if let Some((shutdown, task)) = self.kubelet.take() {
            shutdown.ask();
            task.await.expect("the kubelet ends");
        }
    }

    async fn be_a_consumer(&self, identity: &str) {
        self.rome
            .apply(
                "{apiVersion: v1, kind: Namespace, metadata: {name: liqo-tenant-milan}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}",
            )
            .await
            .expect("the namespaces are made");
        self.write(json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": { "name": "liqo-identity", "namespace": "liqo-tenant-milan" },
            "stringData": { "kubeconfig": identity },
        }))
        .await;
        self.write(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": "milan" },
            "spec": {
                "authUrl": "https://milan.example.com", "join": true,
                "clusterIdentity": { "clusterID": "id-of-milan", "clusterName": "milan" },
            },
        }))
        .await;
        self.write(json!({
            "apiVersion": "net.liqo.io/v1alpha1", "kind": "TunnelEndpoint",
            "metadata": { "name": "milan", "namespace": "liqo-tenant-milan" },
            "spec": {
                "clusterID": "id-of-milan", "podCIDR": "10.244.0.0/16", "externalCIDR": "10.70.0.0/16",
                "endpointIP": "172.30.0.1", "backendType": "wireguard",
                "backend_config": {
                    "port": "51840", "publicKey": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
                },
            },
            "status": {
                "localPodCIDR": "10.244.0.0/16", "localNATPodCIDR": "10.71.0.0/16",
                "localExternalCIDR": "10.70.0.0/16", "localNATExternalCIDR": "10.72.0.0/16",
                "remoteNATPodCIDR": "10.81.0.0/16", "remoteNATExternalCIDR": "10.82.0.0/16",
            },
        }))
        .await;
        self.condition("APIServer", "True").await;
        self.condition("TunnelEndpoint", "True").await;
        self.map(json!({ "shop": "shop-rome" })).await;
        self.write(json!({
            "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer",
            "metadata": {
                "name": "milan", "namespace": "liqo-tenant-milan",
                "labels": { "liqo.io/replicated-from": "id-of-milan" },
            },
            "spec": {
                "clusterID": "id-of-milan",
                "resourceQuota": { "hard": { "cpu": "1.5", "memory": "2048Mi", "pods": "20" } },
            },
        }))
        .await;
        self.phase("Accepted").await;
    }

    /// What rome's controllers say of milan; each condition by a manager of its own.
    pub async fn condition(&self, kind: &str, status: &str) {
        let object = json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": "milan" },
            "status": {
                "tenantNamespace": { "local": "liqo-tenant-milan", "remote": "liqo-tenant-rome" },
                "conditions": [{
                    "type": kind, "status": status, "reason": "Test", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
            },
        });
        self.write_as(&format!("test-{kind}"), object).await;
    }

    /// Which namespaces are wanted in milan; all of them are there.
    pub async fn map(&self, mapping: Value) {
        let there: serde_json::Map<String, Value> = mapping
            .as_object()
            .unwrap()
            .iter()
            .map(|(home, twin)| {
                (home.clone(), json!({ "remoteNamespace": twin, "phase": "Accepted" }))
            })
            .collect();
        self.write(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
            "metadata": {
                "name": "rome", "namespace": "liqo-tenant-milan",
                "labels": { "liqo.io/replicate-to": "id-of-milan" },
            },
            "spec": { "desiredMapping": mapping },
            "status": { "currentMapping": there },
        }))
        .await;
    }

    /// What rome says to the offer.
    pub async fn phase(&self, phase: &str) {
        self.write(json!({
            "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer",
            "metadata": { "name": "milan", "namespace": "liqo-tenant-milan" },
            "status": { "phase": phase },
        }))
        .await;
    }

    async fn write(&self, object: Value) {
        self.write_as("test", object).await;
    }

    /// Applies the spec if there is one, then the status if there is one.
    async fn write_as(&self, manager: &str, mut object: Value) {
        let (group, version) =
            object["apiVersion"].as_str().unwrap().split_once('/').unwrap_or(("", "v1"));
        let kind = GroupVersionKind::gvk(group, version, object["kind"].as_str().unwrap());
        let resource = ApiResource::from_gvk(&kind);
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let params = PatchParams::apply(manager).force();
        let status = object.as_object_mut().unwrap().remove("status");
        if status.is_none() || object.get("spec").is_some() {
            api.patch(&name, &params, &Patch::Apply(&object)).await.expect("it applies");
        }
        if let Some(status) = status {
            object.as_object_mut().unwrap().remove("spec");
            object["metadata"].as_object_mut().unwrap().remove("labels");
            object["status"] = status;
            api.patch_status(&name, &params, &Patch::Apply(&object)).await.expect("it applies");
        }
    }

    pub async fn rome_says(&self, arguments: &[&str], wanted: &str) {
        says(&self.rome, arguments, wanted).await;
    }

    pub async fn milan_says(&self, arguments: &[&str], wanted: &str) {
        says(&self.milan, arguments, wanted).await;
    }

    pub async fn json(&self, cluster: &Cluster, arguments: &[&str]) -> Value {
        let text = cluster.kubectl(&[arguments, &["-o", "json"]].concat()).await;
        serde_json::from_str(&text.expect("kubectl answers")).expect("JSON")
    }

    /// What a shell prints in which kubectl is rome's.
    pub async fn shell(&self, script: &str) -> String {
        let mut command = tokio::process::Command::new("bash");
        command
            .args(["-c", script])
            .env("KUBECONFIG", self.rome.kubeconfig())
            .env("PATH", self.bed.path_with_kubectl());
        let output = command.output().await.expect("bash runs");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!said.is_empty(), "{output:?}");
        said
    }
}

/// Asks until the answer is as wanted; panics with the last answer when it takes too long.
pub async fn eventually<T: std::fmt::Debug>(
    what: &str,
    ask: impl AsyncFn() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let start = Instant::now();
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(start.elapsed() < LIMIT, "{what}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn says(cluster: &Cluster, arguments: &[&str], wanted: &str) {
    let what = format!("{}: kubectl {}", cluster.name(), arguments.join(" "));
    let ask = async || cluster.kubectl(arguments).await.unwrap_or_else(|error| error.to_string());
    eventually(&what, ask, |answer| answer.trim() == wanted).await;
}

async fn define(cluster: &Cluster) {
    let crds = tombolo_api::crds();
    let names: Vec<String> =
        crds.iter().map(|crd| format!("crd/{}", crd.metadata.name.clone().unwrap())).collect();
    for crd in &crds {
        cluster.apply(&serde_json::to_string(crd).unwrap()).await.expect("the CRD applies");
    }
    let mut wait = vec!["wait", "--for=condition=Established", "--timeout=30s"];
    wait.extend(names.iter().map(String::as_str));
    cluster.kubectl(&wait).await.expect("the CRDs are established");
}

/// The tenant namespace, the twin of `shop`, and what rome may do there. Returns rome's token.
async fn be_a_provider(milan: &Cluster) -> String {
    let roles = include_str!("../../../tombolo/manifests/roles.yaml");
    let (_comment, roles) = roles.split_once('\n').expect("a comment of the templates");
    milan.apply(roles).await.expect("the roles are made");
    milan
        .apply(
            "{apiVersion: v1, kind: Namespace, metadata: {name: liqo-tenant-rome}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop-rome}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: rome, namespace: liqo-tenant-rome}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: liqo-twin, namespace: shop-rome}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: liqo-twin}
subjects: [{kind: ServiceAccount, name: rome, namespace: liqo-tenant-rome}]",
        )
        .await
        .expect("the tenant is made");
    let token = milan.kubectl(&["create", "token", "-n", "liqo-tenant-rome", "rome"]).await;
    token.expect("a token").trim().to_owned()
}

fn identity(milan: &Cluster, token: &str) -> String {
    let admin = std::fs::read_to_string(milan.kubeconfig()).expect("milan's kubeconfig");
    let config: Value = serde_saphyr::from_str(&admin).expect("YAML");
    json!({
        "apiVersion": "v1", "kind": "Config",
        "clusters": config["clusters"],
        "users": [{ "name": "rome", "user": { "token": token } }],
        "contexts": [{ "name": "milan", "context": {
            "cluster": "milan", "user": "rome", "namespace": "liqo-tenant-rome",
        } }],
        "current-context": "milan",
    })
    .to_string()
}

fn settings(rome: &Cluster) -> Settings {
    // The machine's own leg in the network of the clusters.
    let [a, b, c, _] = rome.node(1).address().octets();
    Settings {
        cluster_id: "id-of-rome".parse().unwrap(),
        cluster_name: "rome".parse().unwrap(),
        api_server_url: format!("https://{}:6443", rome.node(1).address()),
        pod_cidr: "10.244.0.0/16".parse().unwrap(),
        service_cidr: "10.96.0.0/16".parse().unwrap(),
        pod_name: "kubelet".into(),
        pod_ip: Ipv4Addr::new(a, b, c & !3, 2).into(),
        node_name: String::new(),
        host_ip: rome.node(1).address().into(),
    }
}
