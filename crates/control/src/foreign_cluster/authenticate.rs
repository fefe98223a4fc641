//! Gets a working identity from the auth service at a URL: identifies the cluster, requests an
//! identity, checks that it is still accepted.

use std::{pin::pin, time::Instant};

use futures::future::{Either, select};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Map, Value, json};
use tombolo_api::{
    ClusterIdentity, Fingerprint,
    auth::ClusterInfo,
    discovery::{AuthStatus, ForeignCluster},
};
use tombolo_core::{
    discovery::{PinnedBy, oldest_other, takes_over},
    identity::name_conflict,
    view::Entry,
};
use tombolo_runtime::{
    chain::Chain,
    metrics::{self, Step},
};
use tracing::{debug, warn};

use super::{
    Authenticated, Clusters, Error, Setback,
    auth_service::{AuthService, Failure},
    identity_state::{self, IdentityState},
    manual, request_identity,
};
use crate::{context::Context, identity::failed};

/// Returns a valid identity: the existing one, or a new one if that is missing, rejected or due for
/// renewal.
pub(super) async fn run(state: &Clusters, entry: &ForeignCluster) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let Some(peer) = &entry.spec.cluster_identity else {
        return query_and_request(state, entry).await;
    };
    check(state, entry, peer).await?;
    // It may have been renamed since.
    if name_conflict(&context.settings.cluster(), peer).is_some() {
        return query_and_request(state, entry).await;
    }
    match identity_state::check(context, entry, peer).await? {
        IdentityState::Valid(reached) => Ok(reached),
        // Its API server may have moved, or have another certificate.
        IdentityState::Unverified(reached) => match query_and_request(state, entry).await {
            Ok(anew) => Ok(Authenticated { renew_at: reached.renew_at, ..anew }),
            Err(error) => {
                debug!(cluster = %peer.cluster_name, "no new identity either: {error}");
                Ok(reached)
            }
        },
        // Tokens too are renewed at the auth service: the signer may work by now and give a
        // certificate.
        IdentityState::RenewalDue { reached, expires } => match query_and_request(state, entry)
            .await
        {
            Err(error) => match identity_state::renew_token(context, peer, &reached).await? {
                Some(renewed) => Ok(renewed),
                None if identity_state::is_rejected(context, peer, &reached).await => Err(error),
                None => {
                    let error = Chain(&error);
                    warn!(cluster = %peer.cluster_name, "can't renew the identity: {error}");
                    let overdue = format!(
                        "the identity is valid until {expires}, and its renewal fails: {error}"
                    );
                    Ok(Authenticated { overdue: Some(overdue), ..reached })
                }
            },
            anew => anew,
        },
        IdentityState::Missing => query_and_request(state, entry).await,
    }
}

/// The same for a new entry: reads run concurrently with `finalized`, which adds the finalizer so
/// that the entry is not deleted before the objects made for it. It yields the entry as it is then.
pub(super) async fn first(
    state: &Clusters,
    entry: &ForeignCluster,
    finalized: impl Future<Output = Result<ForeignCluster, Error>>,
) -> Result<Authenticated, Error> {
    let service = AuthService::new(&entry.spec.auth_url, entry.spec.fingerprint);
    let look = async {
        let (before, info) = (pin!(reuse(state, entry)), pin!(query_info(&service)));
        // A reusable identity need not wait for the auth service of the other cluster.
        let (before, info) = match select(before, info).await {
            Either::Left((Ok(None), info)) => (Ok(None), Some(info.await)),
            Either::Left((before, _)) => (before, None),
            Either::Right((info, before)) => (before.await, Some(info)),
        };
        (before, info)
    };
    let (current, (before, info)) = tokio::join!(finalized, look);
    let current = current?;
    if (&current.spec.auth_url, current.spec.fingerprint)
        != (&entry.spec.auth_url, entry.spec.fingerprint)
    {
        // The URL or the fingerprint has changed meanwhile.
        return query_and_request(state, &current).await;
    }
    match (before?, info) {
        (Some(reached), _) => Ok(reached),
        (None, Some(info)) => request_from(state, &current, &service, info).await,
        (None, None) => query_and_request(state, &current).await,
    }
}

async fn reuse(state: &Clusters, entry: &ForeignCluster) -> Result<Option<Authenticated>, Error> {
    let Some(peer) = &entry.spec.cluster_identity else { return Ok(None) };
    check(state, entry, peer).await?;
    if name_conflict(&state.context.settings.cluster(), peer).is_some() {
        return Ok(None);
    }
    identity_state::reuse(&state.context, entry, peer).await
}

/// Queries the cluster's id at its auth service, and requests an identity.
async fn query_and_request(
    state: &Clusters,
    entry: &ForeignCluster,
) -> Result<Authenticated, Error> {
    let service = AuthService::new(&entry.spec.auth_url, entry.spec.fingerprint);
    let info = query_info(&service).await;
    request_from(state, entry, &service, info).await
}

type InfoResult = Result<(ClusterInfo, Fingerprint), Failure>;

async fn query_info(service: &AuthService) -> InfoResult {
    let start = Instant::now();
    let info = service.info().await?;
    metrics::observe_step(Step::Info, start.elapsed());
    Ok(info)
}

