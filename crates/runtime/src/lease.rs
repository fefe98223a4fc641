//! One leader at a time, by a Lease. It does not fence: whoever must not write twice also checks
//! the version of what it writes. No clock is compared with another machine's: a lease has ended
//! when it has not changed for its duration, by the clock of whoever waits for it.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};
use tracing::{debug, info, warn};

use crate::{shutdown::Shutdown, task::Task};

const DURATION: Duration = Duration::from_secs(8);
const RENEW: Duration = Duration::from_secs(2);

/// What a leader has. Clones are the same leadership: when the last one is dropped, the lease is
/// neither renewed nor given back.
#[derive(Clone, Debug)]
pub struct Leading {
    /// Asked for when the leadership is lost, and noticed to be lost.
    pub shutdown: Shutdown,
    /// When the lease was last renewed; None if there is nobody to share it with.
    renewed: Option<watch::Receiver<Instant>>,
    /// Renews the lease, and gives it back.
    renewal: Option<Arc<Task>>,
}

impl Leading {
    /// One who shares the lead with nobody.
    pub fn alone(shutdown: Shutdown) -> Self {
        Self { shutdown, renewed: None, renewal: None }
    }

    /// Whether somebody else may lead, by this process's own clock. One that was frozen is told so
    /// before it has noticed anything.
    pub fn is_over(&self) -> bool {
        let renewed = self.renewed.as_ref().map(|renewed| *renewed.borrow());
        self.shutdown.is_asked() || renewed.is_some_and(|renewed| left(renewed).is_zero())
    }

    /// Asks for the end, and waits until the lease is given back, but not for long.
    pub async fn end(self) {
        self.shutdown.ask();
        if let Some(renewal) = &self.renewal {
            let _ = timeout(RENEW, renewal.ended()).await;
        }
    }
}

/// Waits until this process leads, and keeps leading. The result is asked to end when the
/// leadership is lost, or with `shutdown`; the lease is then given back. A process that comes back
/// under the same `identity` goes on at once.
pub async fn lead(
    client: Client,
    namespace: &str,
    name: &str,
    identity: &str,
    shutdown: &Shutdown,
) -> Leading {
    let mut candidate = Candidate {
        api: Api::namespaced(client, namespace),
        name: name.to_owned(),
        identity: identity.to_owned(),
        seen: None,
        renewed: watch::Sender::new(Instant::now()),
    };
    while !shutdown.is_asked() {
        match candidate.try_to_lead().await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => warn!(lease = name, "ask for the lease: {error}"),
        }
        shutdown.or(sleep(RENEW / 2)).await;
    }
    info!(lease = name, identity, "leading");
    let shutdown = shutdown.child();
    let renewed = Some(candidate.renewed.subscribe());
    let renewal = Task::spawn(format!("lease {name}"), candidate.keep(shutdown.clone()));
    Leading { shutdown, renewed, renewal: Some(Arc::new(renewal)) }
}

struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    seen: Option<Seen>,
    /// When the write that was answered was sent: whoever saw it saw it later.
    renewed: watch::Sender<Instant>,
}

/// A lease as it was found the last time, and since when it is like that.
struct Seen {
    spec: LeaseSpec,
    since: Instant,
}

impl Candidate {
    async fn keep(mut self, leading: Shutdown) {
        while leading.or(sleep(RENEW.min(self.left()))).await.is_some() {
            match timeout(RENEW.min(self.left()), self.try_to_lead()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    warn!(lease = self.name, "somebody else leads");
                    return leading.ask();
                }
                Ok(Err(error)) => warn!(lease = self.name, "renew the lease: {error}"),
                Err(_) => warn!(lease = self.name, "renew the lease: no answer"),
            }
            if self.left().is_zero() {
                warn!(lease = self.name, "the lease could not be renewed in time");
                return leading.ask();
            }
        }
        if let Err(error) = self.give_back().await {
            debug!(lease = self.name, "give the lease back: {error}");
        }
    }

    fn left(&self) -> Duration {
        left(*self.renewed.borrow())
    }

    async fn try_to_lead(&mut self) -> kube::Result<bool> {
        loop {
            let found = self.api.get_opt(&self.name).await?;
            let spec = found.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
            if !is_free(&spec, self.unchanged(&spec), &self.identity) {
                return Ok(false);
            }
            let asked = Instant::now();
            match self.take(found, &spec).await {
                Ok(()) => {
                    self.renewed.send_replace(asked);
                    return Ok(true);
                }
                // Somebody was faster, maybe one who only annotates it.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// For how long the lease has been like this.
    fn unchanged(&mut self, spec: &LeaseSpec) -> Duration {
        match &self.seen {
            Some(seen) if seen.spec == *spec => seen.since.elapsed(),
            _ => {
                self.seen = Some(Seen { spec: spec.clone(), since: Instant::now() });
                Duration::ZERO
            }
        }
    }

    async fn take(&self, found: Option<Lease>, before: &LeaseSpec) -> kube::Result<()> {
        let spec = Some(self.held(before, Timestamp::now()));
        let params = PostParams::default();
        match found {
            Some(lease) => {
                let lease = Lease { spec, ..lease };
                self.api.replace(&self.name, &params, &lease).await.map(drop)
            }
            None => {
                let name = Some(self.name.clone());
                let metadata = ObjectMeta { name, ..ObjectMeta::default() };
                self.api.create(&params, &Lease { metadata, spec }).await.map(drop)
            }
        }
    }

    fn held(&self, before: &LeaseSpec, now: Timestamp) -> LeaseSpec {
        let same = before.holder_identity.as_deref() == Some(&self.identity);
        let transitions = before.lease_transitions.unwrap_or(0);
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(DURATION.as_secs() as i32),
            acquire_time: if same { before.acquire_time.clone() } else { Some(MicroTime(now)) },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if same { transitions } else { transitions + 1 }),
            ..LeaseSpec::default()
        }
    }

    async fn give_back(&self) -> kube::Result<()> {
        let mut lease = self.api.get(&self.name).await?;
        if let Some(spec) = &mut lease.spec
            && spec.holder_identity.as_deref() == Some(&self.identity)
        {
            spec.holder_identity = None;
            self.api.replace(&self.name, &PostParams::default(), &lease).await?;
        }
        Ok(())
    }
}

/// For how long one may take itself for the leader: not as long as others have to wait.
fn left(renewed: Instant) -> Duration {
    (DURATION - RENEW).saturating_sub(renewed.elapsed())
}

/// Whether `identity` may take a lease that has been like this for a while.
fn is_free(spec: &LeaseSpec, unchanged: Duration, identity: &str) -> bool {
    let Some(holder) = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty()) else {
        return true;
    };
    let duration = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
    holder == identity || unchanged > duration
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_free_when_nobody_holds_it_any_more() {
        let held_by = |holder: &str| LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(8),
            ..LeaseSpec::default()
        };
        let seconds = Duration::from_secs;
        assert!(is_free(&LeaseSpec::default(), seconds(0), "a"));
        assert!(is_free(&held_by(""), seconds(0), "a"));
        assert!(!is_free(&held_by("b"), seconds(8), "a"));
        assert!(is_free(&held_by("b"), seconds(9), "a"));
        assert!(is_free(&held_by("a"), seconds(0), "a"));
    }
}
