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
    Playground(playground::Arguments),
    /// Write this program as a container image (an OCI tar)
    Image(image::Arguments),
}

fn main() -> std::process::ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Playground(arguments) => playground::run(arguments),
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
