//! Authenticates with other clusters: queries the auth service of a ForeignCluster for the
//! cluster's id, requests an identity there and renews it.

pub(crate) mod auth_service;
mod authenticate;
mod connect_backoff;
mod deletion;
mod identity_state;
mod incoming;
mod manual;
mod own_key;
mod request_identity;
mod retained_identity;
mod status_rate_limit;
mod stored_identity;

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
    view::Entry,
};
use tombolo_runtime::{
    finalizer,
    metrics::{self, IdentitySource},
    observe::Watched,
    queue::{self, Lane, Requeue, queue},
    writer,
};
use tracing::warn;

use crate::{
    by_tenant::{ByTenant, with_id},
    context::Context,
    identity::failed,
};
use connect_backoff::ConnectBackoff;
use status_rate_limit::StatusRateLimit;

pub(crate) const MANAGER: &str = "liqo-control/foreign_cluster";

/// Retry interval after a refusal: somebody may have changed the token or settings of the other
/// cluster.
const REFUSED_RETRY: Duration = Duration::from_secs(30);

/// Minimum interval between checks: another cluster may issue identities that have expired already.
const MIN_RECHECK: Duration = Duration::from_secs(5);

/// Reason of the condition `Authenticated` while the identity is valid.
const ACCEPTED: &str = "Accepted";
/// Reason of the condition while the identity is valid, but its renewal fails.
const RENEWAL_FAILING: &str = "RenewalFailing";

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let (queue, receiver) = queue();
    let known = context.watches.of::<ForeignCluster>();
    ByTenant::enqueue(&context.watches, &queue)
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
    tokens.enqueue(&queue, move |token| {
        let id = token.labels().get(CLUSTER_ID_LABEL).and_then(|id| id.parse().ok());
        id.map(|id| with_id(&clusters, &id)).unwrap_or_default()
    });
    let (rate_limit, backoff) = (StatusRateLimit::default(), ConnectBackoff::default());
    let state = Clusters { context: context.clone(), known, tokens, rate_limit, backoff };
    let lane = |name: &String| state.known.get("", name).map_or(Lane::Main, |entry| lane(&entry));
    let work = queue::run_in_lanes("foreign-cluster", receiver, lane, async |name: String| {
        state.known.synced().await;
        state.tokens.synced().await;
        match state.known.get("", &name) {
            Some(entry) => reconcile(&entry, &state).await,
            None => {
                state.rate_limit.forget(&name);
                state.backoff.forget(&name);
                Ok(Requeue::OnChange)
            }
        }
    });
    tokio::join!(
        incoming::run(context.clone()),
        retained_identity::run(context.clone()),
        context.shutdown.or(work)
    );
}

/// State shared by all ForeignClusters.
pub(crate) struct Clusters {
    context: Arc<Context>,
    known: Arc<Watched<ForeignCluster>>,
    /// Secrets with the tokens that other clusters accept.
    tokens: Watched<Secret>,
    rate_limit: StatusRateLimit,
    backoff: ConnectBackoff,
}

