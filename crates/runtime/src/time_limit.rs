//! A time limit for answers: whoever is asked has to begin to answer within it. How long the rest
//! of an answer takes, as that of a watch does, is not limited.

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

/// Put into the extensions of a request: its answer may begin at any time, as a log does that is
/// followed before there is anything in it.
#[derive(Clone, Copy, Debug)]
pub struct Unlimited;

/// It may hang, or be out of reach in a way that nobody tells.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {} s", LIMIT.as_secs())]
struct NoAnswer;

/// Asks, and gives up in time.
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
        let answer = self.0.call(request);
        Box::pin(async move {
            match is_limited {
                true => timeout(LIMIT, answer).await.map_err(|_| NoAnswer)?,
                false => answer.await,
            }
        })
    }
}
