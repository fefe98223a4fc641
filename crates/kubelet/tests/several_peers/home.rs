//! The home cluster: its kubelet, the objects of its peerings, and a namespace that is offloaded to
//! all peers.

use std::sync::Arc;

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Node, Pod, Secret, Service, ServiceAccount},
    discovery::v1::EndpointSlice,
    rbac::v1::RoleBinding,
};
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tombolo_api::{
    discovery::ForeignCluster,
    names::{VIRTUAL_NODE_TAINT, tenant_namespace},
    net::TunnelEndpoint,
    sharing::ResourceOffer,
    virtualkubelet::{NamespaceMap, ShadowEndpointSlice},
};
use tombolo_control::testing::{Context, health, shadow_pod};
use tombolo_runtime::{events::Events, shutdown::Shutdown, writer};
use tombolo_testbed::{Cluster, eventually};
use tombolo_testing::{Namespaced, Side, condition};

pub const NAMESPACE: &str = "shop";
pub const TWIN: &str = "shop-rome";

/// Rome and its kubelet.
pub struct Home {
    pub rome: Side,
    shutdown: Shutdown,
    kubelet: JoinHandle<()>,
}

impl Home {
    pub async fn start(rome: &Cluster) -> Self {
        let rome = Side::new(rome).await;
        rome.put::<Namespace>(NAMESPACE, json!({})).await;
        rome.until_in::<ServiceAccount>(NAMESPACE, "default", |_| true).await;
        let shutdown = Shutdown::new();
        let context = Context::new(rome.client.clone(), rome.settings.clone(), shutdown.clone());
        tokio::spawn(health::run(Arc::new(context)));
        let (client, settings, end) =
            (rome.client.clone(), rome.settings.clone(), shutdown.clone());
        let kubelet = tokio::spawn(async move {
            tombolo_kubelet::serve(client, settings, end).await.expect("the kubelet starts");
        });
        Self { rome, shutdown, kubelet }
    }

    pub async fn end(self) {
        self.shutdown.trigger();
        self.kubelet.await.expect("the kubelet ends");
    }

    /// Creates all objects of an established peering.
    pub async fn peers_with(&self, peer: &Side) {
        self.rome.knows(peer).await;
        has_twin(peer, &tenant_namespace(&self.rome.settings.cluster_name)).await;
        let (there, end) = (peer.client.clone(), self.shutdown.clone());
        tokio::spawn(async move {
            let events = Events::new(there.clone(), "liqo-control");
            shadow_pod::keep_up(there, events, &end).await;
        });
        let name = peer.settings.cluster_name.as_str();
        let id = peer.settings.cluster_id.as_str();
        let tenant = tenant_namespace(&peer.settings.cluster_name);
        let connected = json!({ "conditions": [condition("TunnelEndpoint", "True")] });
        let clusters = self.rome.all::<ForeignCluster>();
        let written = writer::apply_status(&clusters, "test-network", name, &connected).await;
        written.expect("a status");
        let (spec, status) = tunnel(id);
        self.rome.put_in::<TunnelEndpoint>(&tenant, name, json!({ "spec": spec })).await;
        self.rome.put_status_in::<TunnelEndpoint>(&tenant, name, status).await;
        let map = json!({
            "metadata": { "labels": { "liqo.io/replicate-to": id } },
            "spec": { "desiredMapping": { NAMESPACE: TWIN } },
        });
        self.rome.put_in::<NamespaceMap>(&tenant, "rome", map).await;
        let there = json!({ "remoteNamespace": TWIN, "phase": "Accepted" });
        let there = json!({ "currentMapping": { NAMESPACE: there } });
        self.rome.put_status_in::<NamespaceMap>(&tenant, "rome", there).await;
        let offer = json!({
            "metadata": { "labels": { "liqo.io/replicated-from": id } },
            "spec": {
                "clusterID": id,
                "resourceQuota": { "hard": { "cpu": "2", "memory": "2Gi", "pods": "20" } },
            },
        });
        self.rome.put_in::<ResourceOffer>(&tenant, name, offer).await;
        let accepted = json!({ "phase": "Accepted" });
        self.rome.put_status_in::<ResourceOffer>(&tenant, name, accepted).await;
    }

