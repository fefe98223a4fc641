//! `tombolo playground`: real clusters on the user's own machine.

mod bars;
mod logs;
mod shell;
mod status;
mod up;

use anyhow::{Context, Result};
use tombolo_testbed::{Cluster, Progress, Testbed};

/// What the testbed of the playground is called among those of the machine.
const NAME: &str = "playground";

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Start the clusters; asked twice, it mends what does not run
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

pub fn run(command: Command) -> Result<()> {
    match command {
        Command::Up(arguments) => up::run(&arguments),
        Command::Prepare => prepare(),
        Command::Status => status::run(),
        Command::Kubeconfig { cluster } => kubeconfig(&cluster),
        Command::Shell(arguments) => shell::run(&arguments),
        Command::Logs(arguments) => logs::run(&arguments),
        Command::Down { all } => down(all),
    }
}

fn prepare() -> Result<()> {
    let bars = bars::Bars::new();
    tombolo_testbed::prepare(&bars.progress())?;
    Ok(())
}

fn kubeconfig(name: &str) -> Result<()> {
    let testbed = existing()?;
    println!("{}", cluster(&testbed, name)?.kubeconfig().display());
    Ok(())
}

fn down(all: bool) -> Result<()> {
    let mut removed = Vec::new();
    if let Some(testbed) = Testbed::find(NAME, Progress::silent())? {
        testbed.remove()?;
        removed.push(NAME.to_owned());
    }
    removed.extend(Testbed::sweep(all)?);
    match removed.as_slice() {
        [] => println!("Nothing is running: nothing to remove."),
        names => println!("Removed: {}.", names.join(", ")),
    }
    Ok(())
}

/// The playground that runs, with the program's own advice when there is none.
fn existing() -> Result<Testbed> {
    Testbed::find(NAME, Progress::silent())?
        .context("no playground is running: `sudo tombolo playground up` starts one")
}

fn cluster<'a>(testbed: &'a Testbed, name: &str) -> Result<&'a Cluster> {
    let all = testbed.clusters();
    all.iter()
        .find(|cluster| cluster.name() == name)
        .with_context(|| {
            let names: Vec<&str> = all.iter().map(Cluster::name).collect();
            format!(
                "there is no cluster {name:?}; there are: {}",
                names.join(", ")
            )
        })
}
