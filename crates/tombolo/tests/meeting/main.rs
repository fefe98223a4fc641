//! Two new clusters: after `install` alone, each discovers the other and gets an identity there.
//! The entries expire and are discovered again, also by DNS.

#[path = "../common/mod.rs"]
mod common;

mod dns;
mod kubectl;
mod printed;

use std::time::Duration;

use common::{SOON, get, list, within};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tombolo_testbed::{Cluster, ClusterSpec, Protocol, Testbed};

use printed::printed;

/// TTL of announcements in this test, in seconds.
const TTL: u32 = 6;

#[tokio::test]
async fn clusters_discover_each_other_expire_and_are_discovered_again() {
    let specs = ["rome", "milan"].map(ClusterSpec::new);
    let bed = common::bed("meeting", specs).start().await.expect("the clusters start");
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    common::install(&bed, &["--empty-token"]).await;
    both_know_each_other(&bed).await;
    kubectl::can_use_the_identity(rome, "milan").await;
    kubectl::can_use_the_identity(milan, "rome").await;

    // A change takes effect immediately, also for existing entries.
    for side in bed.clusters() {
        configure(side, &json!({ "ttlSeconds": TTL })).await;
    }
    for (side, other) in [(rome, "milan"), (milan, "rome")] {
        let ttl = async || entry(side, other).await["spec"]["ttl"].clone();
        within(SOON, "the new TTL is known", ttl, |ttl| *ttl == TTL).await;
    }
    stay_for_several_ttls(&bed).await;

    configure(rome, &json!({ "group": "north" })).await;
    nobody_is_listed(&bed).await;
    configure(milan, &json!({ "group": "north" })).await;
    both_know_each_other(&bed).await;

    let last = [seen(&entry(rome, "milan").await), seen(&entry(milan, "rome").await)];
    let cut = bed.between(rome, milan).port(Protocol::Udp, 5353).cut().expect("the LAN is cut");
    nobody_is_listed(&bed).await;
    let ttl = SignedDuration::from_secs(TTL.into());
    for seen in last {
        assert!(Timestamp::now().duration_since(seen) >= ttl, "gone before the TTL was over");
    }

    let dns = dns::serve(rome, milan).await;
    knows(rome, "milan", "WAN").await;
    let domains = list(rome, &["searchdomains"]).await;
    assert_eq!(common::condition(&domains[0], "Searched"), "True", "{domains:#?}");
    assert!(printed(milan, "foreignclusters").await.is_empty(), "milan has not discovered rome");

    // Announced again, rome's entry stays of type WAN: DNS takes precedence. Milan has only mDNS.
    let uid = entry(rome, "milan").await["metadata"]["uid"].clone();
    cut.undo().expect("the LAN is whole");
    knows(milan, "rome", "LAN").await;
    let milan_in_rome = entry(rome, "milan").await;
    assert_eq!(milan_in_rome["metadata"]["uid"], uid);
    assert_eq!(printed(rome, "foreignclusters").await[0]["TYPE"], "WAN");

    rome.kubectl(&["delete", "searchdomain", "--all"]).await.expect("it can be deleted");
    knows(rome, "milan", "LAN").await;
    drop(dns);
}

async fn both_know_each_other(bed: &Testbed) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    tokio::join!(knows(rome, "milan", "LAN"), knows(milan, "rome", "LAN"));
}

/// Checks the output of kubectl.
async fn knows(side: &Cluster, other: &str, kind: &str) {
    let rows = async || printed(side, "foreignclusters").await;
    let what = format!("{} has an identity of {kind} cluster {other}", side.name());
    within(SOON, &what, rows, |rows| match &rows[..] {
        [row] => row["NAME"] == other && row["TYPE"] == kind && row["AUTH"] == "Accepted",
        _ => false,
    })
    .await;
    let entry = entry(side, other).await;
    assert_eq!(common::condition(&entry, "Authenticated"), "True", "{entry:#}");
    assert_ne!(entry["spec"]["join"], true, "no peering was requested");
}

async fn entry(side: &Cluster, other: &str) -> Value {
    get(side, &["foreigncluster", other]).await
}

fn seen(entry: &Value) -> Timestamp {
    let time = &entry["metadata"]["annotations"]["discovery.liqo.io/last-update-time"];
    time.as_str().and_then(|time| time.parse().ok()).expect("it says when it was seen")
}

async fn configure(side: &Cluster, discovery: &Value) {
    let patch = json!({ "spec": { "discovery": discovery } }).to_string();
    let patch = ["patch", "clusterconfig", "cluster", "--type=merge", "-p", &patch];
    side.kubectl(&patch).await.expect("it can be configured");
}

/// Announcements renew an entry, and it stays the same object.
async fn stay_for_several_ttls(bed: &Testbed) {
    let several = SignedDuration::from_secs((3 * TTL).into());
    let stays = async |side: &str, other: &str| {
        let side = bed.cluster(side);
        let first = entry(side, other).await;
        let now = async || entry(side, other).await;
        let what = format!("{other} is seen for three TTLs");
        within(SOON, &what, now, |now| {
            assert_eq!(now["metadata"]["uid"], first["metadata"]["uid"]);
            assert!(now["metadata"]["deletionTimestamp"].is_null(), "{now:#}");
            seen(now) >= seen(&first) + several
        })
        .await;
    };
    tokio::join!(stays("rome", "milan"), stays("milan", "rome"));
}

/// Entries without announcements expire.
async fn nobody_is_listed(bed: &Testbed) {
    for side in bed.clusters() {
        let listed = async || printed(side, "foreignclusters").await;
        let what = format!("nobody is listed in {}", side.name());
        within(Duration::from_secs(30), &what, listed, Vec::is_empty).await;
    }
}
