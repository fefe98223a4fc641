//! Unoffload, unpeer and uninstall, as a user does it.

use tombolo_testbed::Testbed;

use super::{SOON, list, name, tombolo, within};

/// Unoffloads namespace `shop` of rome, unpeers from milan under its name in rome, uninstalls both,
/// and deletes the namespace.
pub async fn go(bed: &Testbed, milan_in_rome: &str) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    tombolo(rome, &["unoffload", "namespace", "shop"]).await;
    let away = async || {
        let pods = list(rome, &["pods", "-n", "shop"]).await;
        pods.iter().filter(|pod| pod["spec"]["nodeName"] == "liqo-milan").count()
    };
    within(SOON, "no pod is offloaded", away, |count| *count == 0).await;
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
