//! The end of a ForeignCluster: the other cluster's request is refused, and when nothing of a
//! peering is left, the identity is given back and what was made for it is removed.

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
    view::Request,
};
use tombolo_runtime::writer;
use tracing::info;

use super::{Error, auth_service::AuthService, forgotten, stored::Stored};
use crate::{
    context::Context,
    identity::{self, failed, tenant},
};

/// Whether the entry can go: what it stood for has been removed. `false` waits for the peering.
pub(super) async fn is_done(context: &Context, entry: &ForeignCluster) -> Result<bool, Error> {
    let (client, us) = (&context.client, &context.settings.cluster_name);
    let Some(peer) = &entry.spec.cluster_identity else { return Ok(true) };
    let Some(namespace) = tenant::find(client, &peer.cluster_id).await? else { return Ok(true) };
    let clusters = Api::<ForeignCluster>::all(client.clone());
    let others =
        clusters.list(&ListParams::default()).await.map_err(failed("list the clusters"))?;
    let tenant_name = namespace.name_any();
    if is_left_to_others(entry, &others.items) || peer.cluster_id == context.settings.cluster_id {
        return Ok(true);
    }
    let requests = Api::<ResourceRequest>::namespaced(client.clone(), &tenant_name);
    let asked = requests.list(&ListParams::default()).await;
    let asked = asked.map_err(failed(format!("list the requests in {tenant_name}")))?.items;
    let asked: Vec<_> = asked.iter().map(Request::from_resource).collect();
    if asked.iter().any(|request| is_requested_again(request, us, entry)) {
        // What else is there is for the entry that comes with the new request.
        let ours =
            asked.iter().any(|request| request_on_unpeer(request, us) == RequestOnUnpeer::Wait);
        return Ok(!ours && !tenant::has_borrowed(client, &tenant_name).await?);
    }
    let waiting = refuse(context, &requests, &asked).await?;
    if waiting || tenant::has_peering(client, &tenant_name, us).await? {
        return Ok(false);
    }
    let stored = Stored::read(client, &tenant_name).await?;
    if !forgotten::keeps(context, entry, &tenant_name, stored.as_ref()).await? {
        let from = giver(context, entry, &peer.cluster_id, stored).await?;
        give_back(context, &namespace, &peer.cluster_id, from).await?;
    }
    Ok(true)
}

/// Whom to tell that the identity is given back, and what shows that it is ours. By its certificate it
/// is who gave it: the entry may have followed somebody else since.
async fn giver(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterId,
    stored: Option<Stored>,
) -> Result<Option<(AuthService, Confidential)>, Error> {
    let (url, pin) = (&entry.spec.auth_url, entry.spec.fingerprint);
    if let Some(stored) = stored {
        let giver = stored.giver(entry);
        let before = stored.auth_url.as_ref().filter(|_| giver != pin);
        let service = giver.map(|giver| AuthService::new(before.unwrap_or(url), Some(giver)));
        return Ok(service.map(|service| (service, stored.nonce)));
    }
    // It may have been asked for, only not stored; but nobody is asked before it is pinned.
    let Some(pin) = pin else { return Ok(None) };
    let nonce = identity::nonce_for(&context.client, peer, pin).await?;
    Ok(Some((AuthService::new(url, Some(pin)), nonce)))
}

/// Gives back the identity that there is at another cluster, by its auth service, and removes what
/// was made for it.
pub(super) async fn give_back(
    context: &Context,
    namespace: &Namespace,
    peer: &ClusterId,
    from: Option<(AuthService, Confidential)>,
) -> Result<(), Error> {
    let client = &context.client;
    if let Some((service, nonce)) = from {
        let release = IdentityRelease { cluster_id: context.settings.cluster_id.clone(), nonce };
        // It may be gone for good: no reason to keep what there is here.
        if let Err(failure) = service.release(&release).await {
            info!(cluster = %peer, "give the identity back: {failure}");
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

/// Refuses what the other cluster asks for, which ends the peering there too. Whether there are
/// requests to wait for.
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
            let said = writer::apply_status(api, super::MANAGER, name, &status).await;
            writer::absent_is_fine(said.map(drop))
                .map_err(failed(format!("refuse the ResourceRequest of {name}")))?;
            info!(cluster = name, "refused: its ForeignCluster is being deleted");
        }
    }
    Ok(waiting)
}
