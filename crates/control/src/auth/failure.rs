//! What a caller gets in the place of an answer.

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
    /// When it may help to come again.
    again: Option<Duration>,
}

impl Failure {
    pub fn new(status: StatusCode, error: &str) -> Self {
        Self::because(status, AuthError::new(error, Refusal::Other))
    }

    pub fn because(status: StatusCode, error: AuthError) -> Self {
        Self { status, error, again: None }
    }

    pub fn unauthorized(reason: Refusal) -> Self {
        let error = if reason == Refusal::EmptyTokenRefused {
            "it takes a token: the one in the Secret liqo/auth-token of the cluster asked"
        } else {
            "the token is not the one in the Secret liqo/auth-token of the cluster asked"
        };
        Self::because(StatusCode::UNAUTHORIZED, AuthError::new(error, reason))
    }

    /// It can't be done right now. A second later it may.
    pub fn not_now(error: &str) -> Self {
        let again = Some(Duration::from_secs(1));
        Self { again, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, error) }
    }

    /// Too many of `what`; there is room again after `wait`.
    pub fn too_many(what: &str, wait: Duration) -> Self {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        let error = format!("too many {what}: try again in {seconds} s");
        let again = Some(Duration::from_secs(seconds));
        Self { again, ..Self::new(StatusCode::TOO_MANY_REQUESTS, &error) }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.error)).into_response();
        if let Some(again) = self.again {
            response.headers_mut().insert(header::RETRY_AFTER, again.as_secs().into());
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_come_again_is_told_when() {
        for (failure, seconds) in [
            (Failure::not_now("busy"), Some("1")),
            (Failure::too_many("requests", Duration::from_millis(1200)), Some("2")),
            (Failure::unauthorized(Refusal::WrongToken), None),
        ] {
            let response = failure.into_response();
            let told = response.headers().get(header::RETRY_AFTER);
            assert_eq!(told.and_then(|value| value.to_str().ok()), seconds);
        }
    }
}