/// Anybody can announce clusters that never answer. Clusters that have issued an identity have a
/// lane of their own, so they never queue behind them.
fn lane(entry: &ForeignCluster) -> Lane {
    let status = entry.status.as_ref().and_then(|status| status.auth_status);
    if status == Some(AuthStatus::Accepted) { Lane::Main } else { Lane::Slow }
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct Setback {
    status: AuthStatus,
    reason: &'static str,
    message: String,
    /// Whether a retry soon may succeed.
    retry_soon: bool,
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

/// A valid identity.
#[derive(Clone)]
struct Authenticated {
    tenant: TenantNamespace,
    server: String,
    /// `token` or `certificate`.
    form: &'static str,
    /// Whether it was issued just now or reused.
    source: IdentitySource,
    renew_at: Timestamp,
    /// Why the renewal that is due fails, and when the identity expires.
    overdue: Option<String>,
}

async fn reconcile(entry: &ForeignCluster, state: &Clusters) -> Result<Requeue, Error> {
    let client = &state.context.client;
    let clusters = Api::<ForeignCluster>::all(client.clone());
    if entry.metadata.deletion_timestamp.is_some() {
        state.rate_limit.forget(&entry.name_any());
        if deletion::is_done(&state.context, entry).await? {
            finalizer::remove(&clusters, entry, FINALIZER).await.map_err(failed(format!(
                "remove the finalizer of ForeignCluster {}",
                entry.name_any()
            )))?;
        }
        return Ok(Requeue::OnChange);
    }
    if incoming::is_over(&state.context, entry).await? {
        // If it belongs to a new request by now, it has changed and is not deleted.
        writer::delete_if_unchanged(&clusters, entry)
            .await
            .map_err(failed(format!("delete ForeignCluster {}", entry.name_any())))?;
        return Ok(Requeue::OnChange);
    }
    let began = Instant::now();
    if let Some(left) = state.backoff.remaining(entry, began) {
        return Ok(Requeue::After(left));
    }
    let entry = &*manual::labelled(&clusters, entry).await?;
    let status = entry.status.as_ref();
    let is_known = status.is_some_and(|status| status.tenant_namespace.is_some());
    // The watch may lag behind our own writes: an entry with a finalizer may have an identity too.
    let reached = if is_known && finalizer::has(entry, FINALIZER) {
        authenticate::run(state, entry).await
    } else {
        let finalized = async {
            let finalized = finalizer::keep(&clusters, entry, FINALIZER).await;
            Ok(finalized.map_err(failed(format!(
                "add the finalizer to ForeignCluster {}",
                entry.name_any()
            )))?)
        };
        authenticate::first(state, entry, finalized).await
    };
    match reached {
        Ok(reached) => {
            state.backoff.forget(&entry.name_any());
            let (reason, message) = condition_of(entry, &reached);
            let accepted = AuthStatus::Accepted;
            let deferred = report(state, entry, accepted, Some(&reached), reason, &message).await?;
            let left = reached.renew_at.duration_since(Timestamp::now());
            let left: Duration = left.try_into().unwrap_or_default();
            Ok(Requeue::After(left.min(deferred.unwrap_or(left)).max(MIN_RECHECK)))
        }
        Err(Error::Setback(setback)) => {
            // A deferred status is written with the next attempt.
            report(state, entry, setback.status, None, setback.reason, &setback.message).await?;
            if !setback.retry_soon {
                state.backoff.forget(&entry.name_any());
                return Ok(Requeue::After(REFUSED_RETRY));
            }
            let wait = state.backoff.failed_attempt(entry, began, Instant::now());
            Ok(wait.map_or(Requeue::Backoff, Requeue::After))
        }
        Err(error) => Err(error),
    }
}

/// Reason and message of the condition for a valid identity.
fn condition_of(entry: &ForeignCluster, reached: &Authenticated) -> (&'static str, String) {
    let remote = reached.tenant.remote.as_deref().unwrap_or_default();
    let pinned_by = Entry::from_resource(entry).pinned_by().unwrap_or(PinnedBy::FirstUse).that();
    let message = format!(
        "the auth service presented the certificate that {pinned_by}; {} issued an identity for \
         its namespace {remote}, in the form of a {}",
        reached.server, reached.form
    );
    match &reached.overdue {
        None => (ACCEPTED, message),
        Some(overdue) => (RENEWAL_FAILING, format!("{message}; {overdue}")),
    }
}

/// Records the time since the cluster was discovered, if the first attempt succeeded.
fn measure(entry: &ForeignCluster, source: IdentitySource) {
    let is_first = entry.status.as_ref().is_none_or(|status| status.auth_status.is_none());
    let found = entry.annotations().get(FOUND_ANNOTATION);
    let found = found.and_then(|time| time.parse::<Timestamp>().ok()).filter(|_| is_first);
    if let Some(found) = found
        && let Ok(time) = Timestamp::now().duration_since(found).try_into()
    {
        metrics::observe_discovery(source, time);
    }
}

/// Writes the status, and an event when the reason has changed. Returns when to retry if the rate
/// limit defers the write.
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
        && let Some(wait) = state.rate_limit.wait(&name, is_same && has_reason, now)
    {
        return Ok(Some(wait));
    }
    let clusters = Api::<ForeignCluster>::all(state.context.client.clone());
    writer::apply_status(&clusters, MANAGER, &name, &status)
        .await
        .map_err(failed(format!("write the status of ForeignCluster {name}")))?;
    state.rate_limit.record_write(&name, now);
    if let Some(reached) = reached {
        measure(entry, reached.source);
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
