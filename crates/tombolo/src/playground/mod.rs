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
    /// Which playground, for those who want several
    #[arg(long, global = true, default_value = DEFAULT_NAME)]
    name: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start clusters, join them and run an application in all; asked twice, it mends what does not run
    Up(up::Arguments),
    /// Build and fetch what the clusters need, without starting any
    Prepare,
    /// Show clusters, nodes and what runs on them
    Status,
    /// Print the path of a cluster's kubeconfig
    Kubeconfig {
        /// The cluster's name
        cluster: String,
    },
    /// Open a shell with kubectl set up for a cluster
    Shell(shell::Arguments),
    /// List the logs of all components, or print one
    Logs(logs::Arguments),
    /// Remove the clusters and all they have made
    Down {
        /// Also the clusters of tests, even if they are in use
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
        [] => println!("Nothing is running: nothing to remove."),
        names => println!("Removed: {}.", names.join(", ")),
    }
    for dir in Testbed::unreadable() {
        eprintln!(
            "{} belongs to clusters of another version of tombolo: remove them with that one",
            dir.display()
        );
    }
    Ok(())
}

/// The playground that runs, with the program's own advice when there is none.
fn existing(name: &str) -> Result<Testbed> {
    Testbed::find(name, Progress::silent())?
        .context("no playground is running: `sudo tombolo playground up` starts one")
}

fn cluster<'a>(testbed: &'a Testbed, name: &str) -> Result<&'a Cluster> {
    let all = testbed.clusters();
    all.iter().find(|cluster| cluster.name() == name).with_context(|| {
        let names: Vec<&str> = all.iter().map(Cluster::name).collect();
        format!("there is no cluster {name:?}; there are: {}", names.join(", "))
    })
}
