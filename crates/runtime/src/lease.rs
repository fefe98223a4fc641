//! One leader at a time, by a Lease. It does not fence: whoever must not write twice also checks
//! the version of what it writes.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

use crate::shutdown::Shutdown;

const DURATION: Duration = Duration::from_secs(8);
const RENEW: Duration = Duration::from_secs(2);

/// Waits until this process leads, and keeps leading. The result is asked to end when the
/// leadership is lost, or with `shutdown`; the lease is then given back. A process that comes back
/// under the same `identity` goes on at once.
pub async fn lead(
    client: Client,
    namespace: &str,
    name: &str,
    identity: &str,
    shutdown: &Shutdown,
) -> Shutdown {
    let candidate = Candidate {
        api: Api::namespaced(client, namespace),
        name: name.to_owned(),
        identity: identity.to_owned(),
    };
    while !shutdown.is_asked() {
        match candidate.try_to_lead(Timestamp::now()).await {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) => warn!(lease = name, "ask for the lease: {error}"),
        }
        shutdown.or(sleep(RENEW / 2)).await;
    }
    info!(lease = name, identity, "leading");
    let leading = shutdown.child();
    tokio::spawn(candidate.keep(leading.clone()));
    leading
}

struct Candidate {
    api: Api<Lease>,
    name: String,
    identity: String,
}

impl Candidate {
    async fn keep(self, leading: Shutdown) {
        let mut renewed = Instant::now();
        while leading.or(sleep(RENEW)).await.is_some() {
            match timeout(RENEW, self.try_to_lead(Timestamp::now())).await {
                Ok(Ok(true)) => renewed = Instant::now(),
                Ok(Ok(false)) => {
                    warn!(lease = self.name, "somebody else leads");
                    return leading.ask();
                }
                Ok(Err(error)) => warn!(lease = self.name, "renew the lease: {error}"),
                Err(_) => warn!(lease = self.name, "renew the lease: no answer"),
            }
            if renewed.elapsed() > DURATION - RENEW {
                warn!(lease = self.name, "the lease could not be renewed in time");
                return leading.ask();
            }
        }
        if let Err(error) = self.give_back().await {
            debug!(lease = self.name, "give the lease back: {error}");
        }
    }

    async fn try_to_lead(&self, now: Timestamp) -> kube::Result<bool> {
        let Some(mut lease) = self.api.get_opt(&self.name).await? else {
            let lease = Lease {
                metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                spec: Some(self.held(&LeaseSpec::default(), now)),
            };
            return won(self.api.create(&PostParams::default(), &lease).await.map(drop));
        };
        let spec = lease.spec.take().unwrap_or_default();
        if !free(&spec, &self.identity, now) {
            return Ok(false);
        }
        lease.spec = Some(self.held(&spec, now));
        won(self.api.replace(&self.name, &PostParams::default(), &lease).await.map(drop))
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

/// A conflict is: another one was faster.
fn won(result: kube::Result<()>) -> kube::Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether `identity` may take the lease.
fn free(spec: &LeaseSpec, identity: &str, now: Timestamp) -> bool {
    let Some(holder) = spec.holder_identity.as_deref().filter(|holder| !holder.is_empty()) else {
        return true;
    };
    let duration = Duration::from_secs(spec.lease_duration_seconds.unwrap_or(0).max(0) as u64);
    let Some(renewed) = &spec.renew_time else { return true };
    holder == identity || now.duration_since(renewed.0) > duration.try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: &str, renewed: Timestamp) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(8),
            renew_time: Some(MicroTime(renewed)),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_free_when_nobody_holds_it_any_more() {
        let now: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
        let ago = |seconds| now - jiff::SignedDuration::from_secs(seconds);
        assert!(free(&LeaseSpec::default(), "a", now));
        assert!(!free(&held_by("b", ago(8)), "a", now));
        assert!(free(&held_by("b", ago(9)), "a", now));
        assert!(free(&held_by("a", ago(0)), "a", now));
    }
}
