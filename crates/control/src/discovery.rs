//! Finds other clusters of the local network, and announces this one.

use tokio::sync::watch;
use tombolo_runtime::{health, settings::Settings, shutdown::Shutdown};

/// Runs until the end is asked for.
pub async fn run(_settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let (_ready, is_ready) = watch::channel(true);
    health::serve(10281, is_ready, shutdown).await?;
    Ok(())
}
