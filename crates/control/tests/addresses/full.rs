//! An ExternalCIDR without free addresses.

use serde_json::json;
use tombolo_api::{ClusterId, NatCidr, config::ClusterConfig};
use tombolo_testbed::eventually;
use tonic::Code;

use crate::side::{Side, cidr, map, remote};

#[tokio::test(flavor = "multi_thread")]
async fn a_full_external_cidr_is_reported_and_keeps_its_mappings() {
    let (rome, _alone) = Side::alone("rome").await;
    let network = json!({ "externalPrefixLength": 29 });
    rome.put::<ClusterConfig>("cluster", json!({ "spec": { "network": network } })).await;
    let (ipam, mut client, service) = rome.serve().await;
    let external = ipam.external_cidr().await.unwrap();
    assert_eq!(external.net().prefix_len(), 29);
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin, NatCidr::None, NatCidr::None).await.unwrap();

    // Three of the eight are the network, the broadcast and the gateway address.
    let nodes = [1, 2, 3, 4, 5].map(|n| format!("192.0.2.{n}"));
    let mut mapped = Vec::new();
    for node in &nodes {
        mapped.push(map(&mut client, "id-of-turin", node).await.unwrap());
    }
    let is_full = |said: tonic::Status| {
        assert_eq!(said.code(), Code::ResourceExhausted, "{said}");
        assert!(said.message().contains(&external.to_string()), "{said}");
    };
    is_full(map(&mut client, "id-of-turin", "192.0.2.6").await.unwrap_err());
    service.trigger();
    let ended = async || ipam.external_cidr().await.is_err();
    eventually("the former service has stopped", ended, |it| *it).await;

    let (_, mut client, service) = rome.serve().await;
    for (node, address) in nodes.iter().zip(&mapped) {
        assert_eq!(remote(&mut client, "id-of-turin", node).await.unwrap(), *address);
        assert_eq!(map(&mut client, "id-of-turin", node).await.unwrap(), *address);
    }
    is_full(map(&mut client, "id-of-turin", "192.0.2.6").await.unwrap_err());
    service.trigger();
}
