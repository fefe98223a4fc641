//! Requests an identity from another cluster: a certificate, or a token where its auth service does
//! not know certificates.

use http::StatusCode;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use serde_json::Value;
use tombolo_api::{
    ClusterIdentity,
    auth::{Confidential, IdentityRequest, IdentityResponse, Refusal},
    discovery::{AuthStatus, ForeignCluster, TenantNamespace},
    names::{AUTH_NAMESPACE, AUTH_TOKEN_KEY, CLUSTER_ID_LABEL, PINNED_ANNOTATION},
};
use tombolo_core::{
    digest::hex,
    identity::{
        Access, Credentials, Incomplete, Obstacle, Subject, is_generation, return_token_name,
        token_in,
    },
};
use tombolo_runtime::{metrics::IdentitySource, observe::Watched};
use tracing::{debug, info};

use super::{
    Authenticated, Clusters, Error, Setback,
    auth_service::Failure,
    authenticate::{Peer, refused, setback},
    identity_state::{lifetime, recheck_at},
    own_key,
    stored_identity::StoredIdentity,
};
use crate::{
    auth_url,
    context::Context,
    identity::{self, base64, failed, tenant},
};

/// Requests an identity with each token for that cluster, or without one.
pub(super) async fn request(
    state: &Clusters,
    entry: &ForeignCluster,
    target: &Peer<'_>,
) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let (client, peer) = (&context.client, &target.peer);
    let found = tenant::known(context, &peer.cluster_id).await;
    // The tenant namespace is made first: as long as it exists, the identity is released in the
    // end.
    let (tenant, nonce, auth_url) = tokio::try_join!(
        tenant::get_or_create(client, peer, found),
        identity::nonce_for(client, &peer.cluster_id, target.shown),
        async { Ok(auth_url::find(client).await.ok()) },
    )?;
    let tokens = tokens(&state.tokens, peer);
    // A new namespace is empty, so no rights are needed there yet.
    let before = if tenant.is_new {
        None
    } else {
        tenant::bind_roles(client, &tenant).await?;
        StoredIdentity::read(client, &tenant.name).await?
    };
    let stored = issued_by(entry, target, before)?;
    // A peer that presented another certificate when it issued the identity knows us by the nonce
    // for that certificate.
    let nonce = if stored.nonce.is_empty() { nonce } else { stored.nonce.clone() };
    let requester = Requester {
        context,
        entry,
        target,
        // If the answer is lost, the next request has a new key.
        key: own_key::make()?,
        generation: stored.generation.clone(),
        request: IdentityRequest {
            cluster_id: context.settings.cluster_id.clone(),
            cluster_name: Some(context.settings.cluster_name.clone()),
            token: Confidential::default(),
            nonce: Some(nonce.clone()),
            auth_url,
            return_token: None,
            signing_request: None,
        },
    };
    let bound = async {
        let done = if tenant.is_new { tenant::bind_roles(client, &tenant).await } else { Ok(()) };
        Ok::<_, Error>(done?)
    };
    let (answered, ()) = tokio::try_join!(requester.with_each_token(tokens), bound)?;
    let Some(Outcome { answer, generation, return_token_sent }) = answered else {
        return Err(
            refused("NoToken", format!("there is no token for {}", entry.spec.auth_url)).into()
        );
    };
    let kubeconfig = answer.map_err(|failure| setback(entry, &failure))?.kubeconfig;
    let unusable = |why: &str| Setback {
        status: AuthStatus::Pending,
        reason: "UnusableIdentity",
        message: format!("{} issued an identity that can't be used: {why}", entry.spec.auth_url),
        retry_soon: true,
    };
    let value: Value =
        serde_saphyr::from_str(kubeconfig.reveal()).map_err(|_| unusable("not a kubeconfig"))?;
    let access = Access::read(&value)
        .map_err(|error: Incomplete| error.to_string())
        .and_then(|access| complete(access, &requester.key))
        .map_err(|why| unusable(&why))?;
    let lifetime = lifetime(&access.credentials).map_err(|why| unusable(&why))?;
    let renewed = stored.access.is_some();
    let stored = StoredIdentity {
        nonce,
        access: Some(access.clone()),
        generation: Some(generation),
        return_token_sent: return_token_sent || stored.return_token_sent,
        auth_url: Some(entry.spec.auth_url.clone()),
        fingerprint: Some(target.shown),
    };
    let tenant = tenant.name;
    stored.write(client, &tenant, peer).await?;
    if renewed {
        // All users of the client switch to the new credentials.
        let _ = context.remotes.in_namespace(&tenant, peer.clone()).await;
    }
    let form = access.credentials.form();
    info!(cluster = %peer.cluster_name, server = access.server, form, "received an identity");
    Ok(Authenticated {
        tenant: TenantNamespace { local: Some(tenant), remote: Some(access.namespace) },
        server: access.server,
        form,
        source: IdentitySource::Issued,
        renew_at: recheck_at(&access.credentials, &lifetime),
        overdue: None,
    })
}

/// The stored identity, if the server that answers is the one that issued it, by its certificate.
/// No other server gets the nonce by which we are known there, or a token.
fn issued_by(
    entry: &ForeignCluster,
    target: &Peer<'_>,
    stored: Option<StoredIdentity>,
) -> Result<StoredIdentity, Setback> {
    let issuer = stored.as_ref().and_then(|stored| stored.issuer(entry));
    let Some(issuer) = issuer else { return Ok(StoredIdentity::default()) };
    if issuer == target.shown {
        return Ok(stored.unwrap_or_default());
    }
    let (url, shown, name) = (&entry.spec.auth_url, target.shown, entry.name_any());
    let message = format!(
        "{url} presents the certificate {shown}, but the existing identity was issued under \
         {issuer}: nothing was sent; if the certificate was changed on purpose, confirm it: `kubectl \
         annotate foreigncluster {name} {PINNED_ANNOTATION}-`; if the identity came from the wrong \
         cluster, delete the ForeignCluster"
    );
    let reason = Obstacle::OtherCertificate.reason();
    Err(Setback { status: AuthStatus::Pending, reason, message, retry_soon: false })
}

