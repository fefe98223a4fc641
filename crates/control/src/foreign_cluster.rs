//! Gets to know other clusters: asks the auth service that a ForeignCluster names who it is, gets
//! an identity there, and keeps it fresh.

mod ask;
pub(crate) mod auth_service;
mod authenticate;
mod ending;
mod forgotten;
mod incoming;
mod kept;
mod manual;
mod own_key;
mod pace;
mod stored;
mod vain;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt, runtime::watcher};
use tombolo_api::{
    discovery::{
        AuthStatus, ForeignCluster, ForeignClusterStatus, ResourceRequest, TenantNamespace,
        condition::AUTHENTICATED,
    },
    names::{AUTH_TOKEN_LABEL, CLUSTER_ID_LABEL, FINALIZER, FOUND_ANNOTATION, NAMESPACE},
    net::{NetworkConfig, TunnelEndpoint},
    sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    condition::{find, now_is},
    discovery::PinnedBy,
};
use tombolo_runtime::{
    finalizer,
    metrics::{self, Met},
    observe::Watched,
    queue::{self, Again, Lane, queue},
    writer,
};
use tracing::warn;

use crate::{
    by_tenant::{ByTenant, with_id},
    context::Context,
    identity::failed,
};
use pace::Pace;
use vain::Vain;

pub(crate) const MANAGER: &str = "liqo-control/foreign_cluster";

/// A refusal may be over when somebody over there has changed something.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// Another cluster may give what has ended before it begins: no reason to never rest.
const SHORTEST: Duration = Duration::from_secs(5);

/// Reason of the condition when there is an identity.
const ACCEPTED: &str = "Accepted";
/// The same when it is time for the next one, and that can't be had.
const RENEWAL_FAILING: &str = "RenewalFailing";

/// Runs until the end is asked for.
pub async fn run(context: Arc<Context>) {
    let (queue, asked) = queue();
    let known = context.watches.of::<ForeignCluster>();
    ByTenant::feed(&context.watches, &queue)
        .and::<ResourceRequest>()
        .and::<ResourceOffer>()
        .and::<NetworkConfig>()
        .and::<TunnelEndpoint>()
        .and::<NamespaceMap>();
    let tokens = Watched::new(
        Api::<Secret>::namespaced(context.client.clone(), NAMESPACE),
        watcher::Config::default().labels(AUTH_TOKEN_LABEL),
    );
    let clusters = known.index().clone();
    tokens.feed(&queue, move |token| {
        let id = token.labels().get(CLUSTER_ID_LABEL).and_then(|id| id.parse().ok());
        id.map(|id| with_id(&clusters, &id)).unwrap_or_default()
    });
    let (pace, vain) = (Pace::default(), Vain::default());
    let state = Clusters { context: context.clone(), known, tokens, pace, vain };
    let lane = |name: &String| state.known.get("", name).map_or(Lane::Main, |entry| lane(&entry));
    let work = queue::run_in_lanes("foreign-cluster", asked, lane, async |name: String| {
        state.known.filled().await;
        state.tokens.filled().await;
        match state.known.get("", &name) {
            Some(entry) => reconcile(&entry, &state).await,
            None => {
                state.pace.forget(&name);
                state.vain.forget(&name);
                Ok(Again::WhenAsked)
            }
        }
    });
    tokio::join!(
        incoming::run(context.clone()),
        forgotten::run(context.clone()),
        context.shutdown.or(work)
    );
}

/// What is shared by all entries.
pub(crate) struct Clusters {
    context: Arc<Context>,
    known: Arc<Watched<ForeignCluster>>,
    /// The tokens for them.
    tokens: Watched<Secret>,
    pace: Pace,
    vain: Vain,
}

/// Anybody can announce clusters that never answer: those that have given an identity don't wait for them.
fn lane(entry: &ForeignCluster) -> Lane {
    let status = entry.status.as_ref().and_then(|status| status.auth_status);
    if status == Some(AuthStatus::Accepted) { Lane::Main } else { Lane::Slow }
}

