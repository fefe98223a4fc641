//! Identities of clusters that are no longer discovered. Some are retained as long as they are
//! valid, so that a cluster that comes back is authenticated at once; then they are released.

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
    tenant::peer_of,
    view::{Entry, Peer},
};
use tombolo_runtime::{
    observe::Watched,
    queue::{self, Requeue, queue},
    writer,
};
use tracing::info;

use super::{
    Error, MANAGER, auth_service::AuthService, deletion::release, identity_state::lifetime,
    stored_identity::StoredIdentity,
};
use crate::{by_tenant::with_id, context::Context, identity::failed};

/// Anybody can announce clusters that come and go, and issue an identity for each.
const MAX_RETAINED: usize = 256;

/// Runs until shutdown.
pub(super) async fn run(context: Arc<Context>) {
    let (queue, receiver) = queue();
    let (namespaces, known) =
        (context.watches.of::<Namespace>(), context.watches.of::<ForeignCluster>());
    namespaces.enqueue(&queue, |namespace| until(namespace).map(|_| namespace.name_any()));
    // When the last entry of a cluster is gone, the identity has no owner.
    let index = namespaces.index().clone();
    known.enqueue(&queue, move |entry| retained_for(&index, entry));
    let work = queue::run("retained-identity", receiver, async |name: String| {
        known.synced().await;
        match namespaces.get("", &name) {
            Some(namespace) => reconcile(&namespace, &context, &known).await,
            None => Ok(Requeue::OnChange),
        }
    });
    context.shutdown.or(work).await;
}

/// Retains the identity of an entry that is being deleted because it has expired. Returns whether
/// it did: not if a user has deleted the entry.
pub(super) async fn retain(
    context: &Context,
    entry: &ForeignCluster,
    tenant: &str,
    stored: Option<&StoredIdentity>,
) -> Result<bool, Error> {
    let access = stored.and_then(|stored| stored.access.as_ref());
    let lifetime = access.and_then(|access| lifetime(&access.credentials).ok());
    let entry = Entry::from_resource(entry);
    // An entry with `join` either has no identity, or a user has deleted it.
    let expired = entry.deleted.filter(|deleted| {
        let expiry = expires_at(&entry, Timestamp::MIN, *deleted);
        !entry.join && expiry.is_some_and(|expiry| expiry <= *deleted)
    });
    let (Some(deleted), Some(lifetime)) = (expired, lifetime) else { return Ok(false) };
    let until = lifetime.retained_until(deleted);
    if until <= Timestamp::now() || is_full(context, tenant) {
        return Ok(false);
    }
    note(context, tenant, Some(until)).await?;
    info!(cluster = entry.name, %until, "retaining the identity");
    Ok(true)
}

/// Whether the limit of retained identities is reached, not counting this namespace and clusters
/// that have come back.
fn is_full(context: &Context, tenant: &str) -> bool {
    let now = Timestamp::now();
    let is_another = |namespace: &Namespace| {
        until(namespace).is_some_and(|until| now < until) && namespace.name_any() != tenant
    };
    let retained = context.watches.of::<Namespace>().index().state_filter(is_another);
    if retained.len() < MAX_RETAINED {
        return false;
    }
    let known = context.watches.of::<ForeignCluster>().all();
    let known = known.iter().map(|entry| Peer::from_resource(entry));
    let there: BTreeSet<_> =
        known.filter(|peer| !peer.is_deleted).filter_map(|peer| peer.id()).collect();
    let is_gone =
        |namespace: &&Arc<Namespace>| peer_of(namespace).is_some_and(|peer| !there.contains(&peer));
    retained.iter().filter(is_gone).count() >= MAX_RETAINED
}

/// The namespaces with a retained identity of this entry's cluster.
fn retained_for(namespaces: &Store<Namespace>, entry: &ForeignCluster) -> Vec<String> {
    let Some(id) = Peer::from_resource(entry).id() else { return Vec::new() };
    let is_its = |namespace: &Namespace| {
        until(namespace).is_some() && peer_of(namespace).is_some_and(|peer| peer == *id)
    };
    namespaces.state_filter(is_its).iter().map(|namespace| namespace.name_any()).collect()
}

async fn reconcile(
    namespace: &Namespace,
    context: &Context,
    known: &Watched<ForeignCluster>,
) -> Result<Requeue, Error> {
    let (Some(end), Some(peer)) = (until(namespace), peer_of(namespace)) else {
        return Ok(Requeue::OnChange);
    };
    let ends = namespace.metadata.deletion_timestamp.is_some();
    if ends || !with_id(known.index(), &peer).is_empty() {
        // The identity belongs to that entry. Its deletion enqueues this namespace again.
        return Ok(Requeue::OnChange);
    }
    let now = Timestamp::now();
    if now < end {
        return Ok(Requeue::After(end.duration_since(now).unsigned_abs()));
    }
    let namespaces = Api::<Namespace>::all(context.client.clone());
    let written = namespaces.get_opt(&namespace.name_any()).await;
    let written = written.map_err(failed(format!("read Namespace {}", namespace.name_any())))?;
    if written.as_ref().and_then(until) != Some(end) {
        // It was retained again, which the watch does not show yet.
        return Ok(Requeue::OnChange);
    }
    info!(cluster = %peer, "releasing the retained identity: the cluster has not come back");
    let stored = StoredIdentity::read(&context.client, &namespace.name_any()).await?;
    let from = stored.and_then(|stored| {
        let service = AuthService::new(stored.auth_url.as_deref()?, Some(stored.fingerprint?));
        Some((service, stored.nonce))
    });
    release(context, namespace, &peer, from).await?;
    // The other cluster may still need the namespace.
    note(context, &namespace.name_any(), None).await?;
    Ok(Requeue::OnChange)
}

/// Sets or removes the time until which the identity in a namespace is retained.
async fn note(context: &Context, tenant: &str, until: Option<Timestamp>) -> Result<(), Error> {
    let namespaces = Api::<Namespace>::all(context.client.clone());
    let annotations = json!({ KEPT_UNTIL_ANNOTATION: until.map(|until| until.to_string()) });
    let patch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let written = namespaces.patch(tenant, &params, &patch).await.map(drop);
    let written = writer::absent_is_fine(written);
    Ok(written
        .map_err(failed(format!("annotate Namespace {tenant} with {KEPT_UNTIL_ANNOTATION}")))?)
}

fn until(namespace: &Namespace) -> Option<Timestamp> {
    namespace.annotations().get(KEPT_UNTIL_ANNOTATION)?.parse().ok()
}
