//! Manual peering without discovery: with disjoint CIDRs, so that no address is translated, and
//! with tokens. In the end everything is removed, and both clusters are in their previous state.

#[path = "../common/mod.rs"]
mod common;

mod tokens;

use std::collections::BTreeSet;

use common::load::clients;
use common::look::Before;
use common::{SOON, condition, get, list, name, refused, tombolo, within};
use serde_json::{Value, json};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed};

const URL: &str = "http://web.shop.svc/cgi-bin/hello";
const SHOP: &str = include_str!("../../src/playground/shop.yaml");

/// Without discovery.
fn config(sharing: &Value) -> String {
    let config = json!({
        "apiVersion": "config.liqo.io/v1alpha1",
        "kind": "ClusterConfig",
        "metadata": {"name": "cluster"},
        "spec": {"discovery": {"enabled": false, "advertise": false}, "sharing": sharing},
    });
    config.to_string()
}

/// The URL of the auth service for other clusters.
async fn auth_url(cluster: &Cluster) -> String {
    let service = get(cluster, &["service", "-n", "liqo", "liqo-auth"]).await;
    format!("https://{}:{}", cluster.node(1).address(), service["spec"]["ports"][0]["nodePort"])
}

#[tokio::test]
async fn from_an_auth_url_to_an_application_and_back() {
    let network = |text: &str| text.parse().unwrap();
    let rome = ClusterSpec::new("rome").pod_cidr(network("10.50.0.0/16"));
    let milan = ClusterSpec::new("milan").pod_cidr(network("10.60.0.0/16"));
    let bed = common::bed("by-hand", [rome, milan]).start().await.unwrap();
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    let before = Before::of(&bed).await;

    common::install(&bed, &[]).await;
    for cluster in bed.clusters() {
        cluster.apply(&config(&json!({}))).await.unwrap();
    }
    for cluster in bed.clusters() {
        cluster.kubectl(&["delete", "foreignclusters", "--all"]).await.unwrap();
    }
    let url = auth_url(milan).await;

    tokens::only_the_right_token_is_accepted(&bed, &url).await;
    // Milan needs an identity at rome for its offers.
    milan.apply(&tokens::secret(&id(rome).await, &tokens::of(rome).await)).await.unwrap();

    vanishes_in_the_middle(&bed).await;

    tombolo(rome, &["peer", "by-hand"]).await;

    // The CIDRs are disjoint: no address is translated.
    for side in [rome, milan] {
        let tunnel = list(side, &["tunnelendpoints", "-A"]).await.remove(0);
        assert_eq!(tunnel["status"]["remoteNATPodCIDR"], "None", "{tunnel:#}");
        assert_eq!(tunnel["status"]["localNATPodCIDR"], "None", "{tunnel:#}");
    }
    let (namespace, application) = SHOP.split_once("---\n").unwrap();
    rome.apply(namespace).await.unwrap();
    tombolo(rome, &["offload", "namespace", "shop", "--same-name"]).await;
    rome.apply(application).await.unwrap();
    rome.deployed("shop", "web").await.unwrap();
    let pods = list(rome, &["pods", "-n", "shop"]).await;
    let everybody: BTreeSet<String> = pods.iter().map(|pod| name(pod).to_owned()).collect();
    let there = pods.iter().find(|pod| pod["spec"]["nodeName"] == "liqo-milan").unwrap();
    let twin = get(milan, &["pod", "-n", "shop", name(there)]).await;
    assert_eq!(there["status"]["podIP"], twin["status"]["podIP"]);
    let (in_rome, in_milan) = tokio::join!(clients(rome), clients(milan));
    for (side, clients) in [(rome, in_rome), (milan, in_milan)] {
        for client in clients {
            client.reaches_all(URL, &everybody).await;
            let hellos = client.send_all(URL, 60).await;
            let who: BTreeSet<String> = hellos.iter().map(|hello| hello.pod.clone()).collect();
            assert_eq!(who, everybody, "asked from {}", client.node);
            let seen = hellos.iter().all(|hello| hello.client == client.address);
            assert!(client.on_host || seen, "{hellos:?} asked from {}", client.address);
        }
        side.kubectl(&["delete", "namespace", "clients"]).await.unwrap();
    }

    tokens::never_leak(&bed).await;

    common::way_back::go(&bed, "by-hand").await;
    before.is_back().await;
}

async fn id(cluster: &Cluster) -> String {
    let settings = get(cluster, &["configmap", "-n", "liqo", "liqo-cluster"]).await;
    settings["data"]["CLUSTER_ID"].as_str().unwrap().to_owned()
}

/// Milan is unreachable before or after it receives rome's request, and reachable again when rome
/// has unpeered.
async fn vanishes_in_the_middle(bed: &Testbed) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    let server = format!("https://{}:6443", milan.node(1).address());
    let cut = bed.between(rome, milan).cut().unwrap();
    let said = refused(rome, &["peer", "by-hand", "--timeout", "10"]).await;
    for part in [server.as_str(), "Check that", "unpeer"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    let entry = get(rome, &["foreigncluster", "by-hand"]).await;
    assert_eq!(condition(&entry, "APIServer"), "False", "{entry:#}");
    let events = list(rome, &["events", "-A"]).await;
    let told = |event: &Value| {
        event["involvedObject"]["name"] == "by-hand" && event["reason"] == "Unreachable"
    };
    assert!(events.iter().any(told), "{events:#?}");
    // Milan has received nothing, so nothing has to be removed there.
    tombolo(rome, &["unpeer", "by-hand"]).await;
    cut.undo().unwrap();
    nothing_stays(bed).await;

    milan.apply(&config(&json!({"autoAccept": false}))).await.unwrap();
    let said = refused(rome, &["peer", "by-hand", "--timeout", "5"]).await;
    assert!(said.contains("waits to be accepted"), "{said}");
    let cut = bed.between(rome, milan).cut().unwrap();
    let said = refused(rome, &["unpeer", "by-hand", "--timeout", "10"]).await;
    assert!(said.contains(&server) && said.contains("the controllers continue"), "{said}");
    cut.undo().unwrap();
    nothing_stays(bed).await;
    milan.apply(&config(&json!({}))).await.unwrap();
}

/// Waits until no object of a peering is left in either cluster.
async fn nothing_stays(bed: &Testbed) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    for side in [rome, milan] {
        let left = async || {
            let kinds =
                "resourcerequests,resourceoffers,networkconfigs,tunnelendpoints,namespacemaps";
            list(side, &["-A", kinds]).await.iter().map(|o| name(o).to_owned()).collect()
        };
        let what = format!("nothing of it is left in {}", side.name());
        within(SOON, &what, left, Vec::<String>::is_empty).await;
    }
    let nodes = list(rome, &["nodes"]).await;
    assert!(!nodes.iter().any(|node| name(node).starts_with("liqo-")), "{nodes:#?}");
}
