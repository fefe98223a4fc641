//! Answers the kubelet's probes: alive as long as it answers, ready when the component says so. What
//! Prometheus asks for is answered on the same port.

use std::io;

use axum::{
    Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, sync::watch};

use crate::{listen, metrics, shutdown::Shutdown, task::Task};

/// Name of the task that answers probes.
pub const TASK: &str = "probes";

/// Probes are not answered.
#[derive(Debug, thiserror::Error)]
#[error("serve health probes on port {port}")]
pub struct Error {
    /// The port of the probes.
    port: u16,
    /// What failed.
    source: io::Error,
}

/// Answers in a task of its own, until shutdown.
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
    answer(port, ready, shutdown).await.map_err(|source| Error { port, source })
}

async fn answer(port: u16, ready: watch::Receiver<bool>, shutdown: Shutdown) -> io::Result<()> {
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
        .route("/metrics", get(async || measured()));
    axum::serve(listener, router).with_graceful_shutdown(shutdown.triggered_owned()).await
}

fn measured() -> Response {
    match metrics::text() {
        Ok(text) => ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
