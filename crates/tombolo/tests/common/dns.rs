//! The DNS of a cluster.

use serde_json::json;
use tombolo_testbed::Cluster;

use super::get;

/// Adds a zone to CoreDNS, as an administrator would.
pub async fn also_serve(cluster: &Cluster, zone: &str, plugin: &str) {
    let mut config = get(cluster, &["configmap", "-n", "kube-system", "coredns"]).await;
    let before = config["data"]["Corefile"].as_str().expect("a Corefile");
    let block = format!("{zone}:53 {{\n    errors\n    {plugin}\n}}\n");
    config["data"]["Corefile"] = format!("{before}\n{block}").into();
    let patch = json!({ "data": config["data"] }).to_string();
    for arguments in [
        &["patch", "configmap", "coredns", "--type=merge", "-p", &patch][..],
        &["rollout", "restart", "deployment/coredns"],
        &["rollout", "status", "deployment/coredns", "--timeout=60s"],
    ] {
        let arguments = [&["-n", "kube-system"], arguments].concat();
        cluster.kubectl(&arguments).await.expect("CoreDNS serves one more zone");
    }
}
