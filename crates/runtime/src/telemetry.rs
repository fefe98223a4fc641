//! Logs: one line an event, to standard output. `RUST_LOG` says how much.

use tracing_subscriber::EnvFilter;

/// From here on, events are logged.
pub fn init() {
    let filter = EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| EnvFilter::new("info,kube_client=off,kube_runtime=warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(true)
        .compact()
        .try_init()
        .ok();
}
