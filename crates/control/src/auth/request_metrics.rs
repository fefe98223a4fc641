//! Counts requests to the auth service, by path and status code.

use axum::{extract::Request, middleware::Next, response::Response};
use tombolo_runtime::metrics;

/// Handles a request, and counts the response.
pub(super) async fn count(request: Request, next: Next) -> Response {
    // Unknown paths share a label value, so that clients can't create time series.
    let path = ["/info", "/identity", "/identity/certificate"]
        .into_iter()
        .find(|path| *path == request.uri().path())
        .unwrap_or("other");
    let response = next.run(request).await;
    metrics::count_auth_request(path, response.status().as_u16());
    response
}
