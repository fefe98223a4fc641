//! How often callers may come, by their address, by the tokens that they have shown there, and by the
//! cluster that they are.

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
use tombolo_core::limit::{Allowances, Rate, origin};
use tracing::debug;

use super::{Auth, Failure};

/// Requests from one address: two hundred clusters may come at the same time from behind one.
const REQUESTS: Rate = Rate { burst: 1000, every: Duration::from_millis(50) };
/// New connections from one address: more, so that whoever comes too often is told so.
const CONNECTIONS: Rate = Rate { burst: 2000, every: Duration::from_millis(10) };
/// Wrong tokens from one address. Any more are not even looked at.
const WRONG_TOKENS: Rate = Rate { burst: 100, every: Duration::from_secs(2) };
/// Requests of one cluster that make work for the control plane.
const IDENTITIES: Rate = Rate { burst: 30, every: Duration::from_secs(2) };

/// How many addresses, and how many clusters, are kept apart.
const MOST_KEPT: usize = 4096;

/// All limits by time.
pub(super) struct Limits {
    begin: Instant,
    connections: Mutex<Allowances<IpAddr>>,
    requests: Mutex<Allowances<IpAddr>>,
    wrong_tokens: Mutex<Allowances<IpAddr>>,
    identities: Mutex<Allowances<ClusterId>>,
}

impl Limits {
    pub fn new() -> Self {
        let by_address = |rate| Mutex::new(Allowances::new(rate, MOST_KEPT));
        Self {
            begin: Instant::now(),
            connections: by_address(CONNECTIONS),
            requests: by_address(REQUESTS),
            wrong_tokens: by_address(WRONG_TOKENS),
            identities: Mutex::new(Allowances::new(IDENTITIES, MOST_KEPT)),
        }
    }

    /// Whether one more connection is taken from there.
    pub fn connection(&self, from: IpAddr) -> bool {
        lock(&self.connections).take(&origin(from), self.now()).is_ok()
    }

    fn request(&self, from: IpAddr) -> Result<(), Failure> {
        let taken = lock(&self.requests).take(&origin(from), self.now());
        taken.map_err(|wait| Failure::too_many("requests have come from your address", wait))
    }

    /// Whether a token from there is looked at.
    pub fn may_show_a_token(&self, from: IpAddr) -> Result<(), Failure> {
        let left = lock(&self.wrong_tokens).left(&origin(from), self.now());
        left.map_err(|wait| Failure::too_many("wrong tokens have come from your address", wait))
    }

    /// It was wrong.
    pub fn wrong_token(&self, from: IpAddr) {
        lock(&self.wrong_tokens).charge(&origin(from), self.now());
    }

    /// Whether this cluster, which has shown that it is this cluster, is served once more.
    pub fn identity(&self, cluster: &ClusterId) -> Result<(), Failure> {
        let taken = lock(&self.identities).take(cluster, self.now());
        taken.map_err(|wait| Failure::too_many("requests of this cluster have come", wait))
    }

    fn now(&self) -> Duration {
        self.begin.elapsed()
    }
}

fn lock<K>(table: &Mutex<Allowances<K>>) -> MutexGuard<'_, Allowances<K>> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who comes too often is told so before anything is read.
pub(super) async fn by_address(
    State(auth): State<Arc<Auth>>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    match auth.limits.request(from.ip()) {
        Ok(()) => next.run(request).await,
        Err(failure) => {
            debug!(%from, "comes too often");
            failure.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_however_many_callers_only_so_many_are_remembered() {
        let limits = Limits::new();
        for number in 0..10_000_u32 {
            let from = IpAddr::from(number.to_be_bytes());
            let cluster: ClusterId = format!("invented-{number}").parse().unwrap();
            limits.connection(from);
            let _ = limits.request(from);
            limits.wrong_token(from);
            let _ = limits.identity(&cluster);
        }
        for addresses in [&limits.connections, &limits.requests, &limits.wrong_tokens] {
            assert!(lock(addresses).len() <= MOST_KEPT);
        }
        assert!(lock(&limits.identities).len() <= MOST_KEPT);
    }
}
