//! From a URL to an identity that works: who is there, may we have an identity, does it still count.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams},
};
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tombolo_api::{
    ClusterIdentity, Fingerprint,
    auth::{Confidential, IdentityRequest, Refusal},
    discovery::{
        AuthStatus, DiscoveryType, ForeignCluster, ResourceRequest, TenantNamespace,
        condition::{API_SERVER, WRONG_TOKEN},
    },
    names::{
        AUTH_NAMESPACE, AUTH_TOKEN_KEY, AUTH_TOKEN_LABEL, CLUSTER_ID_LABEL, DISCOVERY_TYPE_LABEL,
        NAMESPACE,
    },
};
use tombolo_core::{
    condition::find,
    discovery::{kind, senior},
    identity::{
        Access, Credentials, Incomplete, Lifetime, TokenClaims, namesake, nonce, return_token_name,
    },
};
use tombolo_runtime::remote::NoIdentity;
use tracing::{debug, info, warn};

use super::{
    Authenticated, Clusters, Error, Setback,
    ask::Asking,
    auth_service::{AuthService, Failure},
    own_key,
    stored::Stored,
};
use crate::{
    auth_url,
    context::Context,
    identity::{self, base64, failed, tenant},
};

/// A renewal that failed is tried again after this long.
const RENEW_AGAIN: SignedDuration = SignedDuration::from_secs(60);

/// An identity that could not be tried is tried again after this long.
const DOUBT_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// A certificate says nothing when its rights are taken away: it is tried this often.
const TRY_AGAIN: SignedDuration = SignedDuration::from_secs(60);
/// How long the other cluster may take to say that.
const PATIENCE: Duration = Duration::from_secs(3);

/// Sees to it that there is an identity, and that it counts for some time to come.
pub(super) async fn run(state: &Clusters, entry: &ForeignCluster) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let Some(peer) = &entry.spec.cluster_identity else { return meet(state, entry).await };
    check(state, entry, peer).await?;
    // It may have got another name by now.
    if namesake(&context.settings.cluster(), peer).is_some() {
        return meet(state, entry).await;
    }
    match keep(context, entry, peer).await? {
        Kept::Good(reached) => Ok(reached),
        // Its API server may be elsewhere by now, or have another certificate.
        Kept::InDoubt(reached) => match meet(state, entry).await {
            Ok(anew) => Ok(Authenticated { renew_at: reached.renew_at, ..anew }),
            Err(error) => {
                debug!(cluster = %peer.cluster_name, "neither does it give another: {error}");
                Ok(reached)
            }
        },
        Kept::Due(reached) => match meet(state, entry).await {
            Err(error) => {
                warn!(cluster = %peer.cluster_name, "renew the identity: {error}");
                Ok(reached)
            }
            anew => anew,
        },
        Kept::None => meet(state, entry).await,
    }
}

/// What there is of an identity.
enum Kept {
    /// It counts.
    Good(Authenticated),
    /// Nobody says that it does not, but it could not be tried either.
    InDoubt(Authenticated),
    /// It counts for a while, and the next one is to be asked for.
    Due(Authenticated),
    /// It has to be asked for.
    None,
}

/// Gets to know who is there, and asks for an identity.
async fn meet(state: &Clusters, entry: &ForeignCluster) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let service = AuthService::new(&entry.spec.auth_url, entry.spec.fingerprint);
    let (info, shown) = service.info().await.map_err(|failure| setback(&failure))?;
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
    ask(context, entry, &peer, shown).await
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
    if let Some(other) = senior(entry, &peer.cluster_id, &state.all()) {
        let message = format!(
            "cluster {} is known already, as ForeignCluster {}: use that one, and delete this",
            peer.cluster_id,
            other.name_any()
        );
        if kind(other) == DiscoveryType::IncomingPeering {
            take_over(&state.context, other).await?;
        }
        return Err(refused("Duplicate", message).into());
    }
    Ok(())
}

/// Somebody wants to know that cluster: its entry is not there for a peering only any more.
async fn take_over(context: &Context, entry: &ForeignCluster) -> Result<(), Error> {
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let labels = json!({ DISCOVERY_TYPE_LABEL: DiscoveryType::Manual.as_str() });
    let patch = Patch::Merge(json!({ "metadata": { "uid": entry.uid(), "labels": labels } }));
    let params =
        PatchParams { field_manager: Some(super::MANAGER.to_owned()), ..PatchParams::default() };
    let taken = clusters.patch(&entry.name_any(), &params, &patch).await;
    Ok(taken.map(drop).map_err(failed(format!("take over ForeignCluster {}", entry.name_any())))?)
}

