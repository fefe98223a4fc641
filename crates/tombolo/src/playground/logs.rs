//! `tombolo playground logs`

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use tombolo_testbed::{Component, Node, Testbed};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Name of the node, such as rome-1
    #[arg(requires = "component")]
    node: Option<String>,
    /// Name of the component, such as kubelet
    component: Option<String>,
    /// Follow the log
    #[arg(long, short, requires = "component")]
    follow: bool,
}

pub fn run(testbed: &Testbed, arguments: &Arguments) -> Result<()> {
    let (Some(node), Some(component)) = (&arguments.node, &arguments.component) else {
        return list(testbed);
    };
    let all: Vec<&Node> =
        testbed.clusters().iter().flat_map(tombolo_testbed::Cluster::nodes).collect();
    let Some(node) = all.iter().find(|candidate| candidate.name() == node) else {
        let names: Vec<&str> = all.iter().map(|node| node.name()).collect();
        bail!("there is no node {node:?}; there are: {}", names.join(", "));
    };
    let wanted = node.components();
    let Some(component) = wanted.iter().find(|candidate| candidate.name() == component) else {
        let names: Vec<&str> = wanted.iter().map(|component| component.name()).collect();
        bail!("{} has no {component:?}; it has: {}", node.name(), names.join(", "));
    };
    let log = node.log(*component);
    if arguments.follow {
        let error = Command::new("tail").args(["-n", "+1", "-F"]).arg(&log).exec();
        return Err(error).context("run tail");
    }
    print(&log)
}

fn list(testbed: &Testbed) -> Result<()> {
    for node in testbed.clusters().iter().flat_map(tombolo_testbed::Cluster::nodes) {
        for component in node.components() {
            println!("{}", line(node, component));
        }
    }
    println!("\n`tombolo playground logs NODE COMPONENT` prints a log, -f follows it.");
    Ok(())
}

fn line(node: &Node, component: Component) -> String {
    let log = node.log(component);
    format!("{:12} {:24} {}", node.name(), component.name(), log.display())
}

fn print(log: &Path) -> Result<()> {
    let failed = || format!("read {}", log.display());
    let mut file = File::open(log).with_context(failed)?;
    match std::io::copy(&mut file, &mut std::io::stdout()).map(drop) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.with_context(failed),
    }
}
