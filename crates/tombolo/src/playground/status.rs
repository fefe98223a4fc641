//! `tombolo playground status`

use anyhow::Result;
use comfy_table::{Table, presets};
use tombolo_testbed::{Cluster, KUBERNETES, Node, Testbed};

pub fn run(testbed: &Testbed) -> Result<()> {
    // Only root can read the namespaces of the nodes' processes.
    tombolo_testbed::require_root()?;
    print(&tokio::runtime::Runtime::new()?, testbed)
}

pub fn print(runtime: &tokio::runtime::Runtime, testbed: &Testbed) -> Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["CLUSTER", "NODE", "ADDRESS", "STATE", "RUNNING", "MEMORY"]);
    for cluster in testbed.clusters() {
        let ready = runtime.block_on(cluster.ready_nodes());
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
    let programs = if running.is_empty() {
        "nothing".to_owned()
    } else if missing.is_empty() {
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