/// A cluster as its auth service describes it.
pub(super) struct Peer<'a> {
    pub peer: ClusterIdentity,
    /// Generation of the identities that it issues now.
    pub generation: Option<String>,
    /// Fingerprint of the certificate that it presented.
    pub shown: Fingerprint,
    /// Pinned to that certificate.
    pub service: &'a AuthService,
}

async fn request_from(
    state: &Clusters,
    entry: &ForeignCluster,
    service: &AuthService,
    info: InfoResult,
) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let (info, shown) = info.map_err(|failure| setback(entry, &failure))?;
    service.pin_to(shown);
    let peer = ClusterIdentity { cluster_id: info.cluster_id, cluster_name: info.cluster_name };
    if let Some(expected) = &entry.spec.cluster_identity
        && expected.cluster_id != peer.cluster_id
    {
        let message = format!(
            "{} belongs to cluster {}, expected {}; create another ForeignCluster for that cluster",
            entry.spec.auth_url, peer.cluster_id, expected.cluster_id
        );
        return Err(refused("ClusterIDMismatch", message).into());
    }
    check(state, entry, &peer).await?;
    if let Some(message) = name_conflict(&context.settings.cluster(), &peer) {
        return Err(refused("SameName", message).into());
    }
    fill_in(context, entry, &peer, shown).await?;
    let target = Peer { peer, generation: info.generation, shown, service };
    let start = Instant::now();
    let reached = request_identity::request(state, entry, &target).await?;
    metrics::observe_step(Step::Identity, start.elapsed());
    Ok(reached)
}

/// Refuses this cluster itself, and a cluster that has another entry already.
async fn check(
    state: &Clusters,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
) -> Result<(), Error> {
    if peer.cluster_id == state.context.settings.cluster_id {
        let message = format!(
            "{} is the auth service of this cluster itself; delete this ForeignCluster",
            entry.spec.auth_url
        );
        return Err(refused("OwnCluster", message).into());
    }
    let known = state.known.all();
    let known: Vec<_> = known.iter().map(|entry| Entry::from_resource(entry)).collect();
    let entry = Entry::from_resource(entry);
    if let Some(other) = oldest_other(&entry, &peer.cluster_id, &known) {
        let message = format!(
            "cluster {} has ForeignCluster {} already; use that one and delete this one",
            peer.cluster_id, other.name
        );
        if takes_over(&entry, other) {
            let clusters = Api::<ForeignCluster>::all(state.context.client.clone());
            manual::take_over(&clusters, other).await?;
        }
        return Err(refused("Duplicate", message).into());
    }
    Ok(())
}

/// Writes the cluster's id and the fingerprint into the spec, where they are missing.
async fn fill_in(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
    shown: Fingerprint,
) -> Result<(), Error> {
    let mut spec = Map::new();
    if entry.spec.cluster_identity.as_ref() != Some(peer) {
        spec.insert("clusterIdentity".to_owned(), json!(peer));
    }
    let mut annotations = Map::new();
    if entry.spec.fingerprint.is_none() {
        spec.insert("fingerprint".to_owned(), json!(shown));
        let (key, value) = PinnedBy::FirstUse.annotation(shown);
        annotations.insert(key, Value::from(value));
    }
    if spec.is_empty() {
        return Ok(());
    }
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let metadata = json!({ "uid": entry.uid(), "annotations": annotations });
    let patch = json!({ "metadata": metadata, "spec": spec });
    let filled = patch_unless_changed(&clusters, entry, patch).await;
    Ok(filled.map_err(failed(format!("fill in ForeignCluster {}", entry.name_any())))?)
}

/// Attempts to fill in an entry that changes concurrently.
const MAX_ATTEMPTS: usize = 5;

/// Patches an entry unless its spec has changed, for example by a fingerprint that a user has set:
/// that change triggers a reconciliation of its own.
async fn patch_unless_changed(
    clusters: &Api<ForeignCluster>,
    entry: &ForeignCluster,
    mut patch: Value,
) -> kube::Result<()> {
    let (name, mut version) = (entry.name_any(), entry.resource_version());
    let params =
        PatchParams { field_manager: Some(super::MANAGER.to_owned()), ..PatchParams::default() };
    let mut attempts = 0;
    loop {
        attempts += 1;
        patch["metadata"]["resourceVersion"] = json!(version);
        let patched = clusters.patch(&name, &params, &Patch::Merge(&patch)).await;
        let is_conflict = matches!(&patched, Err(kube::Error::Api(status)) if status.code == 409);
        if !is_conflict || attempts == MAX_ATTEMPTS {
            return patched.map(drop);
        }
        // Usually only the status has changed.
        let now = clusters.get(&name).await?;
        if now.spec != entry.spec {
            return patched.map(drop);
        }
        version = now.resource_version();
    }
}

pub(super) fn refused(reason: &'static str, message: String) -> Setback {
    Setback { status: AuthStatus::Refused, reason, message, retry_soon: false }
}

pub(super) fn setback(entry: &ForeignCluster, failure: &Failure) -> Setback {
    let obstacle = failure.obstacle();
    let message = match obstacle.advice(Entry::from_resource(entry).pinned_by()) {
        Some(advice) => format!("{failure}; {advice}"),
        None => failure.to_string(),
    };
    Setback {
        status: obstacle.status(),
        reason: obstacle.reason(),
        message,
        retry_soon: obstacle.may_go(),
    }
}
