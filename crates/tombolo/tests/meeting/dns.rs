//! A DNS server in rome's network that lists milan; rome's DNS forwards to it.

use serde_json::json;
use tombolo_testbed::Cluster;
use tombolo_testing::DnsServer;

use crate::common::{dns, get};

/// Starts the server and creates a SearchDomain in rome. It stops when the returned value is
/// dropped.
pub async fn serve(rome: &Cluster, milan: &Cluster) -> DnsServer {
    let node = rome.node(1);
    let mut server = DnsServer::new(node.network_namespace(), node.address());
    let service = get(milan, &["service", "-n", "liqo", "liqo-auth"]).await;
    server.serve(
        30,
        &format!(
            "clusters PTR milan.clusters\nmilan.clusters SRV 0 0 {} auth.milan\nauth.milan A {}",
            service["spec"]["ports"][0]["nodePort"],
            milan.node(1).address()
        ),
    );
    let forward = format!("forward . {}", server.address());
    dns::also_serve(rome, "example.com", &forward).await;
    let domain = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "SearchDomain",
        "metadata": { "name": "company" },
        "spec": { "domain": "clusters.example.com." },
    });
    rome.apply(&domain.to_string()).await.expect("a SearchDomain");
    server
}
