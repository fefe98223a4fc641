//! The gateway as its pod runs it, with a real API server; the clusters that it joins are made of
//! network namespaces. Needs root.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod common;

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use common::{
    Cluster, OVERLAPPING,
    traffic::{self, Open},
    two_clusters,
};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::ResourceExt;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle, time::timeout};
use tombolo_api::{
    config::ClusterConfig,
    names::{GATEWAY_NODE_IP_ANNOTATION, NAMESPACE},
    net::{
        ConnectionStatus::{Connected, Connecting},
        NatMapping, TunnelEndpoint,
    },
};
use tombolo_core::plan::gateway::Peer;
use tombolo_dataplane::gateway::Gateway;
use tombolo_runtime::{settings::Settings, shutdown::Shutdown};
use tombolo_testbed::{ClusterSpec, Testbed};
use tombolo_testing::Side;

const SOON: Duration = Duration::from_secs(10);
const PORT: u16 = 8080;
const THERE: Ipv4Addr = Ipv4Addr::new(10, 62, 2, 5);

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_works_whatever_happens_to_it() {
    let cluster = ClusterSpec::new("a").control_plane_only();
    let bed = Testbed::builder("gateway").cluster(cluster).start().await;
    let bed = bed.expect("the control plane starts");
    let server = Side::new(bed.cluster("a")).await;
    connections_go_on_when_a_gateway_comes_back(&server).await;
    one_whose_name_is_unknown_works(&server).await;
    one_that_fails_gives_the_lease_back(&server).await;
}

/// After it was killed, and after it was told to end.
async fn connections_go_on_when_a_gateway_comes_back(server: &Side) {
    let (_world, mut a, b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    traffic::serve(&b.nodes[1].pod, PORT);
    let pod = Open::connect(&a.nodes[1].pod, THERE, PORT);
    // Both nodes are known as the cluster, so the gateway has to give one another port.
    let first = Open::connect_from(&a.nodes[0].host, 40000, THERE, PORT);
    let second = Open::connect_from(&a.nodes[1].host, 40000, THERE, PORT);
    drop(a.gateway.take());
    timeout(SOON, b.wait_for(Connecting)).await.expect("the loss is noticed");

    knows(server, &a).await;
    let mut all = [("the second node", second), ("the first node", first), ("a pod", pod)];
    for before in ["killed", "told to end"] {
        let gateway = Running::start(server, &a);
        server.until_in(NAMESPACE, "b", is_connected).await;
        timeout(SOON, b.wait_for(Connected)).await.expect("the tunnel works again");
        for (who, open) in &mut all {
            open.say_something().unwrap_or_else(|error| panic!("{before}, {who}: {error}"));
        }
        gateway.end().await;
        timeout(SOON, b.wait_for(Connecting)).await.expect("the loss is noticed");
    }
}

async fn one_whose_name_is_unknown_works(server: &Side) {
    let (_world, mut a, b) = two_clusters(&OVERLAPPING).await;
    drop(a.gateway.take());
    knows(server, &a).await;
    server.delete_in::<Lease>(NAMESPACE, "liqo-gateway").await;
    let network = json!({ "endpoint": "gateway.invalid" });
    server.put::<ClusterConfig>("cluster", json!({ "spec": { "network": network } })).await;
    let gateway = Running::start(server, &a);
    server.until_in(NAMESPACE, "b", is_connected).await;
    let found = |lease: &Lease| lease.annotations().contains_key(GATEWAY_NODE_IP_ANNOTATION);
    server.until_in(NAMESPACE, "liqo-gateway", found).await;
    traffic::serve(&b.nodes[1].pod, PORT);
    traffic::tcp(&a.nodes[1].pod, THERE, PORT, 1).unwrap();
    gateway.end().await;
}

async fn one_that_fails_gives_the_lease_back(server: &Side) {
    let (_world, mut a, _b) = two_clusters(&OVERLAPPING).await;
    drop(a.gateway.take());
    let key = json!({ "data": { "privateKey": "" } });
    server.put_in::<Secret>(NAMESPACE, "liqo-gateway-key", key).await;
    let transitions = |lease: &Lease| {
        lease.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or_default()
    };
    let lease = server.get_in::<Lease>(NAMESPACE, "liqo-gateway").await.expect("the Lease");
    let before = transitions(&lease);
    let gateway = Running::start(server, &a);
    let taken_again = |lease: &Lease| transitions(lease) >= before + 2;
    server.until_in(NAMESPACE, "liqo-gateway", taken_again).await;
    gateway.end().await;
}

/// A gateway at work.
struct Running {
    shutdown: Shutdown,
    task: JoinHandle<()>,
}

impl Running {
    fn start(server: &Side, cluster: &Cluster) -> Self {
        let shutdown = Shutdown::new();
        let address = cluster.nodes[0].address.into();
        let settings = Settings {
            pod_name: "gateway-1".into(),
            pod_ip: address,
            node_name: "node-1".into(),
            host_ip: address,
            ..server.settings.clone()
        };
        let gateway = Gateway::new(server.client.clone(), cluster.place(), settings, &shutdown);
        let task = tokio::spawn(async move { gateway.work(&watch::Sender::default()).await });
        Self { shutdown, task }
    }

    async fn end(self) {
        self.shutdown.trigger();
        self.task.await.expect("it ends");
    }
}

/// What the controllers would have written: the key, the tunnels and the mappings.
async fn knows(server: &Side, cluster: &Cluster) {
    let key = BASE64_STANDARD.encode(cluster.key.expose());
    let secret = json!({ "data": { "privateKey": key } });
    server.put_in::<Secret>(NAMESPACE, "liqo-gateway-key", secret).await;
    server.clear::<TunnelEndpoint>().await;
    server.clear::<NatMapping>().await;
    for (id, peer) in &cluster.peers {
        let endpoint = tunnel_endpoint(id.as_str(), peer);
        let spec = json!({ "spec": endpoint["spec"] });
        server.put_in::<TunnelEndpoint>(NAMESPACE, id.as_str(), spec).await;
        let status = endpoint["status"].clone();
        server.put_status_in::<TunnelEndpoint>(NAMESPACE, id.as_str(), status).await;
        let mappings: BTreeMap<String, String> =
            peer.mappings.iter().map(|(name, own)| (own.to_string(), name.to_string())).collect();
        let spec = json!({ "clusterID": id, "clusterMappings": mappings });
        server.put::<NatMapping>(id.as_str(), json!({ "spec": spec })).await;
    }
}

fn is_connected(endpoint: &TunnelEndpoint) -> bool {
    let connection = endpoint.status.as_ref().and_then(|status| status.connection.as_ref());
    connection.is_some_and(|connection| connection.status == Some(Connected))
}

fn tunnel_endpoint(id: &str, peer: &Peer) -> Value {
    let networks = peer.networks;
    json!({
        "spec": {
            "clusterID": id,
            "podCIDR": networks.remote_pods.real(),
            "externalCIDR": networks.remote_external.real(),
            "endpointIP": peer.endpoint.ip(),
            "backendType": "wireguard",
            "backend_config": {
                "publicKey": BASE64_STANDARD.encode(peer.public_key.0),
                "port": peer.endpoint.port().to_string(),
            },
        },
        "status": {
            "localPodCIDR": networks.local_pods.real(),
            "localNATPodCIDR": networks.local_pods.translated(),
            "remoteNATPodCIDR": networks.remote_pods.translated(),
            "localExternalCIDR": networks.local_external.real(),
            "localNATExternalCIDR": networks.local_external.translated(),
            "remoteNATExternalCIDR": networks.remote_external.translated(),
        },
    })
}
