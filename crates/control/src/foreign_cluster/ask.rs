//! Asks another cluster for an identity: for a certificate first, and for a token where its auth
//! service knows of no certificates.

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
use tombolo_runtime::{metrics::Met, observe::Watched};
use tracing::{debug, info};

use super::{
    Authenticated, Clusters, Error, Setback,
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
    state: &Clusters,
    entry: &ForeignCluster,
    met: &Greeted<'_>,
) -> Result<Authenticated, Error> {
    let context = &*state.context;
    let (client, peer) = (&context.client, &met.peer);
    let found = tenant::known(context, &peer.cluster_id).await;
    // As long as the namespace is there, what has been asked for is given back in the end.
    let (tenant, nonce, auth_url) = tokio::try_join!(
        tenant::place(client, peer, found),
        identity::nonce_for(client, &peer.cluster_id, met.shown),
        async { Ok(auth_url::find(client).await.ok()) },
    )?;
    let tokens = tokens(&state.tokens, peer);
    // Nothing can be in a namespace that is new: so nobody needs rights there yet.
    let before = if tenant.is_new {
        None
    } else {
        tenant::equip(client, &tenant).await?;
        Stored::read(client, &tenant.name).await?
    };
    let stored = given_by(entry, met, before)?;
    // Who has had another certificate knows us by the nonce for that one.
    let nonce = if stored.nonce.is_empty() { nonce } else { stored.nonce.clone() };
    let asking = Asking {
        context,
        entry,
        met,
        // Should the answer be lost, it is asked for again, with another one.
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
    let equipped = async {
        let done = if tenant.is_new { tenant::equip(client, &tenant).await } else { Ok(()) };
        Ok::<_, Error>(done?)
    };
    let (answered, ()) = tokio::try_join!(asking.with_each(tokens), equipped)?;
    let Some(Answered { answer, generation, return_token_sent }) = answered else {
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
        .and_then(|access| complete(access, &asking.key))
        .map_err(|why| unusable(&why))?;
    let lifetime = lifetime(&access.credentials).map_err(|why| unusable(&why))?;
    let renewed = stored.access.is_some();
    let stored = Stored {
        nonce,
        access: Some(access.clone()),
        generation: Some(generation),
        return_token_sent: return_token_sent || stored.return_token_sent,
        auth_url: Some(entry.spec.auth_url.clone()),
        fingerprint: Some(met.shown),
    };
    let tenant = tenant.name;
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
        overdue: None,
    })
}

/// What is stored, if who answers is the cluster that has given it, as far as can be told. Nobody else
/// is told the nonce by which we are known there, nor shown a token.
fn given_by(
    entry: &ForeignCluster,
    met: &Greeted<'_>,
    stored: Option<Stored>,
) -> Result<Stored, Setback> {
    let giver = stored.as_ref().and_then(|stored| stored.giver(entry));
    let Some(giver) = giver else { return Ok(Stored::default()) };
    if giver == met.shown {
        return Ok(stored.unwrap_or_default());
    }
    let (url, shown, name) = (&entry.spec.auth_url, met.shown, entry.name_any());
    let message = format!(
        "{url} shows the certificate {shown}, and the identity that there is was given by who showed \
         {giver}: nothing was sent; if the certificate was changed on purpose, say so: `kubectl \
         annotate foreigncluster {name} {PINNED_ANNOTATION}-`; if it was never the right one that \
         gave that identity, delete the ForeignCluster"
    );
    let reason = Obstacle::OtherCertificate.reason();
    Err(Setback { status: AuthStatus::Pending, reason, message, soon: false })
}

/// The generation that is asked for when the other cluster has not said which is the right one.
const FIRST_GENERATION: &str = "0";

/// How often another generation is asked for: it changes when the other cluster takes an identity away
/// at that moment.
const GENERATIONS: usize = 3;

/// What is needed to ask.
struct Asking<'a> {
    context: &'a Context,
    entry: &'a ForeignCluster,
    met: &'a Greeted<'a>,
    /// Of the certificate.
    key: Confidential,
    /// Of the identity that there is.
    generation: Option<String>,
    /// What is said, but for the tokens.
    request: IdentityRequest,
}

/// What the other cluster says.
struct Answered {
    answer: Result<IdentityResponse, Failure>,
    /// Of the identity that was asked for.
    generation: String,
    /// Whether it has got what it needs for an identity here.
    return_token_sent: bool,
}

impl Asking<'_> {
    /// Asks with one token after the other, until one is taken.
    async fn with_each(&self, tokens: Vec<Confidential>) -> Result<Option<Answered>, Error> {
        let mut answered = None;
        for token in tokens {
            // Our own token is for those whose token we have, or with whom we want to peer.
            let return_token = if self.entry.spec.join || !token.is_empty() {
                Some(return_token(self.context, &self.met.peer).await?)
            } else {
                None
            };
            let request = IdentityRequest { token, return_token, ..self.request.clone() };
            let now = self.ask(&request).await?;
            let refusal = now.answer.as_ref().err().and_then(Failure::refusal);
            answered = Some(now);
            if refusal != Some(Refusal::WrongToken) {
                break;
            }
            debug!(cluster = %self.met.peer.cluster_name, "one of the tokens is not taken");
        }
        Ok(answered)
    }

    /// Asks with what is in `request`: for a certificate of the generation that the identity has, or
    /// else of the one that the other cluster gives now.
    async fn ask(&self, request: &IdentityRequest) -> Result<Answered, Error> {
        let told = self.met.generation.clone().filter(|told| is_generation(told));
        let current = told.unwrap_or_else(|| FIRST_GENERATION.to_owned());
        let mut generation = self.generation.clone().unwrap_or(current);
        let mut answer = self.certificate(request, &generation).await?;
        for _ in 1..GENERATIONS {
            let Err(Failure::Refused { error, .. }) = &answer else { break };
            let is_other = |right: &String| *right != generation && is_generation(right);
            let Some(right) = error.generation.clone().filter(is_other) else { break };
            generation = right;
            answer = self.certificate(request, &generation).await?;
        }
        if let Err(Failure::Refused { status: StatusCode::NOT_FOUND, .. }) = &answer {
            debug!(cluster = %self.met.peer.cluster_name, "it knows of no certificates");
            answer = self.met.service.identity(request).await;
        }
        Ok(Answered { answer, generation, return_token_sent: request.return_token.is_some() })
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
        Ok(self.met.service.certificate(&request).await)
    }
}

/// An identity as it came, with the key that is ours.
fn complete(access: Access, key: &Confidential) -> Result<Access, String> {
    let Credentials::Certificate { certificate, .. } = access.credentials else {
        return Ok(access);
    };
    own_key::fits(&certificate, key).map_err(|error| error.to_string())?;
    let key = Some(base64::standard(key.reveal().as_bytes()).into());
    Ok(Access { credentials: Credentials::Certificate { certificate, key }, ..access })
}

/// The tokens for a cluster: those that somebody has put here first, then the one that it sent;
/// the empty one when there are none.
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

/// The token by which that cluster, and no other, gets an identity here.
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
    made.map_err(failed(format!("make a token for cluster {}", peer.cluster_id)))?;
    Ok(token.into())
}
