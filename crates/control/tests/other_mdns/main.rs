//! Another mDNS implementation receives our announcements, and we receive its.

#[path = "../common/mod.rs"]
mod common;
#[path = "../discovery/lan.rs"]
mod lan;
mod namespace;
mod other;
#[path = "../discovery/side.rs"]
mod side;

use kube::{ResourceExt, api::Patch};
use serde_json::{Value, json};
use tombolo_api::discovery::ForeignCluster;
use tombolo_runtime::metrics;
use tombolo_testbed::{ClusterSpec, Testbed, eventually};

use lan::{Lan, address};
use namespace::Namespace;
use other::Other;
use side::{Side, seen};

#[tokio::test(flavor = "multi_thread")]
async fn discovery_works_with_another_mdns_implementation() {
    let bed = Testbed::builder("other-mdns")
        .cluster(ClusterSpec::new("rome").control_plane_only())
        .start()
        .await
        .expect("the API server starts");
    let rome = Side::new(bed.cluster("rome")).await;
    rome.configure(json!({ "ttlSeconds": 3 })).await;
    let node = rome.cluster.node(1).network_namespace();
    let elsewhere = Namespace::new();
    let _lan = Lan::connect((&node, "lan0"), (elsewhere.name(), "lan0"));
    address(&node, "add", "198.51.100.1/24", "lan0");
    address(&node, "add", "2001:db8:7::1/64", "lan0");
    address(elsewhere.name(), "add", "198.51.100.2/24", "lan0");

    // What it has published earlier, and does not repeat, is queried.
    let mut other = Other::start(elsewhere.name(), "198.51.100.2");
    let lasting = json!({ "name": "padua", "ttl": "600" });
    other.publish("padua-id", &["198.51.100.2"], &lasting);
    heard(&other, "published-padua-id", Value::is_boolean).await;
    let running = rome.start();
    rome.finds("padua").await;

    // It receives our announcement, with our address in that network.
    let said = heard(&other, "id-of-rome", Value::is_object).await;
    assert_eq!(said["server"], "id-of-rome.local.");
    assert_eq!(said["port"], rome.port().await);
    assert_eq!(said["addresses"], json!(["198.51.100.1"]));
    let properties = &said["properties"];
    assert_eq!((&properties["version"], &properties["name"]), (&json!("1"), &json!("rome")));
    assert_eq!(properties["fingerprint"], "0f".repeat(32));
    assert_eq!(properties["ttl"], "3");

    // Our announcement is repeated.
    let times = |said: &Value| said["properties"]["times"].as_str()?.parse::<u32>().ok();
    let first = times(&said).expect("the number of announcements");
    heard(&other, "id-of-rome", |said| times(said).is_some_and(|times| times > first + 1)).await;

    // Its announcements are discovered if they are valid and reachable.
    let says = |name: &str| json!({ "name": name, "ttl": "3", "colour": "blue" });
    let later = json!({ "name": "trieste", "version": "2" });
    other.publish("trieste-id", &["198.51.100.2"], &later);
    other.publish("vicenza-id", &["fe80::2"], &says("vicenza"));
    other.publish("id-of-rome-not", &["127.0.0.1"], &says("nowhere"));
    other.publish("verona-id", &["2001:db8:7::2", "fe80::2"], &says("verona"));
    other.publish("venice-id", &["192.0.2.2", "198.51.100.2"], &says("venice"));
    rome.finds("venice").await;
    rome.finds("verona").await;
    let venice = rome.entry("venice").await.expect("it was discovered");
    assert_eq!(venice.spec.auth_url, "https://198.51.100.2:31443");
    assert_eq!(venice.spec.ttl, Some(3));
    assert_eq!(venice.labels()["discovery.liqo.io/discovery-type"], "LAN");
    let verona = rome.entry("verona").await.expect("it was discovered");
    assert_eq!(verona.spec.auth_url, "https://[2001:db8:7::2]:31443");
    for name in ["trieste", "vicenza", "nowhere", "rome"] {
        assert!(rome.entry(name).await.is_none(), "{name}");
    }

    // It announces nothing more, but answers queries: the entry stays. It announces no certificate,
    // so the controllers have pinned the one presented first.
    let shown = "0f".repeat(32);
    let pinned = json!({
        "metadata": { "annotations": {
            "discovery.liqo.io/pinned-by": format!("first-use {shown}"),
        } },
        "spec": { "fingerprint": shown },
    });
    let clusters = rome.all::<ForeignCluster>();
    clusters.patch("venice", &Default::default(), &Patch::Merge(pinned)).await.expect("pinned");
    let (uid, first) = (venice.uid(), seen(&venice));
    let later = |entry: &ForeignCluster| seen(entry).duration_since(first).as_secs() > 9;
    let venice = rome.until::<ForeignCluster>("venice", later).await;
    assert_eq!(venice.uid(), uid);

    // Goodbyes in both directions.
    other.withdraw("venice-id");
    rome.forgets("venice").await;
    assert!(rome.entry("verona").await.is_some());
    assert_eq!(neighbours(), 2, "padua and verona");
    other.withdraw("padua-id");
    eventually("the goodbye is received at once", async || neighbours(), |count| *count == 1).await;
    assert!(rome.entry("padua").await.is_some(), "its TTL is ten minutes");
    running.stop();
    heard(&other, "id-of-rome", Value::is_null).await;
}

/// The number of announced clusters, from the metrics.
fn neighbours() -> u32 {
    let text = metrics::text().expect("metrics");
    let mut lines = text.lines();
    let count = lines.find_map(|line| line.strip_prefix("tombolo_discovery_announced_clusters "));
    count.expect("the metric").parse().expect("a number")
}

async fn heard(other: &Other, instance: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let ask = async || other.heard(instance);
    let what = format!("the expected announcement of {instance}");
    let said = eventually(&what, ask, |said| said.as_ref().is_some_and(&is_it)).await;
    said.expect("an announcement")
}
