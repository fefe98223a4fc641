//! How a process becomes the only one that writes addresses, and what it leaves.

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
use tombolo_core::ipam::{NETWORKS, REST, WRITER};
use tombolo_testbed::eventually;
use tower::service_fn;

use crate::{
    side::{Side, Time, cidr, map},
    wire::Wire,
};

#[tokio::test(flavor = "multi_thread")]
async fn who_begins_while_the_one_before_still_closes_begins_again() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, _, service) = rome.serve().await;
    service.ask();
    let ended = async || ipam.external_cidr().await.is_err();
    eventually("the one before has ended", ended, |it| *it).await;

    // It says that it has closed between the look of the next one and its word.
    let (direct, is_first) = (rome.client.clone(), Arc::new(AtomicBool::new(true)));
    let storages = rome.all::<IpamStorage>();
    let met = is_first.clone();
    let meet = move |request: Request<Body>| {
        let (direct, storages, is_first) = (direct.clone(), storages.clone(), met.clone());
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
    let client = Client::new(service_fn(meet), "default");
    let (ipam, _, service) = rome.serve_at(client, Arc::new(Timestamp::now)).await;
    assert!(!is_first.load(Ordering::Relaxed), "they have met");
    ipam.external_cidr().await.expect("it answers");
    assert!(!service.is_asked());
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_is_gone_leaves_nothing_though_a_process_died() {
    let (rome, _alone) = Side::alone("rome").await;
    let (time, wire) = (Time::default(), Wire::new(&rome));
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let (ipam, mut client, _) = rome.serve_at(wire.client(), time.clock()).await;
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_names(turin.clone(), NatCidr::None, NatCidr::None).await.unwrap();
    // More than one part, fast: some are opened ahead.
    for n in 0..70 {
        map(&mut client, "id-of-turin", &format!("192.0.2.{n}")).await.unwrap();
    }
    rome.told(70).await;
    wire.cut();

    let (ipam, _, service) = rome.serve_at(rome.client.clone(), time.clock()).await;
    let fences = rome.all_names().await.len();
    assert!(fences > 6, "what was open and not there is there now");
    ipam.release(turin.clone()).await.unwrap();
    let left = async || {
        ipam.external_cidr().await.expect("it answers");
        let mut names = rome.all_names().await;
        names.sort();
        names
    };
    // The networks are fenced for a while, and addresses rest.
    let few = [
        "liqo-endpoints-id-of-turin-0",
        "liqo-endpoints-id-of-turin-1",
        NETWORKS,
        "liqo-networks-id-of-turin",
        WRITER,
    ];
    eventually("only what rests is left", left, |names| *names == few).await;
    let fence = rome.get::<IpamStorage>("liqo-networks-id-of-turin").await.unwrap();
    assert!(fence.spec.cluster_subnets.is_empty());
    time.pass(REST + SignedDuration::from_secs(15));
    eventually("nothing is left", left, |names| *names == [NETWORKS, WRITER]).await;

    // Later there is no fence, only names that rest.
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.release(turin).await.unwrap();
    assert_eq!(left().await, [NETWORKS, "liqo-networks-id-of-turin", WRITER]);
    time.pass(REST + SignedDuration::from_secs(15));
    eventually("nothing is left once more", left, |names| *names == [NETWORKS, WRITER]).await;
    service.ask();
}
