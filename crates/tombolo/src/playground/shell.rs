//! `tombolo playground shell`

use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context, Result};
use tombolo_testbed::Testbed;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Name of the cluster
    cluster: String,
    /// Command to run instead of a shell
    #[arg(last = true)]
    command: Vec<String>,
}

pub fn run(testbed: &Testbed, arguments: &Arguments) -> Result<()> {
    let cluster = super::cluster(testbed, &arguments.cluster)?;
    let mut command = match arguments.command.split_first() {
        Some((program, rest)) => {
            let mut command = Command::new(program);
            command.args(rest);
            command
        }
        None => {
            let mut bash = Command::new("bash");
            bash.args(["--norc", "--noprofile"]).env("PS1", format!("{} \\w \\$ ", cluster.name()));
            bash
        }
    };
    let error = command
        .env("KUBECONFIG", cluster.kubeconfig())
        .env("PATH", testbed.path_with_kubectl())
        .exec();
    Err(error).with_context(|| format!("run {}", command.get_program().display()))
}
