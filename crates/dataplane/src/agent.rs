//! The agent: brings its node's network to what the cluster's nodes and peers ask for.

pub mod machine;

use tokio::sync::watch;
use tombolo_runtime::{health, settings::Settings, shutdown::Shutdown};

/// Runs until the end is asked for.
pub async fn run(_settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let (_ready, is_ready) = watch::channel(true);
    health::serve(10283, is_ready, shutdown).await?;
    Ok(())
}
