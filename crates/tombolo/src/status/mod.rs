//! `tombolo status`: this cluster, its peers, and borrowed and lent resources.

mod report;
mod table;

use anyhow::{Context, Result};

use crate::connection::Target;
use crate::install;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Output format
    #[arg(long, short, value_enum, default_value_t = Output::Table)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    Table,
    Json,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let report = tokio::runtime::Runtime::new()?.block_on(async {
        let connection = arguments.target.connect().await?;
        install::identity(&connection).await?;
        report::Report::read(&connection.client).await
    })?;
    match arguments.output {
        Output::Table => print!("{}", table::text(&report)),
        Output::Json => {
            println!("{}", serde_json::to_string_pretty(&report).context("write JSON")?);
        }
    }
    Ok(())
}