    /// Withdraws the offer of a peer.
    pub async fn offer_is_withdrawn_by(&self, peer: &str) {
        let offers = self.rome.within::<ResourceOffer>(&format!("liqo-tenant-{peer}"));
        let patch = json!({ "spec": { "withdrawalTimestamp": "2026-01-01T00:00:00Z" } });
        let patched = offers.patch(peer, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.expect("it can be withdrawn");
    }

    pub async fn is_ready(&self, node: &str, ready: bool) {
        let wanted = if ready { "True" } else { "False" };
        let ask = async || self.ready(node).await.map(|(status, _)| status);
        let is_wanted = |status: &Option<String>| status.as_deref() == Some(wanted);
        eventually(&format!("Ready of {node} is {wanted}"), ask, is_wanted).await;
    }

    /// Last transition time of the condition Ready of a node.
    pub async fn ready_since(&self, node: &str) -> Value {
        self.ready(node).await.expect("a node with a condition").1
    }

    async fn ready(&self, node: &str) -> Option<(String, Value)> {
        let status = self.rome.get::<Node>(node).await?.status?;
        let ready = status.conditions?.into_iter().find(|condition| condition.type_ == "Ready")?;
        Some((ready.status, json!(ready.last_transition_time)))
    }

    /// Creates a pod that is bound to a node.
    pub async fn creates_pod_on(&self, pod: &str, node: &str) {
        let container = json!({ "name": "it", "image": "toolbox" });
        let toleration = json!({ "key": VIRTUAL_NODE_TAINT, "operator": "Exists" });
        let spec = json!({
            "nodeName": node, "containers": [container], "tolerations": [toleration],
        });
        self.rome.put_in::<Pod>(NAMESPACE, pod, json!({ "spec": spec })).await;
    }

    /// Writes an object of each reflected kind with this value.
    pub async fn writes_all_kinds(&self, value: &str) {
        let metadata = json!({ "labels": { "value": value } });
        let map = json!({ "metadata": metadata, "data": { "value": value } });
        self.rome.put_in::<ConfigMap>(NAMESPACE, "web", map).await;
        let secret = json!({ "metadata": metadata, "stringData": { "value": value } });
        self.rome.put_in::<Secret>(NAMESPACE, "web", secret).await;
        let service = json!({ "metadata": metadata, "spec": { "ports": [{ "port": 80 }] } });
        self.rome.put_in::<Service>(NAMESPACE, "web", service).await;
        let slice = json!({
            "metadata": { "labels": { "value": value, "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.244.1.5"], "conditions": { "ready": true } }],
            "ports": [{ "port": 80 }],
        });
        self.rome.put_in::<EndpointSlice>(NAMESPACE, "web-1", slice).await;
    }

    /// Waits until the copies in a peer have this value.
    pub async fn all_kinds_are_in(&self, peer: &Side, value: &str) {
        has_value::<ConfigMap>(peer, "web", value).await;
        has_value::<Secret>(peer, "web", value).await;
        has_value::<Service>(peer, "web", value).await;
        has_value::<ShadowEndpointSlice>(peer, "web-1", value).await;
    }
}

async fn has_value<K: Namespaced>(peer: &Side, name: &str, value: &str) {
    let is_current = |object: &K| object.labels().get("value").is_some_and(|it| it == value);
    peer.until_in::<K>(TWIN, name, is_current).await;
}

/// Creates the twin namespace in a peer, with all rights for the accounts of the tenant namespace.
async fn has_twin(peer: &Side, tenant: &str) {
    peer.put::<Namespace>(TWIN, json!({})).await;
    let role = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
    });
    let subject = json!({
        "apiGroup": "rbac.authorization.k8s.io", "kind": "Group",
        "name": format!("system:serviceaccounts:{tenant}"),
    });
    let binding = json!({ "roleRef": role, "subjects": [subject] });
    peer.put_in::<RoleBinding>(TWIN, "rome", binding).await;
}

/// Spec and status of the TunnelEndpoint of a peer.
fn tunnel(id: &str) -> (Value, Value) {
    let spec = json!({
        "clusterID": id, "podCIDR": "10.244.0.0/16", "externalCIDR": "10.70.0.0/16",
        "endpointIP": "172.30.0.1", "backendType": "wireguard",
        "backend_config": {
            "port": "51840", "publicKey": "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=",
        },
    });
    let status = json!({
        "localPodCIDR": "10.244.0.0/16", "localNATPodCIDR": "10.71.0.0/16",
        "localExternalCIDR": "10.70.0.0/16", "localNATExternalCIDR": "10.72.0.0/16",
        "remoteNATPodCIDR": "10.81.0.0/16", "remoteNATExternalCIDR": "10.82.0.0/16",
    });
    (spec, status)
}
