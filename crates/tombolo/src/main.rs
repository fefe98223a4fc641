//! The program `tombolo`: one file a subcommand.

mod bars;
mod component;
mod connection;
mod image;
mod install;
mod offload;
mod peer;
mod peering;
mod peers;
mod playground;
mod status;
mod uninstall;
mod unoffload;
mod unpeer;
mod watching;

use clap::{Parser, Subcommand};

/// Joins Kubernetes clusters into one.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install Tombolo in a cluster, or bring it up to date
    Install(install::Arguments),
    /// Remove Tombolo from a cluster, and leave it as it was before
    Uninstall(uninstall::Arguments),
    /// Join another cluster: its resources become a node of this one
    Peer(peer::Arguments),
    /// Part from another cluster
    Unpeer(unpeer::Arguments),
    /// Let a namespace reach into other clusters
    Offload(offload::Arguments),
    /// Bring a namespace home
    Unoffload(unoffload::Arguments),
    /// Show this cluster, its peers, and what is lent and used
    Status(status::Arguments),
    /// Real clusters on this machine, to try things with
    Playground(playground::Arguments),
    /// Write this program as a container image (an OCI tar)
    Image(image::Arguments),
    #[command(flatten)]
    Component(component::Component),
}

fn main() -> std::process::ExitCode {
    // Whoever was first to choose a provider has chosen the same.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let result = match Arguments::parse().command {
        Command::Install(arguments) => install::run(&arguments),
        Command::Uninstall(arguments) => uninstall::run(&arguments),
        Command::Peer(arguments) => peer::run(&arguments),
        Command::Unpeer(arguments) => unpeer::run(&arguments),
        Command::Offload(arguments) => offload::run(&arguments),
        Command::Unoffload(arguments) => unoffload::run(&arguments),
        Command::Status(arguments) => status::run(&arguments),
        Command::Playground(arguments) => playground::run(arguments),
        Command::Image(arguments) => image::run(&arguments),
        Command::Component(component) => component::run(component),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tombolo: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
