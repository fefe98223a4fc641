//! `tombolo image`: this program as a container image.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tombolo_testbed::images;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Path of the OCI tar to write
    #[arg(long, short, default_value = "tombolo.tar")]
    output: PathBuf,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    ensure!(is_static(), "only a static build can be packed into an image: run `make image`");
    let image = images::tombolo(&own_program()?);
    image.write(&arguments.output)?;
    let size = file_size(&arguments.output)?;
    println!("{}: image {}, {:.1} MB", arguments.output.display(), image.name(), size as f64 / 1e6);
    Ok(())
}

/// Whether this program is statically linked, so that it runs in an image without libraries.
pub fn is_static() -> bool {
    cfg!(target_env = "musl")
}

pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("find the path of this program")
}

fn file_size(path: &Path) -> Result<u64> {
    let found = std::fs::metadata(path);
    Ok(found.with_context(|| format!("read {}", path.display()))?.len())
}
