//! Counts what is asked of the auth service, and what was answered.

use axum::{extract::Request, middleware::Next, response::Response};
use tombolo_runtime::metrics;

/// Passes a request on, and counts the answer.
pub(super) async fn count(request: Request, next: Next) -> Response {
    // Anybody can ask for any path: only those that there are get a counter of their own.
    let path = ["/info", "/identity", "/identity/certificate"]
        .into_iter()
        .find(|path| *path == request.uri().path())
        .unwrap_or("other");
    let response = next.run(request).await;
    metrics::answered(path, response.status().as_u16());
    response
}
