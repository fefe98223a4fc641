//! Install and uninstall on one cluster without peers.

mod common;

use std::time::Instant;

use common::look::Before;
use common::{SOON, get, list, refused, tombolo, try_tombolo, within};
use tombolo_testbed::{Cluster, ClusterSpec};

#[tokio::test]
async fn uninstall_leaves_nothing_behind() {
    let bed = common::bed("install", [ClusterSpec::new("rome")]).start().await.unwrap();
    let rome = bed.cluster("rome");
    let before = Before::of(&bed).await;

    let output = try_tombolo(rome, &["install", "--empty-token"]).await;
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Tombolo runs in rome"), "{said}");
    shows_the_progress_of_each_component(&String::from_utf8_lossy(&output.stderr));
    let pods = list(rome, &["pods", "-n", "liqo"]).await;
    assert_eq!(pods.len(), 7, "five Deployments, and an agent on each of two nodes");
    let settings = get(rome, &["configmap", "-n", "liqo", "liqo-cluster"]).await["data"].clone();
    assert_eq!(settings["CLUSTER_NAME"], "rome");
    assert_eq!(settings["POD_CIDR"], "10.244.0.0/16");
    assert_eq!(settings["SERVICE_CIDR"], "10.96.0.0/16");
    let address = rome.node(1).address();
    assert_eq!(settings["API_SERVER_URL"], format!("https://{address}:6443"));

    tombolo(rome, &["install"]).await;
    let again = get(rome, &["configmap", "-n", "liqo", "liqo-cluster"]).await["data"].clone();
    assert_eq!(again, settings, "a cluster keeps its id");

    uninstall_without_a_report(rome).await;
    tombolo(rome, &["install"]).await;
    for node in rome.nodes() {
        let links = async || node.run(&["ip", "link", "show"]).await.unwrap();
        let what = format!("{} is part of it again", node.name());
        within(SOON, &what, links, |links| links.contains("liqo")).await;
    }

    uninstall_without_a_report(rome).await;
    let said = tombolo(rome, &["uninstall"]).await;
    assert!(said.contains("Nothing of Tombolo is left"), "{said}");
    before.is_back().await;
    let said = tombolo(rome, &["uninstall"]).await;
    assert!(said.contains("is not installed"), "{said}");
}

/// Without a terminal, each change is a line: how many components are ready, and which are not.
fn shows_the_progress_of_each_component(said: &str) {
    const COMPONENTS: [&str; 6] = ["agent", "auth", "control", "discovery", "gateway", "kubelet"];
    let mut lines = 0;
    for line in said.lines() {
        let Some((start, rest)) = line.split_once(" of 6 components ready; waiting for ") else {
            continue;
        };
        let ready: usize = start.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        let waiting: Vec<&str> = rest.split(", ").collect();
        assert_eq!(ready + waiting.len(), COMPONENTS.len(), "{line}");
        for each in waiting {
            let (component, count) = each.split_once(' ').expect("a component and a count");
            assert!(COMPONENTS.contains(&component) && count.contains('/'), "{line}");
        }
        lines += 1;
    }
    assert!(lines > 0, "{said}");
    let (_, ready) = said.split_once(" ready: ").expect("the last line lists all ready components");
    for component in COMPONENTS {
        assert!(ready.contains(component), "{component} is not ready in the end: {said}");
    }
}

/// The agent of one node does not report: the error names it, and the components stay.
async fn uninstall_without_a_report(cluster: &Cluster) {
    let silent = cluster.node(2);
    let agent = async |signal: &str| {
        silent
            .run(&["pkill", signal, "-f", "^[^ ]*tombolo agent"])
            .await
            .expect("an agent is there")
    };
    agent("-STOP").await;
    let start = Instant::now();
    let said = refused(cluster, &["uninstall", "--timeout", "5"]).await;
    let took = start.elapsed();
    agent("-CONT").await;
    for part in ["after 5 s", "the agent on node rome-2", "kubectl -n liqo logs", "delete node"] {
        assert!(said.contains(part), "{part:?} is not in {said}");
    }
    assert!(!said.contains("on node rome-1. "), "it has reported: {said}");
    assert!(took < SOON / 2, "it took {took:?}");
    let kept = ["daemonset/liqo-agent", "deployment/liqo-gateway", "configmap/liqo-cluster"];
    for object in kept {
        cluster.kubectl(&["get", "-n", "liqo", object]).await.expect("it is still needed");
    }
}
