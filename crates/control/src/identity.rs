//! Issues identities to other clusters: answers the requests that the auth service records, and
//! keeps each identity's rights in step with the peering.

mod account;
pub(crate) mod base64;
mod ensured;
mod generation;
mod provisions;
mod signer;
mod signing_request;
pub(crate) mod tenant;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Namespace, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
    runtime::{reflector::Store, watcher},
};
use tombolo_api::{
    ClusterId, ClusterIdentity,
    auth::{AuthError, Confidential, Refusal},
    discovery::ResourceRequest,
    names::{
        AUTH_NAMESPACE, AUTH_TOKEN_KEY, AUTH_TOKEN_LABEL, CLUSTER_ID_LABEL, FINALIZER,
        GENERATION_KEY, GENERATION_SECRET, IDENTITY_RECORD_LABEL, NAMESPACE,
    },
};
use tombolo_core::{
    identity::{
        Access, Credentials, NotARecord, Record, Stage, Subject, is_evictable, name_or_id,
        recorded_cluster, stage,
    },
    view::Request,
};
use tombolo_runtime::{
    finalizer,
    metrics::{self, Outcome},
    observe::Watched,
    queue::{self, Requeue, queue},
    writer,
};
use tracing::{info, warn};

use crate::context::Context;

pub(crate) use account::request_token;
use ensured::Ensured;
pub(crate) use generation::generation_in;
pub(crate) use provisions::{nonce_for, random};
use signer::Signer;
use tenant::Tenant;

const MANAGER: &str = "liqo-control/identity";

/// Resync interval, in case somebody has changed the objects.
const RESYNC: Duration = Duration::from_secs(600);

/// ConfigMap in every namespace with the CA certificates of the API server.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let (queue, receiver) = queue();
    let records = Watched::new(
        Api::<Secret>::namespaced(context.client.clone(), AUTH_NAMESPACE),
        watcher::Config::default().labels(&format!("{IDENTITY_RECORD_LABEL}=true")),
    );
    records.enqueue(&queue, |record| [record.name_any()]);
    let index = records.index().clone();
    context.watches.of::<ResourceRequest>().enqueue(&queue, move |request| {
        request.namespace().and_then(|namespace| record_of(&index, &namespace))
    });
    let issuer = Issuer {
        requests: context.watches.of::<ResourceRequest>(),
        records: records.index().clone(),
        context: context.clone(),
        signer: Signer::default(),
        ensured: Ensured::default(),
    };
    let work = queue::run("identity", receiver, async |name: String| {
        match records.get(AUTH_NAMESPACE, &name) {
            Some(record) => issuer.reconcile(&record).await,
            None => Ok(Requeue::OnChange),
        }
    });
    tokio::join!(provisions::keep(&context), context.shutdown.or(work));
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A request to our API server.
    #[error("{0}")]
    Api(String, #[source] Box<kube::Error>),
    /// A record that can't be read.
    #[error("read the Secret {AUTH_NAMESPACE}/{0}")]
    Record(String, #[source] NotARecord),
    /// The tenant namespace is being deleted.
    #[error("Namespace {0} is being deleted; a new one is created once it is gone")]
    Ending(String),
    /// The random number generator of the system has failed.
    #[error("get random bytes")]
    Random,
    /// The generation is missing.
    #[error(
        "Secret {NAMESPACE}/{GENERATION_SECRET} has no {GENERATION_KEY:?}: delete it, and a new one \
         is created"
    )]
    NoGeneration,
    /// The certificate can't be generated.
    #[error("generate the auth service's certificate")]
    Certificate(#[source] rcgen::Error),
    /// The configured certificate can't be used.
    #[error(
        "use the certificate in Secret {NAMESPACE}/{0}: {1}; it needs tls.crt and the matching \
         tls.key in PEM; until then the previous certificate stays in use"
    )]
    BadCertificate(String, String),
}

/// Adds what was tried to an API error.
pub(crate) fn failed<S: Into<String>>(what: S) -> impl FnOnce(kube::Error) -> Error {
    move |error| Error::Api(what.into(), Box::new(error))
}

