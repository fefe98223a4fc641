//! The program `tombolo`: one file a subcommand.

mod bars;
mod component;
mod connection;
mod image;
mod install;
mod playground;

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
