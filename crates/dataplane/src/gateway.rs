//! The gateway: tunnels to other clusters, and translation of addresses between them.

pub mod machine;
pub mod probe;

use tokio::sync::watch;
use tombolo_runtime::{health, settings::Settings, shutdown::Shutdown};

/// Runs until the end is asked for.
pub async fn run(_settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let (_ready, is_ready) = watch::channel(true);
    health::serve(10282, is_ready, shutdown).await?;
    Ok(())
}
