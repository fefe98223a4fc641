//! Two peered clusters, and rome's virtual node for milan.

use std::net::Ipv4Addr;

use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tombolo_runtime::{events::Events, settings::Settings, shutdown::Shutdown, telemetry};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed, eventually, images};
use tombolo_testing::{Side, condition};

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
        let (home, remote) = tokio::join!(Side::new(&rome), Side::new(&milan));
        let identity = set_up_provider(&remote).await;
        let (settings, client) = (settings(&home), home.client);
        let control = Shutdown::new();
        let (there, end) = (remote.client, control.clone());
        tokio::spawn(async move {
            let events = Events::new(there.clone(), "liqo-control");
            tombolo_control::testing::shadow_pod::keep_up(there, events, &end).await;
        });
        let mut fixture =
            Self { bed, rome, milan, settings, client, kubelet: None, _control: control };
        fixture.set_up_consumer(&identity).await;
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
            shutdown.trigger();
            task.await.expect("the kubelet ends");
        }
    }

    async fn set_up_consumer(&self, identity: &str) {
        self.rome
            .apply(
                "{apiVersion: v1, kind: Namespace, metadata: {name: liqo-tenant-milan}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}",
            )
            .await
            .expect("the namespaces are created");
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

    /// Sets a condition of rome's ForeignCluster milan, with a field manager per condition.
    pub async fn condition(&self, kind: &str, status: &str) {
        let object = json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": "milan" },
            "status": {
                "tenantNamespace": { "local": "liqo-tenant-milan", "remote": "liqo-tenant-rome" },
                "conditions": [condition(kind, status)],
            },
        });
        self.write_as(&format!("test-{kind}"), object).await;
    }

    /// Sets the NamespaceMap for milan. All its twin namespaces exist.
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

    /// Grants or revokes rome's right to run pods in milan.
    pub async fn is_guest(&self, is_guest: bool) {
        bind(&self.milan, is_guest).await;
    }

    /// Sets the phase of milan's offer in rome.
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
        serde_json::from_str(&text.expect("kubectl works")).expect("JSON")
    }

    /// The output of a shell script with rome's kubectl.
    pub async fn shell(&self, script: &str) -> String {
        let mut command = tokio::process::Command::new("bash");
        command
            .args(["-c", script])
            .env("KUBECONFIG", self.rome.kubeconfig())
            .env("PATH", self.bed.path_with_kubectl());
        let output = command.output().await.expect("bash runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!printed.is_empty(), "{output:?}");
        printed
    }
}

async fn says(cluster: &Cluster, arguments: &[&str], wanted: &str) {
    let what = format!("{}: kubectl {}", cluster.name(), arguments.join(" "));
    let ask = async || cluster.kubectl(arguments).await.unwrap_or_else(|error| error.to_string());
    eventually(&what, ask, |answer| answer.trim() == wanted).await;
}

/// Creates the tenant namespace, the twin of `shop` and rome's rights. Returns rome's identity.
async fn set_up_provider(milan: &Side) -> String {
    let roles = include_str!("../../../tombolo/manifests/roles.yaml");
    let (_comment, roles) = roles.split_once('\n').expect("a comment of the templates");
    milan.cluster.apply(roles).await.expect("the roles are created");
    milan
        .cluster
        .apply(
            "{apiVersion: v1, kind: Namespace, metadata: {name: liqo-tenant-rome}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: shop-rome}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: rome, namespace: liqo-tenant-rome}}
",
        )
        .await
        .expect("the tenant is created");
    bind(&milan.cluster, true).await;
    milan.kubeconfig_of("liqo-tenant-rome", "rome").await
}

/// Binds the roles in the twin as milan's controllers do: one during the peering, the other after
/// its end.
async fn bind(milan: &Cluster, is_guest: bool) {
    for (role, is_bound) in [("liqo-twin", is_guest), ("liqo-twin-ending", !is_guest)] {
        let rome = "{kind: ServiceAccount, name: rome, namespace: liqo-tenant-rome}";
        let subjects = if is_bound { rome } else { "" };
        let binding = format!(
            "apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {{name: {role}, namespace: shop-rome}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {role}}}
subjects: [{subjects}]"
        );
        milan.apply(&binding).await.expect("the role is bound");
    }
}

/// The kubelet runs on this machine, with its address in the network of the clusters.
fn settings(rome: &Side) -> Settings {
    let node = rome.cluster.node(1).address();
    let [a, b, c, _] = node.octets();
    Settings {
        pod_ip: Ipv4Addr::new(a, b, c & !3, 2).into(),
        host_ip: node.into(),
        ..rome.settings.clone()
    }
}