/// Something stands in the way of an identity.
#[derive(Debug, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct Setback {
    status: AuthStatus,
    reason: &'static str,
    message: String,
    /// Whether it may help to try again soon.
    soon: bool,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Step(#[from] crate::identity::Error),
    #[error(transparent)]
    Key(#[from] own_key::BadKey),
    #[error(transparent)]
    Setback(#[from] Setback),
}

/// What has been reached.
#[derive(Clone)]
struct Authenticated {
    tenant: TenantNamespace,
    server: String,
    /// Token or certificate.
    form: &'static str,
    /// Whether it was there already.
    met: Met,
    renew_at: Timestamp,
    /// Why the next one, which it is time for, can't be had, and until when this one counts.
    overdue: Option<String>,
}

async fn reconcile(entry: &ForeignCluster, state: &Clusters) -> Result<Again, Error> {
    let client = &state.context.client;
    let clusters = Api::<ForeignCluster>::all(client.clone());
    if entry.metadata.deletion_timestamp.is_some() {
        state.pace.forget(&entry.name_any());
        if ending::is_done(&state.context, entry).await? {
            finalizer::remove(&clusters, entry, FINALIZER)
                .await
                .map_err(failed(format!("let go of ForeignCluster {}", entry.name_any())))?;
        }
        return Ok(Again::WhenAsked);
    }
    if incoming::is_over(&state.context, entry).await? {
        // If it stands for another request meanwhile, it stays.
        writer::delete_if_unchanged(&clusters, entry)
            .await
            .map_err(failed(format!("delete ForeignCluster {}", entry.name_any())))?;
        return Ok(Again::WhenAsked);
    }
    let began = Instant::now();
    if let Some(left) = state.vain.left_alone(entry, began) {
        return Ok(Again::After(left));
    }
    let entry = &*manual::labelled(&clusters, entry).await?;
    let status = entry.status.as_ref();
    let is_known = status.is_some_and(|status| status.tenant_namespace.is_some());
    // What was written just now may not be seen yet: also who is kept already may have been met.
    let reached = if is_known && finalizer::has(entry, FINALIZER) {
        authenticate::run(state, entry).await
    } else {
        let kept = async {
            let kept = finalizer::keep(&clusters, entry, FINALIZER).await;
            Ok(kept.map_err(failed(format!("keep ForeignCluster {}", entry.name_any())))?)
        };
        authenticate::first(state, entry, kept).await
    };
    match reached {
        Ok(reached) => {
            state.vain.forget(&entry.name_any());
            let (reason, message) = said_of(entry, &reached);
            let accepted = AuthStatus::Accepted;
            let unsaid = report(state, entry, accepted, Some(&reached), reason, &message).await?;
            let left = reached.renew_at.duration_since(Timestamp::now());
            let left: Duration = left.try_into().unwrap_or_default();
            Ok(Again::After(left.min(unsaid.unwrap_or(left)).max(SHORTEST)))
        }
        Err(Error::Setback(setback)) => {
            // What is not said now is said when it is asked again.
            report(state, entry, setback.status, None, setback.reason, &setback.message).await?;
            if !setback.soon {
                state.vain.forget(&entry.name_any());
                return Ok(Again::After(ASK_AGAIN));
            }
            let wait = state.vain.again(entry, began, Instant::now());
            Ok(wait.map_or(Again::Soon, Again::After))
        }
        Err(error) => Err(error),
    }
}

/// The reason and the message for an identity that there is.
fn said_of(entry: &ForeignCluster, reached: &Authenticated) -> (&'static str, String) {
    let remote = reached.tenant.remote.as_deref().unwrap_or_default();
    let pinned_by = PinnedBy::of(entry).unwrap_or(PinnedBy::FirstUse).that();
    let message = format!(
        "{}, whose auth service shows the certificate that {pinned_by}, has given an identity in \
         {remote}, in the form of a {}",
        reached.server, reached.form
    );
    match &reached.overdue {
        None => (ACCEPTED, message),
        Some(overdue) => (RENEWAL_FAILING, format!("{message}; {overdue}")),
    }
}

/// Notes how long it took since the cluster was found, if it was not in vain at first.
fn measure(entry: &ForeignCluster, met: Met) {
    let is_first = entry.status.as_ref().is_none_or(|status| status.auth_status.is_none());
    let found = entry.annotations().get(FOUND_ANNOTATION);
    let found = found.and_then(|time| time.parse::<Timestamp>().ok()).filter(|_| is_first);
    if let Some(found) = found
        && let Ok(time) = Timestamp::now().duration_since(found).try_into()
    {
        metrics::known_after(met, time);
    }
}

/// Writes the status, and an event when something else is the matter than before. Returns after how
/// long to come again with what is not to be written yet.
async fn report(
    state: &Clusters,
    entry: &ForeignCluster,
    auth_status: AuthStatus,
    reached: Option<&Authenticated>,
    reason: &str,
    message: &str,
) -> Result<Option<Duration>, Error> {
    let before = entry.status.clone().unwrap_or_default();
    let accepted = auth_status == AuthStatus::Accepted;
    let condition =
        now_is(&before.conditions, AUTHENTICATED, accepted, reason, message, Timestamp::now());
    let status = ForeignClusterStatus {
        auth_status: Some(auth_status),
        tenant_namespace: reached.map(|it| it.tenant.clone()).or(before.tenant_namespace.clone()),
        conditions: vec![condition],
        ..ForeignClusterStatus::default()
    };
    let was = find(&before.conditions, AUTHENTICATED);
    let is_same = before.auth_status == status.auth_status
        && before.tenant_namespace == status.tenant_namespace;
    if is_same && was == status.conditions.first() {
        return Ok(None);
    }
    let (name, now) = (entry.name_any(), Instant::now());
    let has_reason = was.is_some_and(|was| was.reason == reason);
    if was.is_some()
        && let Some(wait) = state.pace.wait(&name, is_same && has_reason, now)
    {
        return Ok(Some(wait));
    }
    let clusters = Api::<ForeignCluster>::all(state.context.client.clone());
    writer::apply_status(&clusters, MANAGER, &name, &status)
        .await
        .map_err(failed(format!("write the status of ForeignCluster {name}")))?;
    state.pace.wrote(&name, now);
    if let Some(reached) = reached {
        measure(entry, reached.met);
    }
    if !has_reason {
        let events = &state.context.events;
        if reason == ACCEPTED {
            events.normal(entry, reason, message).await;
        } else {
            warn!(cluster = name, "{reason}: {message}");
            events.warning(entry, reason, message).await;
        }
    }
    Ok(None)
}
