//! How a process becomes the writer of IpamStorages and NatMappings, and fences off the former one.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use http::{Method, Request};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Client,
    api::{Patch, PatchParams},
    client::Body,
};
use serde_json::json;
use tombolo_api::{ClusterId, NatCidr, net::IpamStorage};
use tombolo_core::ipam::{NETWORKS, QUARANTINE, WRITER};
use tombolo_testbed::eventually;
use tower::service_fn;

use crate::{
    side::{Side, Time, cidr, map},
    wire::Wire,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_conflicts_with_the_former_writer_is_retried() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, _, service) = rome.serve().await;
    service.trigger();
    let ended = async || ipam.external_cidr().await.is_err();
    eventually("the former service has stopped", ended, |it| *it).await;

    // The former writer updates its record between the new writer's read and write.
    let (direct, is_first) = (rome.client.clone(), Arc::new(AtomicBool::new(true)));
    let storages = rome.all::<IpamStorage>();
    let in_request = is_first.clone();
    let interfere = move |request: Request<Body>| {
        let (direct, storages, is_first) = (direct.clone(), storages.clone(), in_request.clone());
        async move {
            let is_claim =
                request.method() == Method::PUT && request.uri().path().ends_with(WRITER);
            if is_claim && is_first.swap(false, Ordering::Relaxed) {
                let change = json!({ "metadata": { "annotations": { "closed": "late" } } });
                let params = PatchParams::default();
                storages.patch(WRITER, &params, &Patch::Merge(change)).await?;
            }
            direct.send(request).await
        }
    };
    let client = Client::new(service_fn(interfere), "default");
    let (ipam, _, service) = rome.serve_at(client, Arc::new(Timestamp::now)).await;
    assert!(!is_first.load(Ordering::Relaxed), "the conflict has happened");
    ipam.external_cidr().await.expect("it answers");
    assert!(!service.is_triggered());
    service.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn no_objects_of_a_former_peer_are_left_after_a_crash() {
    let (rome, _alone) = Side::alone("rome").await;
    let (time, wire) = (Time::default(), Wire::new(&rome));
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let (ipam, mut client, _) = rome.serve_at(wire.client(), time.clock()).await;
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_nat_cidrs(turin.clone(), NatCidr::None, NatCidr::None).await.unwrap();
    // More than one shard in a short time: some are opened ahead.
    for n in 0..70 {
        map(&mut client, "id-of-turin", &format!("192.0.2.{n}")).await.unwrap();
    }
    rome.until_nat_mappings(70).await;
    wire.cut();

    let (ipam, _, service) = rome.serve_at(rome.client.clone(), time.clock()).await;
    let fences = rome.all_object_names().await.len();
    assert!(fences > 6, "open shards that were missing are created");
    ipam.release(turin.clone()).await.unwrap();
    let left = async || {
        ipam.external_cidr().await.expect("it answers");
        let mut names = rome.all_object_names().await;
        names.sort();
        names
    };
    // The networks shard is a fence, and addresses are quarantined.
    let few = [
        "liqo-endpoints-id-of-turin-0",
        "liqo-endpoints-id-of-turin-1",
        NETWORKS,
        "liqo-networks-id-of-turin",
        WRITER,
    ];
    eventually("only fences and quarantines are left", left, |names| *names == few).await;
    let fence = rome.get::<IpamStorage>("liqo-networks-id-of-turin").await.unwrap();
    assert!(fence.spec.cluster_subnets.is_empty());
    time.pass(QUARANTINE + SignedDuration::from_secs(15));
    eventually("nothing is left", left, |names| *names == [NETWORKS, WRITER]).await;

    // Later there are no fences, only quarantined CIDRs.
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.release(turin).await.unwrap();
    assert_eq!(left().await, [NETWORKS, "liqo-networks-id-of-turin", WRITER]);
    time.pass(QUARANTINE + SignedDuration::from_secs(15));
    eventually("nothing is left once more", left, |names| *names == [NETWORKS, WRITER]).await;
    service.trigger();
}
