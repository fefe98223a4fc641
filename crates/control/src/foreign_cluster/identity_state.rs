//! The identity that another cluster has issued: whether it exists, is still accepted, and how it
//! is renewed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt, api::ListParams};
use tokio::time::timeout;
use tombolo_api::{
    ClusterIdentity,
    discovery::{ForeignCluster, ResourceRequest, TenantNamespace},
};
use tombolo_core::{
    identity::{Access, Credentials, Lifetime, TokenClaims},
    view::Peer,
};
use tombolo_runtime::metrics::IdentitySource;
use tracing::info;

use super::{Authenticated, Error, own_key, stored_identity::StoredIdentity};
use crate::{
    context::Context,
    identity::{self, base64, tenant},
};

/// Retry interval of a failed renewal.
const RENEWAL_RETRY: SignedDuration = SignedDuration::from_secs(60);

/// Retry interval when an identity could not be verified.
const UNVERIFIED_RETRY: SignedDuration = SignedDuration::from_secs(30);

/// Nothing signals that the rights of a certificate were revoked, so it is verified this often.
const VERIFY_INTERVAL: SignedDuration = SignedDuration::from_secs(60);
/// Time limit of a verification.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(3);

/// State of the stored identity.
pub(super) enum IdentityState {
    /// It is valid.
    Valid(Authenticated),
    /// The API server neither accepted nor rejected it.
    Unverified(Authenticated),
    /// It is still valid, and the next one is to be requested.
    RenewalDue { reached: Authenticated, expires: Timestamp },
    /// One has to be requested.
    Missing,
}

/// The state of the stored identity. A valid one stays in use whatever `spec.authUrl` is by now:
/// the URL matters for the next request.
pub(super) async fn check(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
) -> Result<IdentityState, Error> {
    let view = Peer::from_resource(entry);
    let Some(tenant) = view.tenant else { return Ok(IdentityState::Missing) };
    let Some(stored) = StoredIdentity::read(&context.client, tenant).await? else {
        return Ok(IdentityState::Missing);
    };
    let Some(access) = stored.access else { return Ok(IdentityState::Missing) };
    let owes_token = entry.spec.join && !stored.return_token_sent;
    let lifetime = lifetime(&access.credentials);
    let (false, Ok(lifetime)) = (owes_token, lifetime) else { return Ok(IdentityState::Missing) };

    let reached = |renew_at| reached(tenant, &access, renew_at);
    let now = Timestamp::now();
    let in_doubt = view.api_server.is_some_and(|it| it.status == "False");
    if now < lifetime.renew_at() {
        let look = recheck_at(&access.credentials, &lifetime);
        if !in_doubt && matches!(access.credentials, Credentials::Token(_)) {
            return Ok(IdentityState::Valid(reached(look)));
        }
        return Ok(match is_accepted(context, tenant, peer, &access).await {
            Some(true) => IdentityState::Valid(reached(look)),
            Some(false) => IdentityState::Missing,
            None if in_doubt => IdentityState::Unverified(reached(after(UNVERIFIED_RETRY))),
            None => IdentityState::Valid(reached(look)),
        });
    }
    let expires = lifetime.expires;
    if now >= expires {
        return Ok(IdentityState::Missing);
    }
    Ok(IdentityState::RenewalDue { reached: reached(after(RENEWAL_RETRY)), expires })
}

/// Renews a token at the other cluster's API server, where its auth service issues no new identity.
/// `None`: there is no token, or it is no longer accepted.
pub(super) async fn renew_token(
    context: &Context,
    peer: &ClusterIdentity,
    due: &Authenticated,
) -> Result<Option<Authenticated>, Error> {
    let Some(tenant) = &due.tenant.local else { return Ok(None) };
    let Some(mut stored) = StoredIdentity::read(&context.client, tenant).await? else {
        return Ok(None);
    };
    let Some(Access { credentials: Credentials::Token(token), .. }) = &stored.access else {
        return Ok(None);
    };
    let claims = TokenClaims::read(token.reveal(), base64::url_safe).ok();
    let remote = context.remotes.in_namespace(tenant, peer.clone()).await.ok();
    let (Some(claims), Some(remote)) = (claims, remote) else { return Ok(None) };
    let renewed = identity::request_token(&remote.client, &remote.namespace, &claims.account).await;
    match renewed {
        Ok(token) => {
            let claims = TokenClaims::read(token.reveal(), base64::url_safe).ok();
            if let Some(access) = &mut stored.access {
                access.credentials = Credentials::Token(token);
            }
            stored.write(&context.client, tenant, peer).await?;
            // All users of the client switch to the new token.
            let _ = context.remotes.in_namespace(tenant, peer.clone()).await;
            info!(cluster = %peer.cluster_name, "renewed the identity");
            let renew_at = claims.map(|claims| claims.lifetime.renew_at());
            Ok(renew_at.map(|renew_at| Authenticated { renew_at, ..due.clone() }))
        }
        Err(error) => {
            info!(cluster = %peer.cluster_name, "can't renew the token: {error}");
            Ok(None)
        }
    }
}

