//! All the way back, as a user goes it: nothing offloaded, nobody peered, nothing installed.

use tombolo_testbed::Testbed;

use super::{SOON, list, name, tombolo, within};

/// Takes namespace `shop` of rome home, ends the peering with milan, whatever rome calls it, and
/// removes the product from both. In the end the namespace goes too.
pub async fn go(bed: &Testbed, milan_in_rome: &str) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    tombolo(rome, &["unoffload", "namespace", "shop"]).await;
    let away = async || {
        let pods = list(rome, &["pods", "-n", "shop"]).await;
        pods.iter().filter(|pod| pod["spec"]["nodeName"] == "liqo-milan").count()
    };
    within(SOON, "all pods are home", away, |count| *count == 0).await;
    let twins = async || milan.kubectl(&["get", "namespace", "shop"]).await;
    within(SOON, "milan has no shop", twins, Result::is_err).await;
    tombolo(rome, &["unpeer", milan_in_rome]).await;
    let nodes = list(rome, &["nodes"]).await;
    assert!(!nodes.iter().any(|node| name(node).starts_with("liqo-")), "{nodes:#?}");
    for cluster in bed.clusters() {
        tombolo(cluster, &["uninstall"]).await;
    }
    rome.kubectl(&["delete", "namespace", "shop"]).await.expect("the namespace goes");
}