/// Requested where the other cluster does not announce its generation.
const DEFAULT_GENERATION: &str = "0";

/// The generation changes when the other cluster revokes an identity at that moment.
const MAX_GENERATION_ATTEMPTS: usize = 3;

/// Everything that a request needs.
struct Requester<'a> {
    context: &'a Context,
    entry: &'a ForeignCluster,
    target: &'a Peer<'a>,
    /// Private key of the certificate.
    key: Confidential,
    /// Generation of the existing identity.
    generation: Option<String>,
    /// The request without tokens.
    request: IdentityRequest,
}

/// Response of the other cluster.
struct Outcome {
    answer: Result<IdentityResponse, Failure>,
    /// Generation of the requested identity.
    generation: String,
    /// Whether the request carried the token for an identity in this cluster.
    return_token_sent: bool,
}

impl Requester<'_> {
    /// Tries one token after the other, until one is accepted.
    async fn with_each_token(&self, tokens: Vec<Confidential>) -> Result<Option<Outcome>, Error> {
        let mut answered = None;
        for token in tokens {
            // The return token is only for clusters whose token we have, or with which a peering is
            // wanted.
            let return_token = if self.entry.spec.join || !token.is_empty() {
                Some(return_token(self.context, &self.target.peer).await?)
            } else {
                None
            };
            let request = IdentityRequest { token, return_token, ..self.request.clone() };
            let now = self.request(&request).await?;
            let refusal = now.answer.as_ref().err().and_then(Failure::refusal);
            answered = Some(now);
            if refusal != Some(Refusal::WrongToken) {
                break;
            }
            debug!(cluster = %self.target.peer.cluster_name, "token rejected");
        }
        Ok(answered)
    }

    /// Requests a certificate of the existing identity's generation, or else of the one that the
    /// other cluster announces.
    async fn request(&self, request: &IdentityRequest) -> Result<Outcome, Error> {
        let announced = self.target.generation.clone().filter(|it| is_generation(it));
        let current = announced.unwrap_or_else(|| DEFAULT_GENERATION.to_owned());
        let mut generation = self.generation.clone().unwrap_or(current);
        let mut answer = self.certificate(request, &generation).await?;
        for _ in 1..MAX_GENERATION_ATTEMPTS {
            let Err(Failure::Refused { error, .. }) = &answer else { break };
            let is_other = |right: &String| *right != generation && is_generation(right);
            let Some(right) = error.generation.clone().filter(is_other) else { break };
            generation = right;
            answer = self.certificate(request, &generation).await?;
        }
        if let Err(Failure::Refused { status: StatusCode::NOT_FOUND, .. }) = &answer {
            debug!(cluster = %self.target.peer.cluster_name, "the auth service issues no certificates, requesting a token");
            answer = self.target.service.identity(request).await;
        }
        Ok(Outcome { answer, generation, return_token_sent: request.return_token.is_some() })
    }

    async fn certificate(
        &self,
        request: &IdentityRequest,
        generation: &str,
    ) -> Result<Result<IdentityResponse, Failure>, Error> {
        let subject =
            Subject { cluster_id: request.cluster_id.clone(), generation: generation.to_owned() };
        let signing_request = Some(own_key::signing_request(&self.key, &subject)?);
        let request = IdentityRequest { signing_request, ..request.clone() };
        Ok(self.target.service.certificate(&request).await)
    }
}

/// The received identity, completed with our private key.
fn complete(access: Access, key: &Confidential) -> Result<Access, String> {
    let Credentials::Certificate { certificate, .. } = access.credentials else {
        return Ok(access);
    };
    own_key::matches(&certificate, key).map_err(|error| error.to_string())?;
    let key = Some(base64::standard(key.reveal().as_bytes()).into());
    Ok(Access { credentials: Credentials::Certificate { certificate, key }, ..access })
}

/// The tokens for a cluster: those that users have stored first, then the one that the cluster
/// sent; the empty token when there is none.
fn tokens(all: &Watched<Secret>, peer: &ClusterIdentity) -> Vec<Confidential> {
    let id = peer.cluster_id.as_str();
    let mut found = all.index().state_filter(|secret| {
        secret.labels().get(CLUSTER_ID_LABEL).is_some_and(|label| label == id)
    });
    found.sort_by_key(|secret| {
        let name = secret.name_any();
        (name.starts_with("remote-token-"), name)
    });
    let mut tokens: Vec<Confidential> =
        found.iter().filter_map(|secret| token_in(secret)).collect();
    if tokens.is_empty() {
        tokens.push(Confidential::default());
    }
    tokens
}

/// The token by which only that cluster gets an identity here.
async fn return_token(context: &Context, peer: &ClusterIdentity) -> Result<Confidential, Error> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), AUTH_NAMESPACE);
    let name = return_token_name(&peer.cluster_id);
    let there = secrets.get_opt(&name).await.map_err(failed(format!("read Secret {name}")))?;
    if let Some(token) = there.as_ref().and_then(token_in) {
        return Ok(token);
    }
    let token = hex(&identity::random()?);
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
    made.map_err(failed(format!("create a return token for cluster {}", peer.cluster_id)))?;
    Ok(token.into())
}
