//! A cloud load balancer and its controller.

use std::net::Ipv4Addr;

use serde_json::json;
use tombolo_testbed::{Cluster, Testbed};

use crate::auth_service;
use crate::nginx::Nginx;

/// Forwards TCP port 443 of an address outside of the nodes.
#[derive(Debug)]
pub struct Balancer {
    pub nginx: Nginx,
    pub address: Ipv4Addr,
}

impl Balancer {
    /// A load balancer for the current node port of the auth service, on all nodes.
    pub async fn of(bed: &Testbed, cluster: &Cluster) -> Self {
        let service = auth_service(cluster).await;
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        let port = &service["spec"]["ports"][0];
        let node = |address| format!("server {address}:{};", port["nodePort"]);
        let nodes: Vec<String> = cluster.nodes().iter().map(|it| node(it.address())).collect();
        let (namespace, address) = bed.outside();
        let mut nginx = Nginx::new(namespace);
        nginx.run(&format!(
            "stream {{
    log_format connection '$remote_addr to $upstream_addr sent $bytes_received got $bytes_sent';
    access_log access connection;
    upstream nodes {{ {} }}
    server {{ listen {address}:{}; proxy_pass nodes; }}
}}
",
            nodes.join(" "),
            port["port"]
        ));
        let status = json!({ "loadBalancer": { "ingress": [{ "ip": address }] } });
        let patch = json!({ "status": status }).to_string();
        let patch = ["--subresource=status", "--type=merge", "-p", &patch];
        let service = ["patch", "service", "-n", "liqo", "liqo-auth"];
        cluster.kubectl(&[&service[..], &patch].concat()).await.expect("a status");
        Self { nginx, address }
    }
}
