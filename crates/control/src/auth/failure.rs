//! Error responses.

use std::time::Duration;

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use tombolo_api::auth::{AuthError, Refusal};

#[derive(Debug)]
pub(super) struct Failure {
    status: StatusCode,
    error: AuthError,
    /// Value of Retry-After.
    retry_after: Option<Duration>,
}

impl Failure {
    pub fn new(status: StatusCode, error: &str) -> Self {
        Self::because(status, AuthError::new(error, Refusal::Other))
    }

    pub fn because(status: StatusCode, error: AuthError) -> Self {
        Self { status, error, retry_after: None }
    }

    pub fn unauthorized(reason: Refusal) -> Self {
        let error = if reason == Refusal::EmptyTokenRefused {
            "a token is required: the one in Secret liqo/auth-token of the issuing cluster"
        } else {
            "the token is not the one in Secret liqo/auth-token of the issuing cluster"
        };
        Self::because(StatusCode::UNAUTHORIZED, AuthError::new(error, reason))
    }

    /// A temporary failure, to be retried after a second.
    pub fn unavailable(error: &str) -> Self {
        let retry_after = Some(Duration::from_secs(1));
        Self { retry_after, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error) }
    }

    /// Too many of `what`; to be retried after `wait`.
    pub fn too_many(what: &str, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let error = format!("too many {what}: try again in {seconds} s");
        let retry_after = Some(Duration::from_secs(seconds));
        Self { retry_after, ..Self::new(StatusCode::TOO_MANY_REQUESTS, &error) }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.error)).into_response();
        if let Some(retry_after) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, retry_after.as_secs().into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_failures_have_retry_after() {
        for (failure, seconds) in [
            (Failure::unavailable("busy"), Some("1")),
            (Failure::too_many("requests", Duration::from_millis(1200)), Some("2")),
            (Failure::unauthorized(Refusal::WrongToken), None),
        ] {
            let response = failure.into_response();
            let header = response.headers().get(header::RETRY_AFTER);
            assert_eq!(header.and_then(|value| value.to_str().ok()), seconds);
        }
    }
}
