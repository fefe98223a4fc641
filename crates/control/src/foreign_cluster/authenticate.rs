//! From a URL to an identity that works: who is there, may we have an identity, does it still count.

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
    discovery::{PinnedBy, senior, takes_over},
    identity::namesake,
};
use tombolo_runtime::{
    chain::Chain,
    metrics::{self, Step},
};
use tracing::{debug, warn};

use super::{
    Authenticated, Clusters, Error, Setback, ask,
    auth_service::{AuthService, Failure},
    kept::{self, Kept},
    manual,
};
use crate::{context::Context, identity::failed};

/// Sees to it that there is an identity, and that it counts for some time to come.
pub(super) async fn run(state: &Clusters, entry: &ForeignCluster) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let Some(peer) = &entry.spec.cluster_identity else { return meet(state, entry).await };
    check(state, entry, peer).await?;
    // It may have got another name by now.
    if namesake(&context.settings.cluster(), peer).is_some() {
        return meet(state, entry).await;
    }
    match kept::keep(context, entry, peer).await? {
        Kept::Good(reached) => Ok(reached),
        // Its API server may be elsewhere by now, or have another certificate.
        Kept::InDoubt(reached) => match meet(state, entry).await {
            Ok(anew) => Ok(Authenticated { renew_at: reached.renew_at, ..anew }),
            Err(error) => {
                debug!(cluster = %peer.cluster_name, "neither does it give another: {error}");
                Ok(reached)
            }
        },
        // Also where it is a token: by now there may be somebody who signs certificates.
        Kept::Due { reached, expires } => match meet(state, entry).await {
            Err(error) => match kept::renew_token(context, peer, &reached).await? {
                Some(renewed) => Ok(renewed),
                None if kept::is_unknown(context, peer, &reached).await => Err(error),
                None => {
                    let error = Chain(&error);
                    warn!(cluster = %peer.cluster_name, "renew the identity: {error}");
                    let overdue = format!(
                        "the identity counts until {expires}, and the next one can't be had: {error}"
                    );
                    Ok(Authenticated { overdue: Some(overdue), ..reached })
                }
            },
            anew => anew,
        },
        Kept::None => meet(state, entry).await,
    }
}

/// The same for an entry that is new: what changes nothing is done while `kept`, by which it is taken
/// care of that the entry does not go before what is made for it. It is the entry as it is then.
pub(super) async fn first(
    state: &Clusters,
    entry: &ForeignCluster,
    kept: impl Future<Output = Result<ForeignCluster, Error>>,
) -> Result<Authenticated, Error> {
    let service = AuthService::new(&entry.spec.auth_url, entry.spec.fingerprint);
    let look = async {
        let (before, info) = (pin!(from_before(state, entry)), pin!(introduce(&service)));
        // Who has an identity already does not have to wait for the other cluster's auth service.
        let (before, info) = match select(before, info).await {
            Either::Left((Ok(None), info)) => (Ok(None), Some(info.await)),
            Either::Left((before, _)) => (before, None),
            Either::Right((info, before)) => (before.await, Some(info)),
        };
        (before, info)
    };
    let (kept, (before, info)) = tokio::join!(kept, look);
    let kept = kept?;
    if (&kept.spec.auth_url, kept.spec.fingerprint)
        != (&entry.spec.auth_url, entry.spec.fingerprint)
    {
        // Somebody has said meanwhile where it is, or which certificate it shows.
        return meet(state, &kept).await;
    }
    match (before?, info) {
        (Some(reached), _) => Ok(reached),
        (None, Some(info)) => greet(state, &kept, &service, info).await,
        (None, None) => meet(state, &kept).await,
    }
}

async fn from_before(
    state: &Clusters,
    entry: &ForeignCluster,
) -> Result<Option<Authenticated>, Error> {
    let Some(peer) = &entry.spec.cluster_identity else { return Ok(None) };
    check(state, entry, peer).await?;
    if namesake(&state.context.settings.cluster(), peer).is_some() {
        return Ok(None);
    }
    kept::from_before(&state.context, entry, peer).await
}

/// Gets to know who is there, and asks for an identity.
async fn meet(state: &Clusters, entry: &ForeignCluster) -> Result<Authenticated, Error> {
    let service = AuthService::new(&entry.spec.auth_url, entry.spec.fingerprint);
    let info = introduce(&service).await;
    greet(state, entry, &service, info).await
}

