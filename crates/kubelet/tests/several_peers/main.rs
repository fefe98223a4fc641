//! One process with the virtual nodes of two peers: the nodes are independent of each other, and
//! objects that are reflected to both peers are watched once.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod home;
mod watches;

use std::collections::BTreeMap;

use home::Home;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use tombolo_api::virtualkubelet::ShadowPod;
use tombolo_runtime::telemetry;
use tombolo_testbed::{ClusterSpec, Component, Testbed};
use tombolo_testing::Side;

#[tokio::test(flavor = "multi_thread")]
async fn one_process_serves_the_nodes_of_all_peers() {
    telemetry::init();
    let cluster = |name| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("several-peers")
        .cluster(cluster("rome"))
        .cluster(cluster("milan"))
        .cluster(cluster("naples"));
    let bed = bed.start().await.expect("the control planes start");
    let milan = Side::new(bed.cluster("milan")).await;
    let naples = Side::new(bed.cluster("naples")).await;
    let home = Home::start(bed.cluster("rome")).await;
    let before = watches::of_namespaces(&home.rome).await;

    home.peers_with(&milan).await;
    home.is_ready("liqo-milan", true).await;
    all_kinds_are_reflected(&home, &[&milan], "1").await;
    let with_one = watches::of_namespaces(&home.rome).await;
    let reflected = ["configmaps", "endpointslices", "secrets", "services"];
    assert_eq!(started(&before, &with_one), reflected.map(|kind| (kind, 1)).into());
    let of_peerings = watches::of_peerings(&home.rome).await;

    home.peers_with(&naples).await;
    home.is_ready("liqo-naples", true).await;
    all_kinds_are_reflected(&home, &[&milan, &naples], "2").await;
    assert_eq!(watches::of_namespaces(&home.rome).await, with_one, "each kind is watched once");
    assert_eq!(watches::of_peerings(&home.rome).await, of_peerings);

    pods_run_in_the_cluster_of_their_node(&home, &milan, &naples).await;
    the_loss_of_one_cluster_does_not_affect_the_other(&home, &milan, &naples).await;
    a_withdrawn_offer_removes_only_its_own_node(&home, &milan, &naples).await;
    home.end().await;
}

/// Watches that were started since `before`.
fn started<'a>(
    before: &BTreeMap<String, u32>,
    after: &'a BTreeMap<String, u32>,
) -> BTreeMap<&'a str, u32> {
    let more = |(kind, count): (&'a String, &u32)| {
        let new = count - before.get(kind).unwrap_or(&0);
        (new > 0).then_some((kind.as_str(), new))
    };
    after.iter().filter_map(more).collect()
}

/// The second change arrives by a watch, not by the first list.
async fn all_kinds_are_reflected(home: &Home, peers: &[&Side], round: &str) {
    for value in ["first", "second"] {
        home.writes_all_kinds(&format!("{round}-{value}")).await;
        for peer in peers {
            home.all_kinds_are_in(peer, &format!("{round}-{value}")).await;
        }
    }
}

async fn pods_run_in_the_cluster_of_their_node(home: &Home, milan: &Side, naples: &Side) {
    home.creates_pod_on("to-milan", "liqo-milan").await;
    home.creates_pod_on("to-naples", "liqo-naples").await;
    milan.until_in::<ShadowPod>(home::TWIN, "to-milan", |_| true).await;
    naples.until_in::<ShadowPod>(home::TWIN, "to-naples", |_| true).await;
    assert_eq!(milan.get_in::<ShadowPod>(home::TWIN, "to-naples").await, None);
    assert_eq!(naples.get_in::<ShadowPod>(home::TWIN, "to-milan").await, None);
}

async fn the_loss_of_one_cluster_does_not_affect_the_other(
    home: &Home,
    milan: &Side,
    naples: &Side,
) {
    let lost = milan.cluster.stop(1, Component::ApiServer).expect("it stops");
    home.is_ready("liqo-milan", false).await;
    let since = home.ready_since("liqo-naples").await;
    home.writes_all_kinds("meanwhile").await;
    home.all_kinds_are_in(naples, "meanwhile").await;
    home.creates_pod_on("meanwhile", "liqo-naples").await;
    naples.until_in::<ShadowPod>(home::TWIN, "meanwhile", |_| true).await;
    home.is_ready("liqo-naples", true).await;
    assert_eq!(home.ready_since("liqo-naples").await, since, "it was ready all the time");

    lost.undo().expect("it starts again");
    home.is_ready("liqo-milan", true).await;
    home.all_kinds_are_in(milan, "meanwhile").await;
    assert_eq!(home.ready_since("liqo-naples").await, since, "it was ready all the time");
}

async fn a_withdrawn_offer_removes_only_its_own_node(home: &Home, milan: &Side, naples: &Side) {
    let node = home.rome.get::<Node>("liqo-naples").await.expect("the other node");
    home.offer_is_withdrawn_by("milan").await;
    home.rome.until_gone::<Node>("liqo-milan").await;
    milan.until_gone_in::<ShadowPod>(home::TWIN, "to-milan").await;
    home.rome.until_gone_in::<Pod>(home::NAMESPACE, "to-milan").await;

    home.writes_all_kinds("alone").await;
    home.all_kinds_are_in(naples, "alone").await;
    let same = home.rome.get::<Node>("liqo-naples").await.expect("the other node");
    assert_eq!(same.metadata.uid, node.metadata.uid);
    home.is_ready("liqo-naples", true).await;
    assert!(naples.get_in::<ShadowPod>(home::TWIN, "to-naples").await.is_some());
    // The copies in milan are left unchanged.
    let data = |map: ConfigMap| map.data.unwrap_or_default().remove("value");
    let map = milan.get_in::<ConfigMap>(home::TWIN, "web").await.expect("the copy");
    assert_eq!(data(map).as_deref(), Some("meanwhile"));
}
