//! Leader election with a Lease. It is no fence: writes that must not happen twice also need a
//! precondition. Clocks of different machines are never compared: a lease has expired when a
//! candidate has seen it unchanged for its duration, by the candidate's own clock.

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

/// A leadership. Clones share it. When the last clone is dropped, the lease is neither renewed nor
/// released.
#[derive(Clone, Debug)]
pub struct Leading {
    /// Triggered when the loss of the leadership is noticed.
    pub shutdown: Shutdown,
    /// Time of the last renewal. `None`: there is no Lease.
    renewed: Option<watch::Receiver<Instant>>,
    /// Renews the lease, and releases it at the end.
    renewal: Option<Arc<Task>>,
}

impl Leading {
    /// A leadership without a Lease, for a single process.
    pub fn alone(shutdown: Shutdown) -> Self {
        Self { shutdown, renewed: None, renewal: None }
    }

    /// Whether another process may lead, by this process's own clock. True at once after a freeze,
    /// even before `shutdown` is triggered.
    pub fn is_over(&self) -> bool {
        let renewed = self.renewed.as_ref().map(|renewed| *renewed.borrow());
        self.shutdown.is_triggered() || renewed.is_some_and(|renewed| left(renewed).is_zero())
    }

    /// Triggers the shutdown, and waits a short time for the release of the lease.
    pub async fn end(self) {
        self.shutdown.trigger();
        if let Some(renewal) = &self.renewal {
            let _ = timeout(RENEW, renewal.ended()).await;
        }
    }
}

/// Waits until this process leads, then renews the lease. `Leading::shutdown` is triggered when the
/// leadership is lost, or with `shutdown`; the lease is then released. A process that restarts with
/// the same `identity` leads again at once.
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
        observed: None,
        renewed: watch::Sender::new(Instant::now()),
    };
    while !shutdown.is_triggered() {
        match candidate.try_acquire().await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => warn!(lease = name, "can't acquire the lease: {error}"),
        }
        shutdown.or(sleep(RENEW / 2)).await;
    }
    info!(lease = name, identity, "became the leader");
    let shutdown = shutdown.child();
    let renewed = Some(candidate.renewed.subscribe());
    let renewal = Task::spawn(format!("lease {name}"), candidate.renew(shutdown.clone()));
    Leading { shutdown, renewed, renewal: Some(Arc::new(renewal)) }
}

struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
    observed: Option<Observed>,
    /// Time at which the last successful write was sent. Other candidates saw it later.
    renewed: watch::Sender<Instant>,
}

/// The last observed state of the lease.
struct Observed {
    spec: LeaseSpec,
    since: Instant,
}

impl Candidate {
    async fn renew(mut self, leading: Shutdown) {
        while leading.or(sleep(RENEW.min(self.left()))).await.is_some() {
            match timeout(RENEW.min(self.left()), self.try_acquire()).await {
                Ok(Ok(true)) => {}
                Ok(Ok(false)) => {
                    warn!(lease = self.name, "another process has become the leader");
                    return leading.trigger();
                }
                Ok(Err(error)) => warn!(lease = self.name, "can't renew the lease: {error}"),
                Err(_) => warn!(lease = self.name, "can't renew the lease: no response in time"),
            }
            if self.left().is_zero() {
                warn!(lease = self.name, "lost the leadership: the lease was not renewed in time");
                return leading.trigger();
            }
        }
        if let Err(error) = self.release().await {
            debug!(lease = self.name, "release the lease: {error}");
        }
    }

    fn left(&self) -> Duration {
        left(*self.renewed.borrow())
    }

    async fn try_acquire(&mut self) -> kube::Result<bool> {
        loop {
            let found = self.api.get_opt(&self.name).await?;
            let spec = found.as_ref().and_then(|lease| lease.spec.clone()).unwrap_or_default();
            if !is_free(&spec, self.unchanged(&spec), &self.identity) {
                return Ok(false);
            }
            let sent = Instant::now();
            match self.take(found, &spec).await {
                Ok(()) => {
                    self.renewed.send_replace(sent);
                    return Ok(true);
                }
                // Another write was first. It may have changed only metadata.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Time since the lease last changed.
    fn unchanged(&mut self, spec: &LeaseSpec) -> Duration {
        match &self.observed {
            Some(observed) if observed.spec == *spec => observed.since.elapsed(),
            _ => {
                self.observed = Some(Observed { spec: spec.clone(), since: Instant::now() });
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

    async fn release(&self) -> kube::Result<()> {
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

/// Time left as the leader. It ends before other candidates may acquire the lease.
fn left(renewed: Instant) -> Duration {
    (DURATION - RENEW).saturating_sub(renewed.elapsed())
}

/// Whether `identity` may acquire a lease that has been unchanged for this time.
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
    fn a_lease_is_free_without_a_holder_or_after_its_duration() {
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
