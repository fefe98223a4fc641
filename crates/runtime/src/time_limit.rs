//! A time limit for the headers of a response. Its body has no limit: a watch stays open for long.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use futures::future::BoxFuture;
use http::Request;
use kube::client::Body;
use tokio::time::timeout;
use tower::{BoxError, Service};

const LIMIT: Duration = Duration::from_secs(15);

/// An extension of a request without a time limit: the log of a silent container, for example, is
/// followed before its first line.
#[derive(Clone, Copy, Debug)]
pub struct Unlimited;

/// The server hangs, or packets to it are dropped.
#[derive(Debug, thiserror::Error)]
#[error("no response within {} s", LIMIT.as_secs())]
struct NoResponse;

/// Fails requests without a response in time.
#[derive(Clone, Debug)]
pub(crate) struct Limited<S>(pub S);

impl<S, A> Service<Request<Body>> for Limited<S>
where
    S: Service<Request<Body>, Response = A, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = A;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<A, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_limited = request.extensions().get::<Unlimited>().is_none();
        let response = self.0.call(request);
        Box::pin(async move {
            match is_limited {
                true => timeout(LIMIT, response).await.map_err(|_| NoResponse)?,
                false => response.await,
            }
        })
    }
}
