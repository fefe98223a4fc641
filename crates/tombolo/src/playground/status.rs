//! `tombolo playground status`

use std::time::Duration;

use anyhow::Result;
use comfy_table::{ContentArrangement, Table, presets};
use k8s_openapi::api::core::v1::Node as NodeObject;
use kube::Api;
use tombolo_testbed::{Cluster, KUBERNETES, Node, Testbed};

pub fn run(testbed: &Testbed) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    print(&runtime, testbed)
}

pub fn print(runtime: &tokio::runtime::Runtime, testbed: &Testbed) -> Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(["CLUSTER", "NODE", "ADDRESS", "STATE", "RUNNING", "MEMORY"]);
    for cluster in testbed.clusters() {
        let ready = runtime.block_on(ready_nodes(cluster));
        for node in cluster.nodes() {
            table.add_row(row(cluster, node, ready.as_deref()));
        }
    }
    println!("\nKubernetes {KUBERNETES}\n{table}");
    Ok(())
}

fn row(cluster: &Cluster, node: &Node, ready: Option<&[String]>) -> [String; 6] {
    let state = match ready {
        _ if !node.is_up() => "down",
        None => "API server does not answer",
        Some(names) if names.iter().any(|name| name == node.name()) => "Ready",
        Some(_) => "NotReady",
    };
    let (running, wanted) = (node.running(), node.components());
    let missing: Vec<&str> = wanted
        .iter()
        .filter(|component| !running.contains_key(component))
        .map(|component| component.name())
        .collect();
    let programs = if missing.is_empty() {
        format!("{} of {}", running.len(), wanted.len())
    } else {
        format!("without {}", missing.join(", "))
    };
    [
        cluster.name().to_owned(),
        node.name().to_owned(),
        node.address().to_string(),
        state.to_owned(),
        programs,
        format!("{} MiB", node.memory() / (1 << 20)),
    ]
}

/// The names of the nodes that are Ready; None when nobody answers.
async fn ready_nodes(cluster: &Cluster) -> Option<Vec<String>> {
    let ask = async {
        let nodes: Api<NodeObject> = Api::all(cluster.client().await.ok()?);
        nodes.list(&kube::api::ListParams::default()).await.ok()
    };
    let nodes = tokio::time::timeout(Duration::from_secs(3), ask).await.ok()??;
    let is_ready = |node: &NodeObject| {
        let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    Some(
        nodes
            .iter()
            .filter(|node| is_ready(node))
            .filter_map(|node| node.metadata.name.clone())
            .collect(),
    )
}