fn record_of(records: &Store<Secret>, tenant: &str) -> Option<String> {
    let in_it = |secret: &&Arc<Secret>| {
        Record::read(secret).is_ok_and(|record| record.tenant.as_deref() == Some(tenant))
    };
    records.state().iter().find(in_it).map(|secret| secret.name_any())
}

/// State of the controller.
struct Issuer {
    context: Arc<Context>,
    records: Store<Secret>,
    /// The requests by which the rights of an identity grow and shrink.
    requests: Arc<Watched<ResourceRequest>>,
    signer: Signer,
    ensured: Ensured,
}

impl Issuer {
    async fn reconcile(&self, secret: &Secret) -> Result<Requeue, Error> {
        let client = &self.context.client;
        let records = Api::<Secret>::namespaced(client.clone(), AUTH_NAMESPACE);
        let name = secret.name_any();
        if secret.metadata.deletion_timestamp.is_some() {
            self.ensured.forget(secret);
            // The rights are revoked even if the record is corrupt.
            if let Some(cluster) = recorded_cluster(secret) {
                revoke(&self.context, &cluster).await?;
            }
            let ended = finalizer::remove(&records, secret, FINALIZER).await;
            return ended.map(Requeue::from).map_err(failed(format!(
                "remove the finalizer of Secret {AUTH_NAMESPACE}/{name}"
            )));
        }
        let record = Record::read(secret).map_err(|error| Error::Record(name.clone(), error))?;
        if record.released {
            info!(cluster = %record.cluster_id, "the cluster has released its identity");
            let gone = writer::delete_if_same(&records, &name, secret.uid().as_deref()).await;
            return gone
                .map(Requeue::from)
                .map_err(failed(format!("delete Secret {AUTH_NAMESPACE}/{name}")));
        }
        if record.is_open() {
            return self.answer(&records, secret, &record).await;
        }
        self.requests.synced().await;
        let (stage, now) = (self.stage(record.tenant.as_deref()), Timestamp::now());
        if is_evictable(stage, self.records.len(), record.answered_at, now) {
            info!(cluster = %record.cluster_id, "evicting an identity that was not renewed");
            let gone = writer::delete_if_unchanged(&records, secret).await;
            return gone
                .map(Requeue::from)
                .map_err(failed(format!("delete Secret {AUTH_NAMESPACE}/{name}")));
        }
        if !self.ensured.is_recent(secret, stage) {
            let found = tenant::known(&self.context, &record.cluster_id).await;
            let subject = self.subject(&record, found.as_deref()).await?;
            let tenant = tenant::get_or_create(client, &peer_of(&record), found).await?;
            self.ensure(secret, &record, &tenant, &subject).await?;
        }
        match record.forget_at() {
            Some(time) if time <= now => write(&records, secret, &record.without_secrets()).await,
            Some(time) => Ok(Requeue::After(time.duration_since(now).unsigned_abs())),
            None => Ok(Requeue::After(RESYNC)),
        }
    }

    /// Answers a request with an identity or a refusal. The certificate is signed while the rights
    /// are written: without them it is worth nothing.
    async fn answer(
        &self,
        records: &Api<Secret>,
        secret: &Secret,
        record: &Record,
    ) -> Result<Requeue, Error> {
        let client = &self.context.client;
        // The finalizer comes first, so that everything is removed with the record.
        let secret = finalizer::keep(records, secret, FINALIZER).await;
        let secret = secret.map_err(failed("add the finalizer to the record of a request"))?;
        let now = Record::read(&secret).map_err(|error| Error::Record(secret.name_any(), error))?;
        if now != *record {
            // A later request has changed the record, which enqueues it again.
            return Ok(Requeue::OnChange);
        }
        let (peer, found) =
            (peer_of(record), tenant::known(&self.context, &record.cluster_id).await);
        let (tenant, subject, ca) = tokio::try_join!(
            tenant::get_or_create(client, &peer, found.clone()),
            self.subject(record, found.as_deref()),
            root_ca(&self.context)
        )?;
        let (ensured, signed) = tokio::join!(
            self.ensure(&secret, record, &tenant, &subject),
            self.sign(record, &subject)
        );
        ensured?;
        let (tenant, signed) = (tenant.name, signed?);
        let credentials = match signed {
            Signed::Certificate(pem) => {
                Credentials::Certificate { certificate: base64::standard(&pem), key: None }
            }
            Signed::None => Credentials::Token(account::token(client, &tenant).await?),
            Signed::Refused(refusal) => {
                metrics::count_identity_request(Outcome::Refused);
                return write(records, &secret, &refused(record, &tenant, refusal)).await;
            }
        };
        if let Some(token) = &record.return_token {
            store_return_token(&self.context, record, token).await?;
        }
        let access = Access {
            server: self.context.settings.api_server_url.clone(),
            ca: ca.map(|pem| base64::standard(pem.as_bytes())),
            namespace: tenant,
            credentials,
        };
        metrics::count_identity_request(match &access.credentials {
            Credentials::Certificate { .. } => Outcome::Certificate,
            Credentials::Token(_) => Outcome::Token,
        });
        write(records, &secret, &self.issued(record, &access)).await
    }

