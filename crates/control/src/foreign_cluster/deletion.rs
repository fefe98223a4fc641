//! Deletion of a ForeignCluster: the other cluster's request is refused, and when nothing of a
//! peering is left, the identity is released and the objects made for it are removed.

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::json;
use tombolo_api::{
    ClusterId,
    auth::{Confidential, IdentityRelease},
    discovery::{ForeignCluster, RequestState, ResourceRequest},
    names::{AUTH_NAMESPACE, IDENTITY_SECRET},
};
use tombolo_core::{
    discovery::is_left_to_others,
    identity::return_token_name,
    peering::{RequestOnUnpeer, is_requested_again, request_on_unpeer},
    view::{Entry, Request},
};
use tombolo_runtime::writer;
use tracing::info;

use super::{Error, auth_service::AuthService, retained_identity, stored_identity::StoredIdentity};
use crate::{
    context::Context,
    identity::{self, failed, tenant},
};

/// Whether the finalizer can go: everything that belongs to the entry is removed. `false` waits for
/// the end of the peering.
pub(super) async fn is_done(context: &Context, entry: &ForeignCluster) -> Result<bool, Error> {
    let (client, us) = (&context.client, &context.settings.cluster_name);
    let Some(peer) = &entry.spec.cluster_identity else { return Ok(true) };
    let Some(namespace) = tenant::find(client, &peer.cluster_id).await? else { return Ok(true) };
    let clusters = Api::<ForeignCluster>::all(client.clone());
    let others =
        clusters.list(&ListParams::default()).await.map_err(failed("list ForeignClusters"))?;
    let tenant_name = namespace.name_any();
    let others: Vec<_> = others.items.iter().map(Entry::from_resource).collect();
    let view = Entry::from_resource(entry);
    if is_left_to_others(&view, &others) || peer.cluster_id == context.settings.cluster_id {
        return Ok(true);
    }
    let requests = Api::<ResourceRequest>::namespaced(client.clone(), &tenant_name);
    let list = requests.list(&ListParams::default()).await;
    let list = list.map_err(failed(format!("list ResourceRequests in {tenant_name}")))?.items;
    let list: Vec<_> = list.iter().map(Request::from_resource).collect();
    if list.iter().any(|request| is_requested_again(request, us, &view)) {
        // Everything else belongs to the entry that is made for the new request.
        let ours =
            list.iter().any(|request| request_on_unpeer(request, us) == RequestOnUnpeer::Wait);
        return Ok(!ours && !tenant::has_borrowed(client, &tenant_name, us).await?);
    }
    let waiting = refuse(context, &requests, &list).await?;
    if waiting || tenant::has_peering(client, &tenant_name, us).await? {
        return Ok(false);
    }
    let stored = StoredIdentity::read(client, &tenant_name).await?;
    if !retained_identity::retain(context, entry, &tenant_name, stored.as_ref()).await? {
        let from = issuer(context, entry, &peer.cluster_id, stored).await?;
        release(context, &namespace, &peer.cluster_id, from).await?;
    }
    Ok(true)
}

/// The auth service to release the identity at, and the nonce. It is the one that issued the
/// identity, by its certificate: the entry may point to another server by now.
async fn issuer(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterId,
    stored: Option<StoredIdentity>,
) -> Result<Option<(AuthService, Confidential)>, Error> {
    let (url, pin) = (&entry.spec.auth_url, entry.spec.fingerprint);
    if let Some(stored) = stored {
        let issuer = stored.issuer(entry);
        let before = stored.auth_url.as_ref().filter(|_| issuer != pin);
        let service = issuer.map(|issuer| AuthService::new(before.unwrap_or(url), Some(issuer)));
        return Ok(service.map(|service| (service, stored.nonce)));
    }
    // An identity may have been issued but not stored; none is requested before the fingerprint is
    // pinned.
    let Some(pin) = pin else { return Ok(None) };
    let nonce = identity::nonce_for(&context.client, peer, pin).await?;
    Ok(Some((AuthService::new(url, Some(pin)), nonce)))
}

/// Releases the identity at the other cluster's auth service, and removes the objects made for it.
pub(super) async fn release(
    context: &Context,
    namespace: &Namespace,
    peer: &ClusterId,
    from: Option<(AuthService, Confidential)>,
) -> Result<(), Error> {
    let client = &context.client;
    if let Some((service, nonce)) = from {
        let release = IdentityRelease { cluster_id: context.settings.cluster_id.clone(), nonce };
        // The other cluster may be gone for good: clean up here anyway.
        if let Err(failure) = service.release(&release).await {
            info!(cluster = %peer, "can't release the identity: {failure}");
        }
    }
    let records = Api::<Secret>::namespaced(client.clone(), AUTH_NAMESPACE);
    delete(&records, &return_token_name(peer)).await?;
    let secrets = Api::<Secret>::namespaced(client.clone(), &namespace.name_any());
    delete(&secrets, IDENTITY_SECRET).await?;
    context.remotes.forget(&namespace.name_any());
    let us = &context.settings.cluster_name;
    Ok(tenant::remove_unless_needed(client, namespace, peer, us).await?)
}

async fn delete(secrets: &Api<Secret>, name: &str) -> Result<(), Error> {
    let gone = secrets.delete(name, &Default::default()).await.map(drop);
    Ok(writer::absent_is_fine(gone).map_err(failed(format!("delete Secret {name}")))?)
}

/// Refuses the other cluster's requests, which ends the peering there too. Returns whether there
/// are requests to wait for.
async fn refuse(
    context: &Context,
    api: &Api<ResourceRequest>,
    requests: &[Request<'_>],
) -> Result<bool, Error> {
    let mut waiting = false;
    for request in requests {
        let action = request_on_unpeer(request, &context.settings.cluster_name);
        waiting |= action != RequestOnUnpeer::Leave;
        if action == RequestOnUnpeer::Refuse {
            let name = request.name;
            let status = json!({ "state": RequestState::Refused });
            let written = writer::apply_status(api, super::MANAGER, name, &status).await;
            writer::absent_is_fine(written.map(drop))
                .map_err(failed(format!("refuse ResourceRequest {name}")))?;
            info!(
                cluster = name,
                "refused the ResourceRequest: the ForeignCluster is being deleted"
            );
        }
    }
    Ok(waiting)
}
