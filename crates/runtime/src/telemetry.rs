//! Logs: one line an event, to standard output. `RUST_LOG` says how much.

use tracing_subscriber::EnvFilter;

/// What is logged unless `RUST_LOG` says otherwise. `kube_runtime` warns of each attempt of a watch
/// that is refused; a watch reports its failures itself, once.
pub(crate) const FILTER: &str = "info,kube_client=off,kube_runtime=error";

/// From here on, events are logged.
pub fn init() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(FILTER));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .with_target(true)
        .compact()
        .try_init()
        .ok();
}