/// The identity that is there, renewed if it is time. One that counts is kept whatever the URL is by
/// now: that is for when the next one has to be asked for.
async fn keep(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
) -> Result<Kept, Error> {
    let status = entry.status.as_ref();
    let tenant = status.and_then(|status| status.tenant_namespace.as_ref()?.local.as_ref());
    let Some(tenant) = tenant else { return Ok(Kept::None) };
    let Some(mut stored) = Stored::read(&context.client, tenant).await? else {
        return Ok(Kept::None);
    };
    let Some(access) = stored.access.clone() else { return Ok(Kept::None) };
    let owes_token = entry.spec.join && !stored.return_token_sent;
    let lifetime = lifetime(&access.credentials);
    let (false, Ok(lifetime)) = (owes_token, lifetime) else { return Ok(Kept::None) };

    let reached = |renew_at| Authenticated {
        tenant: TenantNamespace {
            local: Some(tenant.clone()),
            remote: Some(access.namespace.clone()),
        },
        server: access.server.clone(),
        form: access.credentials.form(),
        renew_at,
    };
    let now = Timestamp::now();
    let conditions = status.map(|status| &*status.conditions).unwrap_or_default();
    let in_doubt = find(conditions, API_SERVER).is_some_and(|said| said.status == "False");
    let token = match &access.credentials {
        Credentials::Token(token) => Some(token),
        Credentials::Certificate { .. } => None,
    };
    if now < lifetime.renew_at() {
        let look = look_again(&access.credentials, &lifetime);
        if !in_doubt && token.is_some() {
            return Ok(Kept::Good(reached(look)));
        }
        return Ok(match counts(context, tenant, peer).await {
            Some(true) => Kept::Good(reached(look)),
            Some(false) => Kept::None,
            None if in_doubt => Kept::InDoubt(reached(after(DOUBT_AGAIN))),
            None => Kept::Good(reached(look)),
        });
    }
    let Some(token) = token else {
        let counts = now < lifetime.expires;
        return Ok(if counts { Kept::Due(reached(after(RENEW_AGAIN))) } else { Kept::None });
    };
    let Ok(remote) = context.remotes.in_namespace(tenant, peer.clone()).await else {
        return Ok(Kept::None);
    };
    let Ok(claims) = TokenClaims::read(token.reveal(), base64::url_safe) else {
        return Ok(Kept::None);
    };
    let renewed = identity::request_token(&remote.client, &remote.namespace, &claims.account).await;
    match renewed {
        Ok(token) => {
            let claims = TokenClaims::read(token.reveal(), base64::url_safe).ok();
            let credentials = Credentials::Token(token);
            stored.access = Some(Access { credentials, ..access.clone() });
            stored.write(&context.client, tenant, peer).await?;
            // From here on the new token counts for all who use the client.
            let _ = context.remotes.in_namespace(tenant, peer.clone()).await;
            info!(cluster = %peer.cluster_name, "renewed the identity");
            let good = |claims: TokenClaims| Kept::Good(reached(claims.lifetime.renew_at()));
            Ok(claims.map_or(Kept::None, good))
        }
        Err(error) if now < lifetime.expires && !says_unknown(&error) => {
            warn!(cluster = %peer.cluster_name, "renew the identity: {error}");
            Ok(Kept::Good(reached(after(RENEW_AGAIN))))
        }
        Err(error) => {
            info!(cluster = %peer.cluster_name, "the identity counts no more: {error}");
            Ok(Kept::None)
        }
    }
}

