//! The program `tombolo`: one file a subcommand.

mod image;
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
    /// Real clusters on this machine, to try things with
    #[command(subcommand)]
    Playground(playground::Command),
    /// Write this program as a container image (an OCI tar)
    Image(image::Arguments),
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Playground(command) => playground::run(command),
        Command::Image(arguments) => image::run(&arguments),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tombolo: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
