//! Rate limits by client address, by wrong tokens from an address, and by cluster.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{ConnectInfo, Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tombolo_api::ClusterId;
use tombolo_core::limit::{Rate, RateLimiter, origin};
use tracing::debug;

use super::{Auth, Failure};

/// Requests per address: two hundred clusters may share one address behind a NAT.
const REQUESTS: Rate = Rate { burst: 1000, every: Duration::from_millis(50) };
/// New connections per address: more than requests, so that clients get a 429 instead of a closed
/// connection.
const CONNECTIONS: Rate = Rate { burst: 2000, every: Duration::from_millis(10) };
/// Wrong tokens per address. Above the limit tokens are not compared.
const WRONG_TOKENS: Rate = Rate { burst: 100, every: Duration::from_secs(2) };
/// Admitted requests per cluster, each of which makes work for the controllers.
const IDENTITIES: Rate = Rate { burst: 30, every: Duration::from_secs(2) };

/// Addresses, and clusters, that are tracked.
const MAX_TRACKED: usize = 4096;

/// All rate limits.
pub(super) struct Limits {
    start: Instant,
    connections: Mutex<RateLimiter<IpAddr>>,
    requests: Mutex<RateLimiter<IpAddr>>,
    wrong_tokens: Mutex<RateLimiter<IpAddr>>,
    identities: Mutex<RateLimiter<ClusterId>>,
}

impl Limits {
    pub fn new() -> Self {
        let by_address = |rate| Mutex::new(RateLimiter::new(rate, MAX_TRACKED));
        Self {
            start: Instant::now(),
            connections: by_address(CONNECTIONS),
            requests: by_address(REQUESTS),
            wrong_tokens: by_address(WRONG_TOKENS),
            identities: Mutex::new(RateLimiter::new(IDENTITIES, MAX_TRACKED)),
        }
    }

    /// Whether to accept one more connection from an address.
    pub fn connection(&self, from: IpAddr) -> bool {
        lock(&self.connections).take(&origin(from), self.now()).is_ok()
    }

    fn request(&self, from: IpAddr) -> Result<(), Failure> {
        let taken = lock(&self.requests).take(&origin(from), self.now());
        taken.map_err(|wait| Failure::too_many("requests from your address", wait))
    }

    /// Whether to compare a token from an address.
    pub fn check_tokens(&self, from: IpAddr) -> Result<(), Failure> {
        let checked = lock(&self.wrong_tokens).check(&origin(from), self.now());
        checked.map_err(|wait| Failure::too_many("wrong tokens from your address", wait))
    }

    /// Counts a wrong token.
    pub fn count_wrong_token(&self, from: IpAddr) {
        lock(&self.wrong_tokens).charge(&origin(from), self.now());
    }

    /// Whether to handle one more request of a cluster that has proved its id.
    pub fn identity(&self, cluster: &ClusterId) -> Result<(), Failure> {
        let taken = lock(&self.identities).take(cluster, self.now());
        taken.map_err(|wait| Failure::too_many("requests of this cluster", wait))
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

fn lock<K>(table: &Mutex<RateLimiter<K>>) -> MutexGuard<'_, RateLimiter<K>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Applies the limit of requests before the body is read.
pub(super) async fn by_address(
    State(auth): State<Arc<Auth>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    match auth.limits.request(from.ip()) {
        Ok(()) => next.run(request).await,
        Err(failure) => {
            debug!(%from, "too many requests");
            failure.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_tracked_clients_is_limited() {
        let limits = Limits::new();
        for number in 0..10_000_u32 {
            let from = IpAddr::from(number.to_be_bytes());
            let cluster: ClusterId = format!("invented-{number}").parse().unwrap();
            limits.connection(from);
            let _ = limits.request(from);
            limits.count_wrong_token(from);
            let _ = limits.identity(&cluster);
        }
        for addresses in [&limits.connections, &limits.requests, &limits.wrong_tokens] {
            assert!(lock(addresses).len() <= MAX_TRACKED);
        }
        assert!(lock(&limits.identities).len() <= MAX_TRACKED);
    }
}