/// When to look at them again: who has a certificate is not told when it counts no more.
fn look_again(credentials: &Credentials, lifetime: &Lifetime) -> Timestamp {
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
fn lifetime(credentials: &Credentials) -> Result<Lifetime, String> {
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

/// An identity as it came, with the key that is ours.
fn complete(access: Access, key: Option<&Confidential>) -> Result<Access, String> {
    let Credentials::Certificate { certificate, .. } = access.credentials else {
        return Ok(access);
    };
    let key = key.ok_or("there is no key for the certificate")?;
    own_key::fits(&certificate, key).map_err(|error| error.to_string())?;
    let key = Some(base64::standard(key.reveal().as_bytes()).into());
    Ok(Access { credentials: Credentials::Certificate { certificate, key }, ..access })
}

/// Whether the other cluster still knows us, if it says.
async fn counts(context: &Context, tenant: &str, peer: &ClusterIdentity) -> Option<bool> {
    let remote = match context.remotes.in_namespace(tenant, peer.clone()).await {
        Ok(remote) => remote,
        Err(NoIdentity::Read { .. }) => return None,
        Err(_) => return Some(false),
    };
    let requests = Api::<ResourceRequest>::namespaced(remote.client, &remote.namespace);
    let one = ListParams::default().limit(1);
    match timeout(PATIENCE, requests.list_metadata(&one)).await.ok()? {
        Ok(_) => Some(true),
        Err(error) => says_unknown(&error).then_some(false),
    }
}

fn says_unknown(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [401, 403, 404].contains(&status.code))
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
    if entry.spec.fingerprint.is_none() {
        spec.insert("fingerprint".to_owned(), json!(shown));
    }
    let mut labels = Map::new();
    if !entry.labels().contains_key(DISCOVERY_TYPE_LABEL) {
        let manual = DiscoveryType::Manual.as_str();
        labels.insert(DISCOVERY_TYPE_LABEL.to_owned(), Value::from(manual));
    }
    if spec.is_empty() && labels.is_empty() {
        return Ok(());
    }
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let patch = json!({ "metadata": { "uid": entry.uid(), "labels": labels }, "spec": spec });
    let params =
        PatchParams { field_manager: Some(super::MANAGER.to_owned()), ..PatchParams::default() };
    let filled = clusters.patch(&entry.name_any(), &params, &Patch::Merge(patch)).await;
    filled.map_err(failed(format!("fill in ForeignCluster {}", entry.name_any())))?;
    Ok(())
}

/// Asks for an identity, with each token that there is for that cluster, or with none.
async fn ask(
    context: &Context,
    entry: &ForeignCluster,
    peer: &ClusterIdentity,
    shown: Fingerprint,
) -> Result<Authenticated, Error> {
    let client = &context.client;
    let tenant = tenant::ensure(client, peer).await?;
    let nonce = nonce(&identity::nonce_key(client).await?, &peer.cluster_id);
    let mut stored = Stored::read(client, &tenant).await?.unwrap_or_default();
    if stored.nonce != nonce {
        // Before it is said to anybody: should the answer be lost, it can be asked for again.
        stored = Stored { nonce: nonce.clone(), ..Stored::default() };
        stored.write(client, &tenant, peer).await?;
    }
    let service = AuthService::new(&entry.spec.auth_url, Some(shown));
    let asking = Asking { client, service: &service, tenant: &tenant, peer };
    let mut result = None;
    for token in tokens(context, peer).await? {
        // Our own token is for those whose token we have, or with whom we want to peer.
        let trusted = entry.spec.join || !token.is_empty();
        let return_token = if trusted { Some(return_token(context, peer).await?) } else { None };
        let sent = return_token.is_some();
        let request = IdentityRequest {
            cluster_id: context.settings.cluster_id.clone(),
            cluster_name: Some(context.settings.cluster_name.clone()),
            token,
            nonce: Some(nonce.clone()),
            auth_url: auth_url::find(client).await.ok(),
            return_token,
            signing_request: None,
        };
        let answer = asking.ask(&request, &mut stored).await?;
        let again =
            matches!(&answer, Err(failure) if failure.refusal() == Some(Refusal::WrongToken));
        result = Some((answer, sent));
        if !again {
            break;
        }
        debug!(cluster = %peer.cluster_name, "one of the tokens is not taken");
    }
    let Some((answer, return_token_sent)) = result else {
        return Err(refused("NoToken", "there is no token to show".to_owned()).into());
    };
    let kubeconfig = answer.map_err(|failure| setback(&failure))?.kubeconfig;
    let unusable = |why: &str| Setback {
        status: AuthStatus::Pending,
        reason: "UnusableIdentity",
        message: format!("the identity from {} is of no use: {why}", entry.spec.auth_url),
        soon: true,
    };
    let value: Value =
        serde_saphyr::from_str(kubeconfig.reveal()).map_err(|_| unusable("it is no kubeconfig"))?;
    let access = Access::read(&value)
        .map_err(|error: Incomplete| error.to_string())
        .and_then(|access| complete(access, stored.next_key.as_ref()))
        .map_err(|why| unusable(&why))?;
    let lifetime = lifetime(&access.credentials).map_err(|why| unusable(&why))?;
    stored = Stored {
        nonce,
        access: Some(access.clone()),
        next_key: None,
        generation: stored.generation,
        return_token_sent: return_token_sent || stored.return_token_sent,
    };
    stored.write(client, &tenant, peer).await?;
    let _ = context.remotes.in_namespace(&tenant, peer.clone()).await;
    let form = access.credentials.form();
    info!(cluster = %peer.cluster_name, server = access.server, form, "got an identity");
    Ok(Authenticated {
        tenant: TenantNamespace { local: Some(tenant), remote: Some(access.namespace) },
        server: access.server,
        form,
        renew_at: look_again(&access.credentials, &lifetime),
    })
}

/// The tokens for a cluster: those that somebody has put here first, then the one that it sent;
/// the empty one when there are none.
async fn tokens(context: &Context, peer: &ClusterIdentity) -> Result<Vec<Confidential>, Error> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), NAMESPACE);
    let labels = format!("{AUTH_TOKEN_LABEL},{CLUSTER_ID_LABEL}={}", peer.cluster_id);
    let found = secrets.list(&ListParams::default().labels(&labels)).await;
    let mut found = found.map_err(failed("list the tokens for other clusters"))?.items;
    found.sort_by_key(|secret| {
        let name = secret.name_any();
        (name.starts_with("remote-token-"), name)
    });
    let text = |secret: Secret| {
        let bytes = secret.data?.remove(AUTH_TOKEN_KEY)?;
        Some(String::from_utf8(bytes.0).ok()?.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let mut tokens: Vec<Confidential> =
        found.into_iter().filter_map(text).map(Confidential::from).collect();
    if tokens.is_empty() {
        tokens.push(Confidential::default());
    }
    Ok(tokens)
}

/// The token by which that cluster, and no other, gets an identity here.
async fn return_token(context: &Context, peer: &ClusterIdentity) -> Result<Confidential, Error> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), AUTH_NAMESPACE);
    let name = return_token_name(&peer.cluster_id);
    let there = secrets.get_opt(&name).await.map_err(failed(format!("read Secret {name}")))?;
    let text = |secret: Secret| {
        let bytes = secret.data?.remove(AUTH_TOKEN_KEY)?;
        String::from_utf8(bytes.0).ok().map(Confidential::from)
    };
    if let Some(token) = there.and_then(text) {
        return Ok(token);
    }
    let token = identity::hex(&identity::random()?);
    let labels = [(CLUSTER_ID_LABEL.to_owned(), peer.cluster_id.to_string())];
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        data: Some([(AUTH_TOKEN_KEY.to_owned(), ByteString(token.clone().into_bytes()))].into()),
        ..Secret::default()
    };
    let made = secrets.create(&PostParams::default(), &secret).await;
    made.map_err(failed(format!("make a token for cluster {}", peer.cluster_id)))?;
    Ok(token.into())
}

