//! Clusters on one network discover each other by mDNS if they are of the same group, and forget
//! each other when they are gone. Each discovery runs in the network namespace of its node.

mod autojoin;
#[path = "../common/mod.rs"]
mod common;
mod lan;
mod networks;
mod side;
mod story;

use tombolo_testbed::{ClusterSpec, Testbed};

use side::Side;

/// The auth service has an IPv6 address, too.
const DUAL_STACK: &str = "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112";

#[tokio::test(flavor = "multi_thread")]
async fn clusters_discover_and_forget_each_other() {
    let cluster = |name| ClusterSpec::new(name).control_plane_only().api_server_flag(DUAL_STACK);
    let bed = Testbed::builder("discovery")
        .cluster(cluster("rome"))
        .cluster(cluster("milan"))
        .cluster(cluster("turin"));
    let bed = bed.start().await.expect("the API servers start");
    let side = |name| Side::new(bed.cluster(name));
    let (rome, milan, turin) = tokio::join!(side("rome"), side("milan"), side("turin"));
    story::runs(&rome, &milan, &turin).await;
    networks::are_followed(&rome, &milan).await;
    networks::may_be_ipv6_only(&rome, &milan).await;
    autojoin::can_be_switched(&rome, &milan, &turin).await;
}