    /// Stage of the peering in this namespace.
    fn stage(&self, tenant: Option<&str>) -> Stage {
        let requests = tenant.map(|tenant| self.requests.within(tenant)).unwrap_or_default();
        let requests = requests.iter().map(|request| Request::from_resource(request));
        stage(&self.context.settings.cluster_name, requests)
    }

    /// Subject of this identity's certificates: with the generation that it has, or the current one
    /// if it has none yet.
    async fn subject(&self, record: &Record, tenant: Option<&Namespace>) -> Result<Subject, Error> {
        let client = &self.context.client;
        let existing = match tenant {
            Some(tenant) => account::generation(client, &tenant.name_any()).await?,
            None => None,
        };
        let generation = match existing {
            Some(generation) => generation,
            None => generation::current(client).await?,
        };
        Ok(Subject { cluster_id: record.cluster_id.clone(), generation })
    }

    /// Writes the objects of the identity in the tenant namespace.
    async fn ensure(
        &self,
        secret: &Secret,
        record: &Record,
        tenant: &Tenant,
        subject: &Subject,
    ) -> Result<(), Error> {
        let client = &self.context.client;
        self.requests.synced().await;
        let stage = self.stage(Some(&tenant.name));
        account::ensure(client, tenant, &peer_of(record).cluster_name, stage, subject).await?;
        self.ensured.note(secret, stage);
        Ok(())
    }

    /// Signs a certificate, if one is requested and this cluster signs any.
    async fn sign(&self, record: &Record, subject: &Subject) -> Result<Signed, Error> {
        let Some(request) = &record.signing_request else { return Ok(Signed::None) };
        match signing_request::check(request) {
            Ok(requested) if requested == *subject => {}
            Ok(requested) if requested.cluster_id == subject.cluster_id => {
                let generation = subject.generation.clone();
                return Ok(Signed::Refused(AuthError::other_generation(generation)));
            }
            Ok(_) => {
                let error = "the signing request has another cluster id than the request";
                return Ok(Signed::Refused(AuthError::new(error, Refusal::Other)));
            }
            Err(error) => {
                return Ok(Signed::Refused(AuthError::new(error.to_string(), Refusal::Other)));
            }
        }
        let signed = self.signer.sign(&self.context.client, subject, request).await?;
        Ok(signed.map_or(Signed::None, Signed::Certificate))
    }

    /// The record with an identity as the answer.
    fn issued(&self, record: &Record, access: &Access) -> Record {
        let (tenant, form) = (&access.namespace, access.credentials.form());
        info!(cluster = %record.cluster_id, tenant, form, "issuing an identity");
        Record {
            answered: Some(record.request.clone()),
            answered_at: Some(Timestamp::now()),
            kubeconfig: Some(access.kubeconfig(&self.context.settings.cluster_name)),
            refusal: None,
            tenant: Some(tenant.clone()),
            return_token: None,
            ..record.clone()
        }
    }
}