fn refused(reason: &'static str, message: String) -> Setback {
    Setback { status: AuthStatus::Refused, reason, message, soon: false }
}

fn setback(failure: &Failure) -> Setback {
    use AuthStatus::{EmptyRefused, Pending, Refused};
    let (status, reason, soon) = match (failure, failure.refusal()) {
        (_, Some(Refusal::EmptyTokenRefused)) => (EmptyRefused, "EmptyTokenRefused", false),
        (_, Some(Refusal::WrongToken)) => (Refused, WRONG_TOKEN, false),
        (_, Some(Refusal::IdentityTaken)) => (Refused, "IdentityTaken", false),
        (_, Some(Refusal::SameName)) => (Refused, "SameName", false),
        (_, Some(Refusal::Other | Refusal::OtherGeneration)) => (Pending, "AuthFailed", true),
        (Failure::OtherCertificate { .. }, _) => (Pending, "OtherCertificate", true),
        (Failure::NotUnderstood { .. }, _) => (Pending, "NotAnAuthService", true),
        (_, None) => (Pending, "AuthUnreachable", true),
    };
    let advice = match reason {
        "EmptyTokenRefused" | WRONG_TOKEN => format!(
            "; put it into a Secret in the namespace {NAMESPACE}, under the key {AUTH_TOKEN_KEY}, \
             with the labels {CLUSTER_ID_LABEL}=<the cluster's id> and {AUTH_TOKEN_LABEL}="
        ),
        _ => String::new(),
    };
    Setback { status, reason, message: format!("{failure}{advice}"), soon }
}
