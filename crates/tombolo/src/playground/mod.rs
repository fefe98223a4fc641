//! `tombolo playground`: real clusters on the user's own machine.

mod demo;
mod logs;
mod shell;
mod status;
mod up;

use anyhow::{Context, Result};
use tombolo_testbed::{Cluster, Progress, Testbed};

use crate::bars;

const DEFAULT_NAME: &str = "playground";

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Name of the playground, to run several
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start clusters, peer them and run an application in all
    ///
    /// Run it again to restart nodes and components that have stopped.
    Up(up::Arguments),
    /// Build and download everything the clusters need
    ///
    /// `up` does this too. Kubernetes, etcd and CoreDNS are built from source, which takes half an
    /// hour or more on two cores, and only once.
    Prepare,
    /// Show clusters, nodes, processes and memory
    Status,
    /// Print the path of a cluster's kubeconfig
    Kubeconfig {
        /// Name of the cluster
        cluster: String,
    },
    /// Open a shell with kubectl set up for a cluster
    Shell(shell::Arguments),
    /// List the logs of all components, or print one
    Logs(logs::Arguments),
    /// Remove the clusters
    Down {
        /// Also remove other playgrounds and clusters of tests, even while in use
        #[arg(long)]
        all: bool,
    },
}

pub fn run(arguments: Arguments) -> Result<()> {
    let name = &arguments.name;
    match arguments.command {
        Command::Up(arguments) => up::run(name, &arguments),
        Command::Prepare => prepare(),
        Command::Status => status::run(&existing(name)?),
        Command::Kubeconfig { cluster } => kubeconfig(&existing(name)?, &cluster),
        Command::Shell(arguments) => shell::run(&existing(name)?, &arguments),
        Command::Logs(arguments) => logs::run(&existing(name)?, &arguments),
        Command::Down { all } => down(name, all),
    }
}

fn prepare() -> Result<()> {
    let bars = bars::Bars::new();
    tombolo_testbed::prepare(&bars.progress())?;
    Ok(())
}

fn kubeconfig(testbed: &Testbed, name: &str) -> Result<()> {
    println!("{}", cluster(testbed, name)?.kubeconfig().display());
    Ok(())
}

fn down(name: &str, all: bool) -> Result<()> {
    let removed = Testbed::sweep(|testbed| all || testbed == name)?;
    match removed.as_slice() {
        [] => println!("No clusters to remove."),
        names => println!("Removed: {}.", names.join(", ")),
    }
    for dir in Testbed::unreadable() {
        eprintln!(
            "{} belongs to clusters of another version of tombolo: remove them with that version",
            dir.display()
        );
    }
    Ok(())
}

/// The running playground; fails with advice when there is none.
fn existing(name: &str) -> Result<Testbed> {
    Testbed::find(name, Progress::silent())?
        .context("no playground is running: start one with `sudo tombolo playground up`")
}

fn cluster<'a>(testbed: &'a Testbed, name: &str) -> Result<&'a Cluster> {
    let all = testbed.clusters();
    all.iter().find(|cluster| cluster.name() == name).with_context(|| {
        let names: Vec<&str> = all.iter().map(Cluster::name).collect();
        format!("there is no cluster {name:?}; there are: {}", names.join(", "))
    })
}
