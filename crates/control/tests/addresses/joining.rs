//! Two clusters join their networks and separate them again.

use std::{net::IpAddr, time::Instant};

use kube::api::ListParams;
use serde_json::json;
use tombolo_api::{
    discovery::{ForeignCluster, ResourceRequest},
    names,
    net::{IpamStorage, NetworkConfig, TunnelEndpoint},
};
use tombolo_core::translate::{Networks, overlap};
use tombolo_testbed::eventually;

use crate::side::Side;

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_with_the_same_cidrs_join_and_separate() {
    let (rome, _alone) = Side::alone("rome").await;
    let milan = Side::of("milan").await;
    rome.knows(&milan).await;
    milan.knows(&rome).await;
    let (ipam, at_rome) = rome.start().await;
    let (_, at_milan) = milan.start().await;

    // Rome wants a peering; there is no gateway yet.
    let identity = json!({ "clusterID": "id-of-rome", "clusterName": "rome" });
    let spec = json!({ "clusterIdentity": identity, "authUrl": "https://192.0.2.1" });
    let labels = json!({ names::REPLICATE_TO_LABEL: "id-of-milan" });
    let wanted = json!({ "metadata": { "labels": labels }, "spec": spec });
    rome.put_in::<ResourceRequest>("liqo-tenant-milan", "rome", wanted).await;
    rome.says("milan", "TunnelEndpoint", "WaitingForGateway").await;
    rome.gateway("192.0.2.1").await;
    milan.gateway("192.0.2.2").await;
    rome.says("milan", "TunnelEndpoint", "WaitingForAcceptance").await;

    // Rome's replicator copies the request; milan accepts it.
    milan.until_in::<ResourceRequest>("liqo-tenant-rome", "rome", |_| true).await;
    let accepted = json!({ "state": "Accepted" });
    milan.put_status_in::<ResourceRequest>("liqo-tenant-rome", "rome", accepted).await;

    let start = Instant::now();
    let known =
        |endpoint: &TunnelEndpoint| Networks::from_tunnel_endpoint(endpoint).unwrap().is_some();
    let from_rome = rome.until_in::<TunnelEndpoint>("liqo-tenant-milan", "milan", known).await;
    let from_milan = milan.until_in::<TunnelEndpoint>("liqo-tenant-rome", "rome", known).await;
    println!("accepted → both tunnel endpoints: {:?}", start.elapsed());
    assert_eq!(from_rome.spec.endpoint_ip.to_string(), "192.0.2.2");
    assert_eq!(from_milan.spec.endpoint_ip.to_string(), "192.0.2.1");

    // Both clusters agree on the translations.
    let here = Networks::from_tunnel_endpoint(&from_rome).unwrap().unwrap();
    let there = Networks::from_tunnel_endpoint(&from_milan).unwrap().unwrap();
    assert_eq!(here.local_pods.real(), there.local_pods.real(), "both have the same PodCIDR");
    assert_eq!(here.remote_pods, there.local_pods);
    assert_eq!(here.remote_external, there.local_external);
    assert_eq!(here.local_pods, there.remote_pods);
    assert_eq!(here.peer_gateway_ip(), there.local_gateway_ip_at_peer());
    assert!(!overlap(here.remote_pods.translated(), here.local_pods.real()));

    rome.says("milan", "TunnelEndpoint", "WaitingForGateway").await;
    let connection = json!({ "connection": { "status": "connected" } });
    rome.put_status_in::<TunnelEndpoint>("liqo-tenant-milan", "milan", connection).await;
    rome.says("milan", "TunnelEndpoint", "Connected").await;
    let cluster = rome.get::<ForeignCluster>("milan").await.unwrap();
    let network = cluster.status.unwrap().network.unwrap();
    assert!(network.tunnel_endpoint.unwrap().available);
    assert!(network.local_network_config.unwrap().available);
    assert!(network.remote_network_config.unwrap().available);

    // The gateway moves.
    rome.gateway("192.0.2.11").await;
    milan
        .until_in::<TunnelEndpoint>("liqo-tenant-rome", "rome", |endpoint| {
            endpoint.spec.endpoint_ip == IpAddr::from([192, 0, 2, 11])
        })
        .await;

    // The peering ends, and nothing is left.
    rome.delete_in::<ResourceRequest>("liqo-tenant-milan", "rome").await;
    for side in [&rome, &milan] {
        side.none::<NetworkConfig>().await;
        side.none::<TunnelEndpoint>().await;
    }
    rome.says("milan", "TunnelEndpoint", "NoPeering").await;
    let freed = async || {
        let storages = rome.all::<IpamStorage>().list(&ListParams::default()).await.unwrap();
        storages.iter().filter(|storage| !storage.spec.cluster_subnets.is_empty()).count()
    };
    eventually("no networks of peers", freed, |count| *count == 0).await;
    drop(ipam);
    at_rome.trigger();
    at_milan.trigger();
}
