//! Asks another cluster for an identity: for a certificate first, and for a token where its auth
//! service knows of no certificates.

use http::StatusCode;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
};
use serde_json::Value;
use tombolo_api::{
    ClusterIdentity,
    auth::{Confidential, IdentityRequest, IdentityResponse, Refusal},
    discovery::{AuthStatus, ForeignCluster, TenantNamespace},
    names::{AUTH_NAMESPACE, AUTH_TOKEN_KEY, AUTH_TOKEN_LABEL, CLUSTER_ID_LABEL, NAMESPACE},
};
use tombolo_core::identity::{
    Access, Credentials, Incomplete, Subject, is_generation, nonce, return_token_name,
};
use tombolo_runtime::metrics::Met;
use tracing::{debug, info};

use super::{
    Authenticated, Error, Setback,
    auth_service::Failure,
    authenticate::{Greeted, refused, setback},
    kept::{lifetime, look_again},
    own_key,
    stored::Stored,
};
use crate::{
    auth_url,
    context::Context,
    identity::{self, base64, failed, tenant},
};

/// Asks for an identity, with each token that there is for that cluster, or with none.
pub(super) async fn ask(
    context: &Context,
    entry: &ForeignCluster,
    met: &Greeted<'_>,
) -> Result<Authenticated, Error> {
    let (client, peer) = (&context.client, &met.peer);
    let (tenant, nonce_key, tokens, auth_url) = tokio::try_join!(
        tenant::ensure(client, peer),
        identity::nonce_key(client),
        tokens(context, peer),
        async { Ok(auth_url::find(client).await.ok()) },
    )?;
    let nonce = nonce(&nonce_key, &peer.cluster_id);
    // Nothing can be in a namespace that is new.
    let before = if tenant.is_new { None } else { Stored::read(client, &tenant.name).await? };
    let tenant = tenant.name;
    let mut stored = before.filter(|stored| stored.nonce == nonce).unwrap_or_default();
    stored.nonce = nonce.clone();
    let key = next_key(client, &tenant, peer, &mut stored).await?;
    let asking = Asking { met, key: &key };
    let mut result = None;
    for token in tokens {
        // Our own token is for those whose token we have, or with whom we want to peer.
        let trusted = entry.spec.join || !token.is_empty();
        let return_token = if trusted { Some(return_token(context, peer).await?) } else { None };
        let sent = return_token.is_some();
        let request = IdentityRequest {
            cluster_id: context.settings.cluster_id.clone(),
            cluster_name: Some(context.settings.cluster_name.clone()),
            token,
            nonce: Some(nonce.clone()),
            auth_url: auth_url.clone(),
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
    let kubeconfig = answer.map_err(|failure| setback(entry, &failure))?.kubeconfig;
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
    let renewed = stored.access.is_some();
    stored = Stored {
        nonce,
        access: Some(access.clone()),
        next_key: None,
        generation: stored.generation,
        return_token_sent: return_token_sent || stored.return_token_sent,
        auth_url: Some(entry.spec.auth_url.clone()),
        fingerprint: Some(met.shown),
    };
    stored.write(client, &tenant, peer).await?;
    if renewed {
        // From here on it counts for all who use the client.
        let _ = context.remotes.in_namespace(&tenant, peer.clone()).await;
    }
    let form = access.credentials.form();
    info!(cluster = %peer.cluster_name, server = access.server, form, "got an identity");
    Ok(Authenticated {
        tenant: TenantNamespace { local: Some(tenant), remote: Some(access.namespace) },
        server: access.server,
        form,
        met: Met::Never,
        renew_at: look_again(&access.credentials, &lifetime),
    })
}

/// The generation that is asked for when the other cluster has not said which is the right one.
const FIRST_GENERATION: &str = "0";

/// How often another generation is asked for: it changes when the other cluster takes an identity away
/// at that moment.
const GENERATIONS: usize = 3;

/// What is needed to ask.
struct Asking<'a> {
    met: &'a Greeted<'a>,
    /// Of the certificate.
    key: &'a Confidential,
}

impl Asking<'_> {
    /// Asks with what is in `request`: for a certificate of the generation that the identity has, or
    /// else of the one that the other cluster gives now.
    async fn ask(
        &self,
        request: &IdentityRequest,
        stored: &mut Stored,
    ) -> Result<Result<IdentityResponse, Failure>, Error> {
        let told = self.met.generation.clone().filter(|told| is_generation(told));
        let current = told.unwrap_or_else(|| FIRST_GENERATION.to_owned());
        let mut generation = stored.generation.clone().unwrap_or(current);
        let mut answer = self.certificate(request, &generation).await?;
        for _ in 1..GENERATIONS {
            let Err(Failure::Refused { error, .. }) = &answer else { break };
            let is_other = |right: &String| *right != generation && is_generation(right);
            let Some(right) = error.generation.clone().filter(is_other) else { break };
            generation = right;
            answer = self.certificate(request, &generation).await?;
        }
        stored.generation = Some(generation);
        if let Err(Failure::Refused { status: StatusCode::NOT_FOUND, .. }) = &answer {
            debug!(cluster = %self.met.peer.cluster_name, "it knows of no certificates");
            answer = self.met.service.identity(request).await;
        }
        Ok(answer)
    }

    async fn certificate(
        &self,
        request: &IdentityRequest,
        generation: &str,
    ) -> Result<Result<IdentityResponse, Failure>, Error> {
        let subject =
            Subject { cluster_id: request.cluster_id.clone(), generation: generation.to_owned() };
        let signing_request = Some(own_key::signing_request(self.key, &subject)?);
        let request = IdentityRequest { signing_request, ..request.clone() };
        Ok(self.met.service.certificate(&request).await)
    }
}

/// The key of the certificate that is asked for next. It is in the API server, with the nonce, before
/// anything is sent: should the answer be lost, it can be asked for again.
async fn next_key(
    client: &Client,
    tenant: &str,
    peer: &ClusterIdentity,
    stored: &mut Stored,
) -> Result<Confidential, Error> {
    if let Some(key) = &stored.next_key {
        return Ok(key.clone());
    }
    let key = own_key::make()?;
    stored.next_key = Some(key.clone());
    stored.write(client, tenant, peer).await?;
    Ok(key)
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

/// The tokens for a cluster: those that somebody has put here first, then the one that it sent;
/// the empty one when there are none.
async fn tokens(
    context: &Context,
    peer: &ClusterIdentity,
) -> Result<Vec<Confidential>, identity::Error> {
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
