//! Logs: lines on standard output, filtered by `RUST_LOG`.

use tracing_subscriber::EnvFilter;

/// The filter without `RUST_LOG`. `kube_runtime` would warn of every retry of a refused watch;
/// [`Watched`](crate::observe::Watched) logs the first failure only.
pub(crate) const FILTER: &str = "info,kube_client=off,kube_runtime=error";

/// Starts logging.
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