/// The requesting cluster.
fn peer_of(record: &Record) -> ClusterIdentity {
    ClusterIdentity {
        cluster_id: record.cluster_id.clone(),
        cluster_name: name_or_id(record.cluster_name.as_ref(), &record.cluster_id),
    }
}

/// Outcome of a signing request.
enum Signed {
    /// A certificate, in PEM.
    Certificate(Vec<u8>),
    /// None was requested, or this cluster signs none.
    None,
    /// The request is refused.
    Refused(AuthError),
}

/// The record with a refusal as the answer.
fn refused(record: &Record, tenant: &str, refusal: AuthError) -> Record {
    Record {
        answered: Some(record.request.clone()),
        answered_at: Some(Timestamp::now()),
        kubeconfig: None,
        refusal: Some(refusal),
        tenant: Some(tenant.to_owned()),
        // The next request has it again.
        return_token: None,
        ..record.clone()
    }
}

/// Writes the record unless it has changed since it was read.
async fn write(records: &Api<Secret>, seen: &Secret, record: &Record) -> Result<Requeue, Error> {
    let mut secret = seen.clone();
    secret.data = record.to_secret().data;
    secret.metadata.managed_fields = None;
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match records.replace(&seen.name_any(), &params, &secret).await {
        Ok(_) => Ok(Requeue::OnChange),
        // Changed or deleted concurrently, which enqueues it again.
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
            Ok(Requeue::OnChange)
        }
        Err(error) => Err(failed(format!(
            "write the answer into Secret {AUTH_NAMESPACE}/{}",
            seen.name_any()
        ))(error)),
    }
}

/// Stores the token by which this cluster gets an identity in return.
async fn store_return_token(
    context: &Context,
    record: &Record,
    token: &Confidential,
) -> Result<(), Error> {
    let secrets = Api::<Secret>::namespaced(context.client.clone(), NAMESPACE);
    let labels = [
        (CLUSTER_ID_LABEL.to_owned(), record.cluster_id.to_string()),
        (AUTH_TOKEN_LABEL.to_owned(), String::new()),
    ];
    let data = (AUTH_TOKEN_KEY.to_owned(), ByteString(token.reveal().as_bytes().to_vec()));
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(remote_token(&record.cluster_id)),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        data: Some([data].into()),
        ..Secret::default()
    };
    let stored = writer::apply(&secrets, MANAGER, &secret).await;
    stored.map(drop).map_err(failed("store the return token of a request"))
}

fn remote_token(cluster: &ClusterId) -> String {
    format!("remote-token-{cluster}")
}

async fn root_ca(context: &Context) -> Result<Option<String>, Error> {
    let maps = Api::<ConfigMap>::namespaced(context.client.clone(), NAMESPACE);
    let map = maps
        .get_opt(ROOT_CA)
        .await
        .map_err(failed(format!("read ConfigMap {NAMESPACE}/{ROOT_CA}")))?;
    let pem = map.and_then(|map| map.data?.remove("ca.crt"));
    if pem.is_none() {
        warn!(
            "ConfigMap {NAMESPACE}/{ROOT_CA} has no ca.crt: other clusters verify this API server with \
             their system's CA certificates"
        );
    }
    Ok(pem)
}

/// Removes all objects of a cluster's identity.
async fn revoke(context: &Context, cluster: &ClusterId) -> Result<(), Error> {
    let client = &context.client;
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let gone = secrets.delete(&remote_token(cluster), &Default::default()).await.map(drop);
    writer::absent_is_fine(gone)
        .map_err(failed(format!("delete Secret {NAMESPACE}/{}", remote_token(cluster))))?;
    let tenant = tenant::find(client, cluster).await?;
    // First of all: certificates signed for this cluster must never be valid again.
    let used = match &tenant {
        Some(tenant) => account::generation(client, &tenant.name_any()).await?,
        None => None,
    };
    generation::end(client, used.as_deref()).await?;
    let Some(tenant) = tenant else { return Ok(()) };
    account::remove(client, &tenant.name_any()).await?;
    let us = &context.settings.cluster_name;
    tenant::remove_unless_needed(client, &tenant, cluster, us).await?;
    info!(%cluster, "revoked the identity");
    Ok(())
}
