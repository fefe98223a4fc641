//! Identities of clusters that are not to be found any more: they are kept as long as they count, so
//! that who comes back is known at once, and given back then.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tombolo_api::{discovery::ForeignCluster, names::KEPT_UNTIL_ANNOTATION};
use tombolo_core::discovery::expires_at;
use tombolo_runtime::{
    observe::Watched,
    queue::{self, Again, queue},
    writer,
};
use tracing::info;

use super::{
    Error, MANAGER, auth_service::AuthService, ending::give_back, kept::lifetime, stored::Stored,
};
use crate::{
    by_tenant::{peer_of, with_id},
    context::Context,
    identity::failed,
};

/// Runs until the end is asked for.
pub(super) async fn run(context: Arc<Context>) {
    let (queue, asked) = queue();
    let (namespaces, known) =
        (context.watches.of::<Namespace>(), context.watches.of::<ForeignCluster>());
    namespaces.feed(&queue, |namespace| until(namespace).map(|_| namespace.name_any()));
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
    let expired = expires_at(entry, Timestamp::MIN).zip(deleted);
    let is_over = expired.is_some_and(|(expiry, deleted)| expiry <= deleted);
    let (true, Some(lifetime)) = (is_over, lifetime) else { return Ok(false) };
    if lifetime.expires <= Timestamp::now() {
        return Ok(false);
    }
    note(context, tenant, Some(lifetime.expires)).await?;
    info!(cluster = entry.name_any(), until = %lifetime.expires, "keeping the identity");
    Ok(true)
}

async fn reconcile(
    namespace: &Namespace,
    context: &Context,
    known: &Watched<ForeignCluster>,
) -> Result<Again, Error> {
    let (Some(until), Some(peer)) = (until(namespace), peer_of(namespace)) else {
        return Ok(Again::WhenAsked);
    };
    let ends = namespace.metadata.deletion_timestamp.is_some();
    if ends || !with_id(known.index(), &peer).is_empty() {
        // It is that entry's again.
        return Ok(Again::WhenAsked);
    }
    let now = Timestamp::now();
    if now < until {
        return Ok(Again::After(until.duration_since(now).unsigned_abs()));
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
