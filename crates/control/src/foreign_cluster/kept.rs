//! The identity that another cluster has given: whether it is there and counts, and how it is renewed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::{Api, ResourceExt, api::ListParams};
use tokio::time::timeout;
use tombolo_api::{
    ClusterIdentity,
    discovery::{ForeignCluster, ResourceRequest, TenantNamespace, condition::API_SERVER},
};
use tombolo_core::{
    condition::find,
    identity::{Access, Credentials, Lifetime, TokenClaims},
    tenant::namespace_of,
};
use tombolo_runtime::metrics::Met;
use tracing::info;

use super::{Authenticated, Error, own_key, stored::Stored};
use crate::{
    context::Context,
    identity::{self, base64, tenant},
};

/// A renewal that failed is tried again after this long.
const RENEW_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// An identity that could not be tried is tried again after this long.
const DOUBT_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// A certificate says nothing when its rights are taken away: it is tried this often.
const TRY_AGAIN: SignedDuration = SignedDuration::from_secs(60);
/// How long the other cluster may take to say that.
const PATIENCE: Duration = Duration::from_secs(3);

/// What there is of an identity.
pub(super) enum Kept {
    /// It counts.
    Good(Authenticated),
    /// Nobody says that it does not, but it could not be tried either.
    InDoubt(Authenticated),
    /// It counts for a while, and the next one is to be asked for.
    Due { reached: Authenticated, expires: Timestamp },
    /// It has to be asked for.
    None,
}

/// The identity that is there, renewed if it is time. One that counts is kept whatever the URL is by
/// now: that is for when the next one has to be asked for.
pub(super) async fn keep(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
) -> Result<Kept, Error> {
    let Some(tenant) = namespace_of(entry) else { return Ok(Kept::None) };
    let Some(stored) = Stored::read(&context.client, tenant).await? else {
        return Ok(Kept::None);
    };
    let Some(access) = stored.access else { return Ok(Kept::None) };
    let owes_token = entry.spec.join && !stored.return_token_sent;
    let lifetime = lifetime(&access.credentials);
    let (false, Ok(lifetime)) = (owes_token, lifetime) else { return Ok(Kept::None) };

    let reached = |renew_at| reached(tenant, &access, renew_at);
    let now = Timestamp::now();
    let conditions = entry.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
    let in_doubt = find(conditions, API_SERVER).is_some_and(|said| said.status == "False");
    if now < lifetime.renew_at() {
        let look = look_again(&access.credentials, &lifetime);
        if !in_doubt && matches!(access.credentials, Credentials::Token(_)) {
            return Ok(Kept::Good(reached(look)));
        }
        return Ok(match counts(context, tenant, peer, &access).await {
            Some(true) => Kept::Good(reached(look)),
            Some(false) => Kept::None,
            None if in_doubt => Kept::InDoubt(reached(after(DOUBT_AGAIN))),
            None => Kept::Good(reached(look)),
        });
    }
    let expires = lifetime.expires;
    if now >= expires {
        return Ok(Kept::None);
    }
    Ok(Kept::Due { reached: reached(after(RENEW_AGAIN)), expires })
}

/// Renews a token at the other cluster's API server, where its auth service gives no new identity.
/// `None`: there is no token, or it counts no more.
pub(super) async fn renew_token(
    context: &Context,
    peer: &ClusterIdentity,
    due: &Authenticated,
) -> Result<Option<Authenticated>, Error> {
    let Some(tenant) = &due.tenant.local else { return Ok(None) };
    let Some(mut stored) = Stored::read(&context.client, tenant).await? else { return Ok(None) };
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
            // From here on the new token counts for all who use the client.
            let _ = context.remotes.in_namespace(tenant, peer.clone()).await;
            info!(cluster = %peer.cluster_name, "renewed the identity");
            let renew_at = claims.map(|claims| claims.lifetime.renew_at());
            Ok(renew_at.map(|renew_at| Authenticated { renew_at, ..due.clone() }))
        }
        Err(error) => {
            info!(cluster = %peer.cluster_name, "the token can't be renewed: {error}");
            Ok(None)
        }
    }
}

