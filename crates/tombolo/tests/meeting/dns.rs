//! A DNS server beside rome's nodes that lists milan, and which rome's own DNS asks.

use serde_json::json;
use tombolo_testbed::Cluster;
use tombolo_testing::DnsServer;

use crate::common::get;

/// Serves, and tells rome to search there. It ends with what is returned.
pub async fn serve(rome: &Cluster, milan: &Cluster) -> DnsServer {
    let node = rome.node(1);
    let mut dns = DnsServer::new(node.network_namespace(), node.address());
    let service = get(milan, &["service", "-n", "liqo", "liqo-auth"]).await;
    dns.serve(
        30,
        &format!(
            "clusters PTR milan.clusters\nmilan.clusters SRV 0 0 {} auth.milan\nauth.milan A {}",
            service["spec"]["ports"][0]["nodePort"],
            milan.node(1).address()
        ),
    );
    forward(rome, &dns).await;
    let domain = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "SearchDomain",
        "metadata": { "name": "company" },
        "spec": { "domain": "clusters.example.com." },
    });
    rome.apply(&domain.to_string()).await.expect("a SearchDomain");
    dns
}

/// The cluster's DNS asks that server for its zone, as an administrator would set it up.
async fn forward(cluster: &Cluster, dns: &DnsServer) {
    let mut config = get(cluster, &["configmap", "-n", "kube-system", "coredns"]).await;
    let before = config["data"]["Corefile"].as_str().expect("a Corefile");
    let stub = format!("example.com:53 {{\n    errors\n    forward . {}\n}}\n", dns.address());
    config["data"]["Corefile"] = format!("{before}\n{stub}").into();
    let patch = json!({ "data": config["data"] }).to_string();
    for arguments in [
        &["patch", "configmap", "coredns", "--type=merge", "-p", &patch][..],
        &["rollout", "restart", "deployment/coredns"],
        &["rollout", "status", "deployment/coredns", "--timeout=60s"],
    ] {
        let arguments = [&["-n", "kube-system"], arguments].concat();
        cluster.kubectl(&arguments).await.expect("CoreDNS asks the server");
    }
}
