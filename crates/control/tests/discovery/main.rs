//! Clusters on one network find each other by mDNS, as far as they are of one group, and
//! forget each other when they are gone. Each discovery runs in the network of its node.

mod autojoin;
#[path = "../common/mod.rs"]
mod common;
mod lan;
mod networks;
mod side;
mod story;

use tombolo_testbed::{ClusterSpec, Testbed};

use side::Side;

/// The auth service is there by IPv6, too.
const DUAL_STACK: &str = "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112";

#[tokio::test(flavor = "multi_thread")]
async fn clusters_find_and_forget_each_other() {
    let cluster = |name| ClusterSpec::new(name).control_plane_only().api_server_flag(DUAL_STACK);
    let bed = Testbed::builder("discovery")
        .cluster(cluster("rome"))
        .cluster(cluster("milan"))
        .cluster(cluster("turin"));
    let bed = bed.start().await.expect("the API servers start");
    let side = |name| Side::new(bed.cluster(name));
    let (rome, milan, turin) = tokio::join!(side("rome"), side("milan"), side("turin"));
    story::is_told(&rome, &milan, &turin).await;
    networks::are_followed(&rome, &milan).await;
    networks::may_be_of_ipv6(&rome, &milan).await;
    autojoin::is_switched(&rome, &milan, &turin).await;
}