/// The identity that the cluster gave before it was forgotten, if it still counts: for an entry that
/// is new. Nothing is changed. It is for who shows the certificate that was shown when it was given.
pub(super) async fn from_before(
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
    let stored = Stored::read(&context.client, &tenant).await?.unwrap_or_default();
    let owes_token = entry.spec.join && !stored.return_token_sent;
    let same = stored.fingerprint == Some(pin);
    let (Some(access), true, false) = (stored.access, same, owes_token) else { return Ok(None) };
    let Ok(lifetime) = lifetime(&access.credentials) else { return Ok(None) };
    if Timestamp::now() >= lifetime.renew_at() {
        return Ok(None);
    }
    let look = look_again(&access.credentials, &lifetime);
    let counts = counts(context, &tenant, peer, &access).await == Some(true);
    Ok(counts.then(|| reached(&tenant, &access, look)))
}

/// What is reached with an identity that was there already.
fn reached(tenant: &str, access: &Access, renew_at: Timestamp) -> Authenticated {
    Authenticated {
        tenant: TenantNamespace {
            local: Some(tenant.to_owned()),
            remote: Some(access.namespace.clone()),
        },
        server: access.server.clone(),
        form: access.credentials.form(),
        met: Met::Before,
        renew_at,
        overdue: None,
    }
}

/// When to look at them again: who has a certificate is not told when it counts no more.
pub(super) fn look_again(credentials: &Credentials, lifetime: &Lifetime) -> Timestamp {
    match credentials {
        Credentials::Token(_) => lifetime.renew_at(),
        Credentials::Certificate { .. } => lifetime.renew_at().min(after(TRY_AGAIN)),
    }
}

fn after(wait: SignedDuration) -> Timestamp {
    let now = Timestamp::now();
    now.saturating_add(wait).unwrap_or(now)
}

/// How long they count, or what is wrong with them.
pub(super) fn lifetime(credentials: &Credentials) -> Result<Lifetime, String> {
    match credentials {
        Credentials::Token(token) => TokenClaims::read(token.reveal(), base64::url_safe)
            .map(|claims| claims.lifetime)
            .map_err(|error| error.to_string()),
        Credentials::Certificate { key: None, .. } => Err("it has no key".to_owned()),
        Credentials::Certificate { certificate, key: Some(_) } => {
            own_key::lifetime(certificate).map_err(|error| error.to_string())
        }
    }
}

/// Whether the other cluster says that it does not know us any more.
pub(super) async fn is_unknown(
    context: &Context,
    peer: &ClusterIdentity,
    reached: &Authenticated,
) -> bool {
    let Some(tenant) = &reached.tenant.local else { return false };
    let Ok(stored) = Stored::read(&context.client, tenant).await else { return false };
    match stored.and_then(|stored| stored.access) {
        Some(access) => counts(context, tenant, peer, &access).await == Some(false),
        None => true,
    }
}

/// Whether the other cluster still knows us, if it says.
async fn counts(
    context: &Context,
    tenant: &str,
    peer: &ClusterIdentity,
    access: &Access,
) -> Option<bool> {
    let kubeconfig = access.kubeconfig(&peer.cluster_name);
    let remote = context.remotes.by_kubeconfig(tenant, peer.clone(), kubeconfig.reveal()).await;
    let Ok(remote) = remote else { return Some(false) };
    let requests = Api::<ResourceRequest>::namespaced(remote.client, &remote.namespace);
    // Whoever is asked like this need not make sure that it has heard of everything.
    let as_cached = ListParams::default().match_any();
    match timeout(PATIENCE, requests.list_metadata(&as_cached)).await.ok()? {
        Ok(_) => Some(true),
        Err(error) => says_unknown(&error).then_some(false),
    }
}

fn says_unknown(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [401, 403, 404].contains(&status.code))
}
