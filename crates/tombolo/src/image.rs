//! `tombolo image`: this program as a container image.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tombolo_testbed::images;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// The file to write
    #[arg(long, short, default_value = "tombolo.tar")]
    output: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(is_static(), "only the static program makes an image: `make image` builds it");
    let image = images::tombolo(&own_program()?);
    image.write(&arguments.output)?;
    let size = file_size(&arguments.output)?;
    println!("{} has {}, {:.1} MB", arguments.output.display(), image.name(), size as f64 / 1e6);
    Ok(())
}

/// A program that is linked to nothing runs in an image with nothing else in it.
pub fn is_static() -> bool {
    cfg!(target_env = "musl")
}

pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("find this program's file")
}

fn file_size(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path);
    Ok(found.with_context(|| format!("read {}", path.display()))?.len())
}
