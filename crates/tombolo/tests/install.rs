//! Install and uninstall, on one cluster that has no peer.

mod common;

use common::look::Look;
use common::{SOON, get, list, tombolo, within};
use tombolo_testbed::ClusterSpec;

#[tokio::test]
async fn a_cluster_is_afterwards_as_it_was_before() {
    let bed = common::bed("install", [ClusterSpec::new("rome")]).start().await.unwrap();
    let rome = bed.cluster("rome");
    common::load::pods_on_all_nodes(rome).await;
    let before = Look::at(rome).await;

    let said = tombolo(rome, &["install", "--empty-token"]).await;
    assert!(said.contains("Tombolo runs in rome"), "{said}");
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

    let said = tombolo(rome, &["uninstall"]).await;
    assert!(said.contains("Nothing of Tombolo is left"), "{said}");
    let differences = async || before.differences(&Look::at(rome).await);
    within(SOON, "rome is as it was before", differences, Vec::is_empty).await;
    let said = tombolo(rome, &["uninstall"]).await;
    assert!(said.contains("is not installed"), "{said}");
}
