//! Identities of clusters that are not to be found any more: some of them are kept as long as they
//! count, so that who comes back is known at once, and given back then.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::Store,
};
use serde_json::json;
use tombolo_api::{discovery::ForeignCluster, names::KEPT_UNTIL_ANNOTATION};
use tombolo_core::{
    discovery::expires_at,
    tenant::{id_of, peer_of},
};
use tombolo_runtime::{
    observe::Watched,
    queue::{self, Again, queue},
    writer,
};
use tracing::info;

use super::{
    Error, MANAGER, auth_service::AuthService, ending::give_back, kept::lifetime, stored::Stored,
};
use crate::{by_tenant::with_id, context::Context, identity::failed};

/// How many are kept: anybody can announce clusters that come and go, and give an identity for each.
const MOST_KEPT: usize = 256;

/// Runs until the end is asked for.
pub(super) async fn run(context: Arc<Context>) {
    let (queue, asked) = queue();
    let (namespaces, known) =
        (context.watches.of::<Namespace>(), context.watches.of::<ForeignCluster>());
    namespaces.feed(&queue, |namespace| until(namespace).map(|_| namespace.name_any()));
    // When the last entry of a cluster has gone, the identity is nobody's.
    let index = namespaces.index().clone();
    known.feed(&queue, move |entry| kept_for(&index, entry));
    let work = queue::run("forgotten-cluster", asked, async |name: String| {
        known.filled().await;
        match namespaces.get("", &name) {
            Some(namespace) => reconcile(&namespace, &context, &known).await,
            None => Ok(Again::WhenAsked),
        }
    });
    context.shutdown.or(work).await;
}

/// Whether the identity at a cluster stays though its entry goes: the entry goes because the cluster
/// was not seen for too long, and nobody has said that it is to be forgotten.
pub(super) async fn keeps(
    context: &Context,
    entry: &ForeignCluster,
    tenant: &str,
    stored: Option<&Stored>,
) -> Result<bool, Error> {
    let access = stored.and_then(|stored| stored.access.as_ref());
    let lifetime = access.and_then(|access| lifetime(&access.credentials).ok());
    let deleted = entry.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    // Whoever is to be joined has given no identity, or somebody has deleted it.
    let expired = deleted.filter(|deleted| {
        let expiry = expires_at(entry, Timestamp::MIN, *deleted);
        !entry.spec.join && expiry.is_some_and(|expiry| expiry <= *deleted)
    });
    let (Some(deleted), Some(lifetime)) = (expired, lifetime) else { return Ok(false) };
    let until = lifetime.kept_until(deleted);
    if until <= Timestamp::now() || is_full(context, tenant) {
        return Ok(false);
    }
    note(context, tenant, Some(until)).await?;
    info!(cluster = entry.name_any(), %until, "keeping the identity");
    Ok(true)
}

/// Whether no more identities are to be kept, but for the one in this namespace. Those of clusters
/// that have come back are not counted.
fn is_full(context: &Context, tenant: &str) -> bool {
    let now = Timestamp::now();
    let is_another = |namespace: &Namespace| {
        until(namespace).is_some_and(|until| now < until) && namespace.name_any() != tenant
    };
    let kept = context.watches.of::<Namespace>().index().state_filter(is_another);
    if kept.len() < MOST_KEPT {
        return false;
    }
    let known = context.watches.of::<ForeignCluster>().all();
    let stays = known.iter().filter(|entry| entry.metadata.deletion_timestamp.is_none());
    let there: BTreeSet<_> = stays.filter_map(|entry| id_of(entry)).collect();
    let is_gone =
        |namespace: &&Arc<Namespace>| peer_of(namespace).is_some_and(|peer| !there.contains(&peer));
    kept.iter().filter(is_gone).count() >= MOST_KEPT
}

/// The namespaces in which an identity of the cluster of this entry is kept.
fn kept_for(namespaces: &Store<Namespace>, entry: &ForeignCluster) -> Vec<String> {
    let Some(id) = id_of(entry) else { return Vec::new() };
    let is_its = |namespace: &Namespace| {
        until(namespace).is_some() && peer_of(namespace).is_some_and(|peer| peer == *id)
    };
    namespaces.state_filter(is_its).iter().map(|namespace| namespace.name_any()).collect()
}

async fn reconcile(
    namespace: &Namespace,
    context: &Context,
    known: &Watched<ForeignCluster>,
) -> Result<Again, Error> {
    let (Some(end), Some(peer)) = (until(namespace), peer_of(namespace)) else {
        return Ok(Again::WhenAsked);
    };
    let ends = namespace.metadata.deletion_timestamp.is_some();
    if ends || !with_id(known.index(), &peer).is_empty() {
        // It is that entry's, still or again: it comes here when that has gone.
        return Ok(Again::WhenAsked);
    }
    let now = Timestamp::now();
    if now < end {
        return Ok(Again::After(end.duration_since(now).unsigned_abs()));
    }
    let namespaces = Api::<Namespace>::all(context.client.clone());
    let noted = namespaces.get_opt(&namespace.name_any()).await;
    let noted = noted.map_err(failed("read until when an identity is kept"))?;
    if noted.as_ref().and_then(until) != Some(end) {
        // It is kept anew, only that was not seen yet: then it comes here again.
        return Ok(Again::WhenAsked);
    }
    info!(cluster = %peer, "it has not come back");
    let stored = Stored::read(&context.client, &namespace.name_any()).await?;
    let from = stored.and_then(|stored| {
        let service = AuthService::new(stored.auth_url.as_deref()?, Some(stored.fingerprint?));
        Some((service, stored.nonce))
    });
    give_back(context, namespace, &peer, from).await?;
    // The other cluster may need the namespace still.
    note(context, &namespace.name_any(), None).await?;
    Ok(Again::WhenAsked)
}

/// Notes until when the identity in a namespace is kept, or that there is none any more.
async fn note(context: &Context, tenant: &str, until: Option<Timestamp>) -> Result<(), Error> {
    let namespaces = Api::<Namespace>::all(context.client.clone());
    let annotations = json!({ KEPT_UNTIL_ANNOTATION: until.map(|until| until.to_string()) });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let noted = namespaces.patch(tenant, &params, &patch).await.map(drop);
    let noted = writer::absent_is_fine(noted);
    Ok(noted.map_err(failed(format!("note until when the identity in {tenant} is kept")))?)
}

fn until(namespace: &Namespace) -> Option<Timestamp> {
    namespace.annotations().get(KEPT_UNTIL_ANNOTATION)?.parse().ok()
}
