//! Clusters that do not find each other: with different networks, so that no address is translated, and
//! with tokens. In the end everything is taken back, and both clusters are as they were before.

mod common;

use std::collections::BTreeSet;

use common::load::clients;
use common::look::Look;
use common::{SOON, condition, get, list, name, refused, tombolo, within};
use serde_json::{Value, json};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed};

const URL: &str = "http://web.shop.svc/cgi-bin/hello";
const SHOP: &str = include_str!("../src/playground/shop.yaml");

/// Nobody is found by itself.
fn config(sharing: &Value) -> String {
    let config = json!({
        "apiVersion": "config.liqo.io/v1alpha1",
        "kind": "ClusterConfig",
        "metadata": {"name": "cluster"},
        "spec": {"discovery": {"enabled": false, "advertise": false}, "sharing": sharing},
    });
    config.to_string()
}

/// Where other clusters reach the auth service.
async fn auth_url(cluster: &Cluster) -> String {
    let service = get(cluster, &["service", "-n", "liqo", "liqo-auth"]).await;
    format!("https://{}:{}", cluster.node(1).address(), service["spec"]["ports"][0]["nodePort"])
}

async fn token(cluster: &Cluster) -> String {
    let path = "go-template={{.data.token | base64decode}}";
    let read =
        async || cluster.kubectl(&["get", "secret", "-n", "liqo", "auth-token", "-o", path]).await;
    within(SOON, "there is a token", read, Result::is_ok).await;
    read().await.unwrap()
}

fn file(text: &str) -> std::path::PathBuf {
    let path = std::env::temp_dir().join(format!("tombolo-token-{}", std::process::id()));
    std::fs::write(&path, text).unwrap();
    path
}

#[tokio::test]
async fn from_an_auth_url_to_an_application_and_back() {
    let network = |text: &str| text.parse().unwrap();
    let rome = ClusterSpec::new("rome").pod_cidr(network("10.50.0.0/16"));
    let milan = ClusterSpec::new("milan").pod_cidr(network("10.60.0.0/16"));
    let bed = common::bed("by-hand", [rome, milan]).start().await.unwrap();
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    for cluster in bed.clusters() {
        common::load::pods_on_all_nodes(cluster).await;
    }
    let (rome_before, milan_before) = (Look::at(rome).await, Look::at(milan).await);

    common::install(&bed, &[]).await;
    for cluster in bed.clusters() {
        cluster.apply(&config(&json!({}))).await.unwrap();
        cluster.kubectl(&["delete", "foreignclusters", "--all"]).await.unwrap();
    }
    let url = auth_url(milan).await;

    // Milan wants a token, and the right one.
    let said = refused(rome, &["peer", &url, "--timeout", "20"]).await;
    assert!(said.contains(&url) && said.contains("--token-file"), "{said}");
    let wrong = file("wrong");
    let path = wrong.display().to_string();
    let said = refused(rome, &["peer", &url, "--token-file", &path, "--timeout", "20"]).await;
    assert!(said.contains(&url), "{said}");
    let gone = async || list(rome, &["foreignclusters"]).await.len();
    within(SOON, "nothing half-made stays", gone, |count| *count == 0).await;

    // Nothing but a URL and a token, and each gets an identity at the other; milan's is for its offers.
    rome.apply(&token_for(&id(milan).await, &token(milan).await)).await.unwrap();
    milan.apply(&token_for(&id(rome).await, &token(rome).await)).await.unwrap();
    rome.apply(&foreign_cluster(&url)).await.unwrap();
    let entry = async || get(rome, &["foreigncluster", "by-hand"]).await;
    within(SOON, "an identity", entry, |fc| condition(fc, "Authenticated") == "True").await;
    assert_eq!(entry().await["spec"]["clusterIdentity"]["clusterName"], "milan");

    vanishes_in_the_middle(&bed).await;

    tombolo(rome, &["peer", "by-hand"]).await;

    // No network is in the other's way: no address is translated.
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
    for side in [rome, milan] {
        for client in clients(side).await {
            client.hears_from(URL, &everybody).await;
            let hellos = client.ask_often(URL, 60).await;
            let who: BTreeSet<String> = hellos.iter().map(|hello| hello.pod.clone()).collect();
            assert_eq!(who, everybody, "asked from {}", client.node);
            let seen = hellos.iter().all(|hello| hello.client == client.address);
            assert!(client.on_host || seen, "{hellos:?} asked from {}", client.address);
        }
        side.kubectl(&["delete", "namespace", "clients"]).await.unwrap();
    }

    // All the way back.
    tombolo(rome, &["unoffload", "namespace", "shop"]).await;
    let home = async || {
        let pods = list(rome, &["pods", "-n", "shop"]).await;
        pods.iter().filter(|pod| pod["spec"]["nodeName"] == "liqo-milan").count()
    };
    within(SOON, "all pods are home", home, |count| *count == 0).await;
    let twins = async || milan.kubectl(&["get", "namespace", "shop"]).await.is_err();
    within(SOON, "milan has no shop", twins, |gone| *gone).await;
    tombolo(rome, &["unpeer", "by-hand"]).await;
    let nodes = list(rome, &["nodes"]).await;
    assert!(!nodes.iter().any(|node| name(node).starts_with("liqo-")), "{nodes:#?}");
    tombolo(rome, &["uninstall"]).await;
    tombolo(milan, &["uninstall"]).await;
    rome.kubectl(&["delete", "namespace", "shop"]).await.unwrap();

    for (cluster, before) in [(rome, &rome_before), (milan, &milan_before)] {
        let differences = async || before.differences(&Look::at(cluster).await);
        let what = format!("{} is as it was before", cluster.name());
        within(SOON, &what, differences, Vec::is_empty).await;
    }
}

