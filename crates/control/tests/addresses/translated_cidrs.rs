//! The choice of translated CIDRs.

use k8s_openapi::api::core::v1::Node;
use serde_json::json;
use tombolo_api::{
    Cidr, ClusterId, NatCidr, config::ClusterConfig, ipam::MapRequest, names, net::NetworkConfig,
};
use tombolo_core::translate::overlap;
use tombolo_testbed::eventually;
use tonic::Code;

use crate::side::{Side, cidr};

#[tokio::test(flavor = "multi_thread")]
async fn networks_of_nodes_and_reserved_cidrs_are_not_allocated() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, _, service) = rome.serve().await;
    // Always the same peer: for another one the CIDR would be quarantined.
    let peer: ClusterId = "id-of-turin".parse().unwrap();
    let is_kept = async |wanted: &str| {
        let peer = peer.clone();
        let subnets = ipam.reserve(peer.clone(), cidr(wanted), cidr("10.21.0.0/16")).await.unwrap();
        ipam.release(peer).await.unwrap();
        subnets.remote_nat_pod_cidr == NatCidr::None
    };
    assert!(is_kept("10.40.0.0/16").await);
    assert!(is_kept("10.50.0.0/16").await);

    let network = json!({ "reservedSubnets": ["10.40.0.0/14"] });
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "network": network } })).await;
    eventually("10.40.0.0/16 is reserved", async || is_kept("10.40.0.0/16").await, |it| !*it).await;

    rome.put::<Node>("one", json!({})).await;
    let address = json!({ "type": "InternalIP", "address": "10.50.7.7" });
    rome.put_status::<Node>("one", json!({ "addresses": [address] })).await;
    eventually("a node is in 10.50.0.0/16", async || is_kept("10.50.0.0/16").await, |it| !*it)
        .await;

    assert!(is_kept("10.60.0.0/16").await);
    let pods = json!({ "podCIDR": "10.60.3.0/24", "podCIDRs": ["10.60.3.0/24"] });
    rome.put::<Node>("two", json!({ "spec": pods })).await;
    let is_free = async || is_kept("10.60.0.0/16").await;
    eventually("pods of a node are in 10.60.0.0/16", is_free, |it| !*it).await;

    rome.clear::<ClusterConfig>().await;
    eventually("10.40.0.0/16 is free", async || is_kept("10.40.0.0/16").await, |it| *it).await;
    rome.clear::<Node>().await;
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn additional_pools_are_used_when_the_default_pools_are_reserved() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, _, service) = rome.serve().await;
    let private = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"];
    let network = json!({ "reservedSubnets": private, "additionalPools": ["203.0.0.0/13"] });
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "network": network } })).await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let translated = async || {
        let (pods, external) = (cidr("10.40.0.0/16"), cidr("10.41.0.0/16"));
        let subnets = ipam.reserve(turin.clone(), pods, external).await.unwrap();
        ipam.release(turin.clone()).await.unwrap();
        [subnets.remote_nat_pod_cidr.or(pods), subnets.remote_nat_external_cidr.or(external)]
    };
    let pool = cidr("203.0.0.0/13");
    let is_in_it = |cidr: &Cidr| pool.net().contains(&cidr.net());
    let are_in_it = |cidrs: &[Cidr; 2]| cidrs.iter().all(is_in_it);
    eventually("translated CIDRs are in the pool", translated, are_in_it).await;
    let external = async || ipam.external_cidr().await.unwrap();
    eventually("the ExternalCIDR is in the pool", external, is_in_it).await;
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_external_cidr_has_the_configured_size_unless_peers_use_it() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, _, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let size = async || ipam.external_cidr().await.unwrap().net().prefix_len();
    assert_eq!(size().await, 16);
    let network = json!({ "externalPrefixLength": 20 });
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "network": network } })).await;
    eventually("the ExternalCIDR is a /20", size, |size| *size == 20).await;

    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    let network = json!({ "externalPrefixLength": 22, "reservedSubnets": ["10.20.0.0/16"] });
    let mut configured = ipam.configured();
    configured.mark_unchanged();
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "network": network } })).await;
    configured.changed().await.unwrap();
    assert_eq!(size().await, 20, "it is in use");
    ipam.release(turin).await.unwrap();
    assert_eq!(size().await, 22);
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_with_the_same_cidrs_get_disjoint_translated_cidrs() {
    let (rome, _alone) = Side::alone("rome").await;
    let (_, controllers) = rome.start().await;
    let peers = ["turin", "genoa", "pisa"];
    for peer in peers {
        let namespace = format!("liqo-tenant-{peer}");
        rome.tenant(&namespace, &format!("id-of-{peer}")).await;
        let config = json!({
            "metadata": { "labels": { names::REPLICATED_FROM_LABEL: format!("id-of-{peer}") } },
            "spec": {
                "clusterID": "id-of-rome",
                "podCIDR": "10.244.0.0/16",
                "externalCIDR": "10.0.0.0/16",
                "endpointIP": "192.0.2.9",
                "backendType": "wireguard",
                "backend_config": {},
            },
        });
        rome.put_in::<NetworkConfig>(&namespace, peer, config).await;
    }
    let mut taken: Vec<Cidr> = vec![cidr("10.244.0.0/16"), cidr("10.96.0.0/16")];
    for peer in peers {
        let config = rome
            .until_in::<NetworkConfig>(&format!("liqo-tenant-{peer}"), peer, |config| {
                config.status.as_ref().is_some_and(|status| status.processed)
            })
            .await;
        let status = config.status.unwrap();
        taken.push(status.pod_cidr_nat.unwrap().or(config.spec.pod_cidr));
        taken.push(status.external_cidr_nat.unwrap().or(config.spec.external_cidr));
    }
    for (n, one) in taken.iter().enumerate() {
        assert!(taken[n + 1..].iter().all(|other| !overlap(*one, *other)), "{taken:?}");
    }
    controllers.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quarantine_of_a_released_cidr_survives_a_restart() {
    let (rome, _alone) = Side::alone("rome").await;
    let [milan, turin, pisa] =
        ["milan", "turin", "pisa"].map(|name| -> ClusterId { name.parse().unwrap() });
    let (pods, external) = (cidr("10.40.0.0/16"), cidr("10.41.0.0/16"));
    let (ipam, _, service) = rome.serve().await;
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin.clone(), NatCidr::None, NatCidr::None).await.unwrap();
    let subnets = ipam.reserve(milan.clone(), pods, external).await.unwrap();
    assert_eq!(subnets.translated_pod_cidr(), Some(pods));
    service.trigger();

    let (ipam, mut client, service) = rome.serve().await;
    let of_milan =
        MapRequest { cluster_id: turin.to_string(), ip: "10.40.7.7".into(), owner: None };
    client.map_endpoint_ip(of_milan.clone()).await.unwrap();
    rome.until_nat_mappings(1).await;
    ipam.release(milan.clone()).await.unwrap();
    rome.until_nat_mappings(0).await;
    service.trigger();

    let (ipam, mut client, service) = rome.serve().await;
    let subnets = ipam.reserve(pisa, pods, external).await.unwrap();
    assert!(!overlap(subnets.translated_pod_cidr().unwrap(), pods), "{subnets:?}");
    assert!(!overlap(subnets.translated_external_cidr().unwrap(), external), "{subnets:?}");
    let gone = client.map_endpoint_ip(of_milan.clone()).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound, "{gone}");
    assert!(gone.message().contains("10.40.7.7"), "{gone}");
    let subnets = ipam.reserve(milan, pods, external).await.unwrap();
    assert_eq!(subnets.translated_pod_cidr(), Some(pods), "the former peer gets it back at once");
    client.map_endpoint_ip(of_milan).await.unwrap();
    rome.until_nat_mappings(1).await;
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_translated_cidr_in_use_is_replaced_when_it_becomes_reserved() {
    let (rome, _alone) = Side::alone("rome").await;
    let (_, controllers) = rome.start().await;
    rome.tenant("liqo-tenant-turin", "id-of-turin").await;
    let config = json!({
        "metadata": { "labels": { names::REPLICATED_FROM_LABEL: "id-of-turin" } },
        "spec": {
            "clusterID": "id-of-rome",
            "podCIDR": "10.20.0.0/16",
            "externalCIDR": "10.21.0.0/16",
            "endpointIP": "192.0.2.9",
            "backendType": "wireguard",
            "backend_config": {},
        },
    });
    rome.put_in::<NetworkConfig>("liqo-tenant-turin", "turin", config).await;
    let until = async |is_it: fn(NatCidr) -> bool| {
        rome.until_in::<NetworkConfig>("liqo-tenant-turin", "turin", |config| {
            config.status.as_ref().and_then(|it| it.pod_cidr_nat).is_some_and(is_it)
        })
        .await
    };
    until(|nat| nat == NatCidr::None).await;
    let network = json!({ "reservedSubnets": ["10.20.128.0/17"] });
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "network": network } })).await;
    until(|nat| nat != NatCidr::None).await;
    rome.clear::<ClusterConfig>().await;
    controllers.trigger();
}
