//! Memory and CPU of each component while clusters are peered, with an idle application in both.
//! The baseline is kubelet and kube-proxy of the same nodes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use tombolo_testbed::{Cluster, Node, Testbed};

use crate::figures::{print, table};
use crate::processes::Process;

/// Until the components have settled after the start.
const SETTLE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_secs(30);

/// A process of a node and its CPU usage, in percent of one core.
struct Load<'a> {
    cluster: &'a str,
    node: &'a str,
    process: Process,
    share: f64,
}

pub async fn measure(bed: &Testbed) -> Result<()> {
    tokio::time::sleep(SETTLE).await;
    let nodes = bed.clusters().iter().flat_map(|c| c.nodes().iter().map(move |n| (c, n)));
    let all = try_join_all(nodes.map(|(cluster, node)| loads(cluster, node))).await?;
    show(&all.into_iter().flatten().collect::<Vec<_>>());
    Ok(())
}

async fn loads<'a>(cluster: &'a Cluster, node: &'a Node) -> Result<Vec<Load<'a>>> {
    let (before, start) = (Process::of(node).await?, Instant::now());
    tokio::time::sleep(LOOK).await;
    let (after, seconds) = (Process::of(node).await?, start.elapsed().as_secs_f64());
    let load = |process: Process| {
        let earlier = before.iter().find(|it| it.id == process.id && it.name == process.name);
        let earlier = earlier.with_context(|| format!("{} was restarted", process.name))?;
        let share = (process.time - earlier.time) / seconds * 100.0;
        Ok(Load { cluster: cluster.name(), node: node.name(), process, share })
    };
    after.into_iter().map(load).collect()
}

fn show(all: &[Load<'_>]) {
    let header = ["NODE", "PROCESS", "MEMORY", "OF KUBELET'S", "CPU", "OF KUBELET'S"];
    let mut rows = table(2, &header);
    for load in all {
        let kubelet = all.iter().find(|it| {
            it.node == load.node && !it.process.is_ours() && it.process.name == "kubelet"
        });
        let kubelet = kubelet.map_or((f64::NAN, f64::NAN), |it| (it.process.memory, it.share));
        let name = format!("{} {}", load.process.program, load.process.name);
        rows.add_row(row(load.node, &name, (load.process.memory, load.share), kubelet));
    }
    for cluster in ["rome", "milan"] {
        let sum = |ours: bool, name: Option<&str>| {
            let those = all.iter().filter(|it| {
                it.cluster == cluster
                    && it.process.is_ours() == ours
                    && name.is_none_or(|name| it.process.name == name)
            });
            those.fold((0.0, 0.0), |(memory, share), it| {
                (memory + it.process.memory, share + it.share)
            })
        };
        rows.add_row(row(cluster, "tombolo, all", sum(true, None), sum(false, Some("kubelet"))));
    }
    let seconds = LOOK.as_secs();
    print(&format!("Idle, peered, with an application in both: over {seconds} s"), &rows);
}

fn row(place: &str, name: &str, (memory, share): (f64, f64), kubelet: (f64, f64)) -> [String; 6] {
    [
        place.to_owned(),
        name.to_owned(),
        format!("{memory:.1} MiB"),
        format!("{:.2} ×", memory / kubelet.0),
        format!("{share:.2} %"),
        format!("{:.2} ×", share / kubelet.1),
    ]
}