async fn id(cluster: &Cluster) -> String {
    let settings = get(cluster, &["configmap", "-n", "liqo", "liqo-cluster"]).await;
    settings["data"]["CLUSTER_ID"].as_str().unwrap().to_owned()
}

/// The Secret that says which token to show to the cluster with this id.
fn token_for(id: &str, token: &str) -> String {
    let secret: Value = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": "token-of-the-other",
            "namespace": "liqo",
            "labels": {"discovery.liqo.io/auth-token": "", "discovery.liqo.io/cluster-id": id},
        },
        "stringData": {"token": token},
    });
    secret.to_string()
}

fn foreign_cluster(url: &str) -> String {
    let cluster: Value = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": {"name": "by-hand"},
        "spec": {"authUrl": url},
    });
    cluster.to_string()
}

/// Milan is gone before it has heard that rome wants to peer with it, or after, and back when rome
/// wants no more.
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
    // Nothing has come to milan, so nothing has to be fetched from there.
    tombolo(rome, &["unpeer", "by-hand"]).await;
    cut.undo().unwrap();
    nothing_stays(bed).await;

    milan.apply(&config(&json!({"autoAccept": false}))).await.unwrap();
    let said = refused(rome, &["peer", "by-hand", "--timeout", "5"]).await;
    assert!(said.contains("waits to be accepted"), "{said}");
    let cut = bed.between(rome, milan).cut().unwrap();
    let said = refused(rome, &["unpeer", "by-hand", "--timeout", "10"]).await;
    assert!(said.contains(&server) && said.contains("goes on by itself"), "{said}");
    cut.undo().unwrap();
    nothing_stays(bed).await;
    milan.apply(&config(&json!({}))).await.unwrap();
}

/// Neither cluster has anything of a peering.
async fn nothing_stays(bed: &Testbed) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    for side in [rome, milan] {
        let left = async || {
            let kinds =
                "resourcerequests,resourceoffers,networkconfigs,tunnelendpoints,namespacemaps";
            list(side, &["-A", kinds]).await.iter().map(|o| name(o).to_owned()).collect()
        };
        let what = format!("nothing of it stays in {}", side.name());
        within(SOON, &what, left, Vec::<String>::is_empty).await;
    }
    let nodes = list(rome, &["nodes"]).await;
    assert!(!nodes.iter().any(|node| name(node).starts_with("liqo-")), "{nodes:#?}");
}
