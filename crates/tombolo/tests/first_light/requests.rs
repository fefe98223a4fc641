//! Step 4: one Service, pods in two clusters, and clients everywhere.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::common::load::{Client, hellos, request_script};
use crate::common::{get, name};
use crate::story::{NODE, Story, URL, story};

const ENOUGH: usize = 60;

#[tokio::test]
async fn the_deployment_runs_in_both_clusters() {
    let story = story().await;
    let pods = story.pods().await;
    assert_eq!(pods.len(), 4);
    let nodes: BTreeSet<&str> =
        pods.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    assert_eq!(nodes, BTreeSet::from([NODE, "rome-1", "rome-2"]));
}

#[tokio::test]
async fn pods_of_both_clusters_answer_pods_of_both_clusters() {
    let story = story().await;
    let expected: BTreeSet<String> =
        story.pods().await.iter().map(|pod| name(pod).to_owned()).collect();
    for client in story.everybody().filter(|client| !client.on_host) {
        let answered = client.responders(URL, ENOUGH).await;
        assert_eq!(answered, expected, "asked from {}", client.node);
    }
}

#[tokio::test]
async fn nodes_and_host_network_pods_reach_the_service() {
    let story = story().await;
    let expected: BTreeSet<String> =
        story.pods().await.iter().map(|pod| name(pod).to_owned()).collect();
    for client in story.everybody().filter(|client| client.on_host) {
        let answered = client.responders(URL, ENOUGH).await;
        assert_eq!(answered, expected, "asked from the host {}", client.node);
    }
    for cluster in story.bed.clusters() {
        let service = get(cluster, &["service", "-n", "shop", "web"]).await;
        let address = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
        let url = format!("http://{address}/cgi-bin/hello");
        for node in cluster.nodes() {
            let said = node.run(&["sh", "-c", &request_script(&url, ENOUGH)]).await.unwrap();
            let answered: BTreeSet<String> =
                hellos(&said).unwrap().into_iter().map(|hello| hello.pod).collect();
            assert_eq!(answered, expected, "asked from the node {}", node.name());
        }
    }
}

/// The translated address in `there` of a pod of the other cluster.
async fn translated(story: &Story, address: Ipv4Addr, there: &str) -> Ipv4Addr {
    let status = story.tunnel(there).await["status"].clone();
    let network: Ipv4Net = status["remoteNATPodCIDR"].as_str().unwrap().parse().unwrap();
    let host = u32::from(address) & u32::from(network.hostmask());
    Ipv4Addr::from(u32::from(network.network()) | host)
}

#[tokio::test]
async fn a_server_sees_the_client_pod_and_not_a_gateway() {
    let story = story().await;
    let clients: Vec<&Client> = story.everybody().filter(|client| !client.on_host).collect();
    for client in clients {
        let home = if client.node.starts_with("rome") { "rome" } else { "milan" };
        for hello in client.send_all(URL, ENOUGH).await {
            let there = if hello.node.starts_with("rome") { "rome" } else { "milan" };
            let seen = if home == there {
                client.address
            } else {
                translated(&story, client.address, there).await
            };
            assert_eq!(hello.client, seen, "{} → {}", client.node, hello.node);
        }
    }
}
