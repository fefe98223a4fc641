//! Answers the kubelet's probes: alive as long as it answers, ready when the component says so.

use std::net::Ipv4Addr;

use axum::{Router, http::StatusCode, routing::get};
use tokio::{net::TcpListener, sync::watch};

use crate::shutdown::Shutdown;

/// Serves `/healthz` and `/readyz` until the end is asked for.
pub async fn serve(
    port: u16,
    ready: watch::Receiver<bool>,
    shutdown: Shutdown,
) -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await?;
    let router = Router::new().route("/healthz", get(async || "ok")).route(
        "/readyz",
        get(async move || {
            if *ready.borrow() {
                (StatusCode::OK, "ok")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "not ready")
            }
        }),
    );
    axum::serve(listener, router).with_graceful_shutdown(shutdown.asked_owned()).await
}