/// The retained identity for a new entry, if it is still accepted and the entry is pinned to the
/// certificate under which it was issued. Changes nothing.
pub(super) async fn reuse(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
) -> Result<Option<Authenticated>, Error> {
    let Some(pin) = entry.spec.fingerprint else { return Ok(None) };
    let found = tenant::known(context, &peer.cluster_id).await;
    let Some(namespace) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else {
        return Ok(None);
    };
    let tenant = namespace.name_any();
    let stored = StoredIdentity::read(&context.client, &tenant).await?.unwrap_or_default();
    let owes_token = entry.spec.join && !stored.return_token_sent;
    let same = stored.fingerprint == Some(pin);
    let (Some(access), true, false) = (stored.access, same, owes_token) else { return Ok(None) };
    let Ok(lifetime) = lifetime(&access.credentials) else { return Ok(None) };
    if Timestamp::now() >= lifetime.renew_at() {
        return Ok(None);
    }
    let look = recheck_at(&access.credentials, &lifetime);
    let is_accepted = is_accepted(context, &tenant, peer, &access).await == Some(true);
    Ok(is_accepted.then(|| reached(&tenant, &access, look)))
}

/// An identity that existed already.
fn reached(tenant: &str, access: &Access, renew_at: Timestamp) -> Authenticated {
    Authenticated {
        tenant: TenantNamespace {
            local: Some(tenant.to_owned()),
            remote: Some(access.namespace.clone()),
        },
        server: access.server.clone(),
        form: access.credentials.form(),
        source: IdentitySource::Reused,
        renew_at,
        overdue: None,
    }
}

/// When to check the credentials again: nothing signals that a certificate was revoked.
pub(super) fn recheck_at(credentials: &Credentials, lifetime: &Lifetime) -> Timestamp {
    match credentials {
        Credentials::Token(_) => lifetime.renew_at(),
        Credentials::Certificate { .. } => lifetime.renew_at().min(after(VERIFY_INTERVAL)),
    }
}

fn after(wait: SignedDuration) -> Timestamp {
    let now = Timestamp::now();
    now.saturating_add(wait).unwrap_or(now)
}

/// Lifetime of the credentials, or what is wrong with them.
pub(super) fn lifetime(credentials: &Credentials) -> Result<Lifetime, String> {
    match credentials {
        Credentials::Token(token) => TokenClaims::read(token.reveal(), base64::url_safe)
            .map(|claims| claims.lifetime)
            .map_err(|error| error.to_string()),
        Credentials::Certificate { key: None, .. } => Err("the certificate has no key".to_owned()),
        Credentials::Certificate { certificate, key: Some(_) } => {
            own_key::lifetime(certificate).map_err(|error| error.to_string())
        }
    }
}

/// Whether the other cluster rejects the identity.
pub(super) async fn is_rejected(
    context: &Context,
    peer: &ClusterIdentity,
    reached: &Authenticated,
) -> bool {
    let Some(tenant) = &reached.tenant.local else { return false };
    let Ok(stored) = StoredIdentity::read(&context.client, tenant).await else { return false };
    match stored.and_then(|stored| stored.access) {
        Some(access) => is_accepted(context, tenant, peer, &access).await == Some(false),
        None => true,
    }
}

/// Whether the other cluster accepts the identity, if it answers.
async fn is_accepted(
    context: &Context,
    tenant: &str,
    peer: &ClusterIdentity,
    access: &Access,
) -> Option<bool> {
    let kubeconfig = access.kubeconfig(&peer.cluster_name);
    let remote = context.remotes.by_kubeconfig(tenant, peer.clone(), kubeconfig.reveal()).await;
    let Ok(remote) = remote else { return Some(false) };
    let requests = Api::<ResourceRequest>::namespaced(remote.client, &remote.namespace);
    // Resource version "any": the API server answers from its cache.
    let as_cached = ListParams::default().match_any();
    match timeout(VERIFY_TIMEOUT, requests.list_metadata(&as_cached)).await.ok()? {
        Ok(_) => Some(true),
        Err(error) => is_rejection(&error).then_some(false),
    }
}

fn is_rejection(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [401, 403, 404].contains(&status.code))
}