type Introduced = Result<(ClusterInfo, Fingerprint), Failure>;

async fn introduce(service: &AuthService) -> Introduced {
    let start = Instant::now();
    let info = service.info().await?;
    metrics::took(Step::Info, start.elapsed());
    Ok(info)
}

/// Somebody whose auth service has said who it is.
pub(super) struct Greeted<'a> {
    pub peer: ClusterIdentity,
    /// The generation of the identities that it gives now.
    pub generation: Option<String>,
    /// The certificate that was shown.
    pub shown: Fingerprint,
    /// Keeps to that certificate.
    pub service: &'a AuthService,
}

async fn greet(
    state: &Clusters,
    entry: &ForeignCluster,
    service: &AuthService,
    info: Introduced,
) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let (info, shown) = info.map_err(|failure| setback(entry, &failure))?;
    service.keep_to(shown);
    let peer = ClusterIdentity { cluster_id: info.cluster_id, cluster_name: info.cluster_name };
    if let Some(expected) = &entry.spec.cluster_identity
        && expected.cluster_id != peer.cluster_id
    {
        let message = format!(
            "{} is cluster {}, expected was {}; another cluster needs another ForeignCluster",
            entry.spec.auth_url, peer.cluster_id, expected.cluster_id
        );
        return Err(refused("AnotherCluster", message).into());
    }
    check(state, entry, &peer).await?;
    if let Some(message) = namesake(&context.settings.cluster(), &peer) {
        return Err(refused("SameName", message).into());
    }
    fill_in(context, entry, &peer, shown).await?;
    let met = Greeted { peer, generation: info.generation, shown, service };
    let start = Instant::now();
    let reached = ask::ask(state, entry, &met).await?;
    metrics::took(Step::Identity, start.elapsed());
    Ok(reached)
}

/// Not ourselves, and not a cluster that has an entry already.
async fn check(
    state: &Clusters,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
) -> Result<(), Error> {
    if peer.cluster_id == state.context.settings.cluster_id {
        let message = format!("{} is this very cluster", entry.spec.auth_url);
        return Err(refused("OwnCluster", message).into());
    }
    if let Some(other) = senior(entry, &peer.cluster_id, &state.known.all()) {
        let message = format!(
            "cluster {} is known already, as ForeignCluster {}: use that one, and delete this",
            peer.cluster_id,
            other.name_any()
        );
        if takes_over(entry, other) {
            let clusters = Api::<ForeignCluster>::all(state.context.client.clone());
            manual::take_over(&clusters, other).await?;
        }
        return Err(refused("Duplicate", message).into());
    }
    Ok(())
}

/// Writes who it is, so that all can read it.
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
        let (key, value) = PinnedBy::FirstUse.note(shown);
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

/// How often an entry is filled in anew when something else of it has changed meanwhile.
const TRIES: usize = 5;

/// Changes an entry, but not if somebody has changed what is wanted of it, such as by naming the
/// certificate: that brings it here again.
async fn patch_unless_changed(
    clusters: &Api<ForeignCluster>,
    entry: &ForeignCluster,
    mut patch: Value,
) -> kube::Result<()> {
    let (name, mut version) = (entry.name_any(), entry.resource_version());
    let params =
        PatchParams { field_manager: Some(super::MANAGER.to_owned()), ..PatchParams::default() };
    let mut tries = 0;
    loop {
        tries += 1;
        patch["metadata"]["resourceVersion"] = json!(version);
        let patched = clusters.patch(&name, &params, &Patch::Merge(&patch)).await;
        let is_conflict = matches!(&patched, Err(kube::Error::Api(status)) if status.code == 409);
        if !is_conflict || tries == TRIES {
            return patched.map(drop);
        }
        // Most often it is the status.
        let now = clusters.get(&name).await?;
        if now.spec != entry.spec {
            return patched.map(drop);
        }
        version = now.resource_version();
    }
}

pub(super) fn refused(reason: &'static str, message: String) -> Setback {
    Setback { status: AuthStatus::Refused, reason, message, soon: false }
}

pub(super) fn setback(entry: &ForeignCluster, failure: &Failure) -> Setback {
    let obstacle = failure.obstacle();
    let message = match obstacle.advice(entry) {
        Some(advice) => format!("{failure}; {advice}"),
        None => failure.to_string(),
    };
    Setback {
        status: obstacle.status(),
        reason: obstacle.reason(),
        message,
        soon: obstacle.may_go(),
    }
}
