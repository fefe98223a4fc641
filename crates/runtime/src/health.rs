//! Liveness and readiness probes, and metrics for Prometheus, on one port. A component is alive as
//! long as it answers.

use std::io;

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, sync::watch};

use crate::{listen, metrics, shutdown::Shutdown, task::Task};

/// Name of the task that serves the probes.
pub const TASK: &str = "probes";

/// The probes can't be served.
#[derive(Debug, thiserror::Error)]
#[error("serve the probes on port {port}")]
pub struct Error {
    /// The port of the probes.
    port: u16,
    /// The cause.
    source: io::Error,
}

/// Serves the probes in a task of its own until shutdown.
pub fn start(
    port: u16,
    ready: watch::Receiver<bool>,
    shutdown: Shutdown,
) -> Task<Result<(), Error>> {
    Task::spawn_fallible(TASK, serve(port, ready, shutdown))
}

/// Serves `/healthz`, `/readyz` and `/metrics` until shutdown.
pub async fn serve(
    port: u16,
    ready: watch::Receiver<bool>,
    shutdown: Shutdown,
) -> Result<(), Error> {
    try_serve(port, ready, shutdown).await.map_err(|source| Error { port, source })
}

async fn try_serve(port: u16, ready: watch::Receiver<bool>, shutdown: Shutdown) -> io::Result<()> {
    let listener = TcpListener::from_std(listen::everywhere(port)?)?;
    let is_ready = async move || {
        if *ready.borrow() {
            (StatusCode::OK, "ok")
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, "not ready")
        }
    };
    let router = Router::new()
        .route("/healthz", get(async || "ok"))
        .route("/readyz", get(is_ready))
        .route("/metrics", get(async || metrics_response()));
    axum::serve(listener, router).with_graceful_shutdown(shutdown.asked_owned()).await
}

fn metrics_response() -> Response {
    match metrics::text() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
