//! Gives other clusters their identities: answers the requests that the auth service records, and
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
        Access, Credentials, NotARecord, Record, Stage, Subject, makes_room, name_or_id,
        recorded_cluster, stage,
    },
    view::Request,
};
use tombolo_runtime::{
    finalizer,
    metrics::{self, Outcome},
    observe::Watched,
    queue::{self, Again, queue},
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

/// Everything is looked at again after this long, in case somebody has meddled with it.
const AGAIN: Duration = Duration::from_secs(600);

/// ConfigMap, in every namespace, with the certificates of the API server.
const ROOT_CA: &str = "kube-root-ca.crt";

/// Runs until the end is asked for.
pub async fn run(context: Arc<Context>) {
    let (queue, asked) = queue();
    let records = Watched::new(
        Api::<Secret>::namespaced(context.client.clone(), AUTH_NAMESPACE),
        watcher::Config::default().labels(&format!("{IDENTITY_RECORD_LABEL}=true")),
    );
    records.feed(&queue, |record| [record.name_any()]);
    let index = records.index().clone();
    context.watches.of::<ResourceRequest>().feed(&queue, move |request| {
        request.namespace().and_then(|namespace| record_of(&index, &namespace))
    });
    let giver = Giver {
        requests: context.watches.of::<ResourceRequest>(),
        records: records.index().clone(),
        context: context.clone(),
        signer: Signer::default(),
        ensured: Ensured::default(),
    };
    let work = queue::run("identity", asked, async |name: String| {
        match records.get(AUTH_NAMESPACE, &name) {
            Some(record) => giver.reconcile(&record).await,
            None => Ok(Again::WhenAsked),
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
    /// Not a request for an identity.
    #[error("read the Secret {AUTH_NAMESPACE}/{0}")]
    Record(String, #[source] NotARecord),
    /// The tenant namespace can't be used.
    #[error("the namespace {0} is being deleted; once it is gone there will be a new one")]
    Ending(String),
    /// The random number generator of the system fails.
    #[error("get random bytes")]
    Random,
    /// Nobody can tell which identities are of which generation.
    #[error(
        "the Secret {NAMESPACE}/{GENERATION_SECRET} has no {GENERATION_KEY:?}: delete it, and \
         there will be another one"
    )]
    NoGeneration,
    /// The certificate can't be made.
    #[error("make the auth service's certificate")]
    Certificate(#[source] rcgen::Error),
    /// The certificate that was configured can't be used.
    #[error(
        "use the certificate in Secret {NAMESPACE}/{0}: {1}; it needs tls.crt and the tls.key that \
         belongs to it, in PEM, and until then the certificate stays what it is"
    )]
    BadCertificate(String, String),
}

/// Says what was tried.
pub(crate) fn failed<S: Into<String>>(what: S) -> impl FnOnce(kube::Error) -> Error {
    move |error| Error::Api(what.into(), Box::new(error))
}

fn record_of(records: &Store<Secret>, tenant: &str) -> Option<String> {
    let in_it = |secret: &&Arc<Secret>| {
        Record::read(secret).is_ok_and(|record| record.tenant.as_deref() == Some(tenant))
    };
    records.state().iter().find(in_it).map(|secret| secret.name_any())
}

/// What it takes to give identities.
struct Giver {
    context: Arc<Context>,
    records: Store<Secret>,
    /// By which the rights of an identity widen and narrow.
    requests: Arc<Watched<ResourceRequest>>,
    signer: Signer,
    ensured: Ensured,
}

impl Giver {
    async fn reconcile(&self, secret: &Secret) -> Result<Again, Error> {
        let client = &self.context.client;
        let records = Api::<Secret>::namespaced(client.clone(), AUTH_NAMESPACE);
        let name = secret.name_any();
        if secret.metadata.deletion_timestamp.is_some() {
            self.ensured.forget(secret);
            // However little can be read of it, the rights go.
            if let Some(cluster) = recorded_cluster(secret) {
                withdraw(&self.context, &cluster).await?;
            }
            let ended = finalizer::remove(&records, secret, FINALIZER).await;
            return ended.map(Again::from).map_err(failed("end the record"));
        }
        let record = Record::read(secret).map_err(|error| Error::Record(name.clone(), error))?;
        if record.released {
            info!(cluster = %record.cluster_id, "the cluster gives its identity back");
            let gone = writer::delete_if_same(&records, &name, secret.uid().as_deref()).await;
            return gone.map(Again::from).map_err(failed("delete the record"));
        }
        if record.is_open() {
            return self.answer(&records, secret, &record).await;
        }
        self.requests.filled().await;
        let (stage, now) = (self.stage(record.tenant.as_deref()), Timestamp::now());
        if makes_room(stage, self.records.len(), record.answered_at, now) {
            info!(cluster = %record.cluster_id, "its identity was not renewed: there is need of room");
            let gone = writer::delete_if_unchanged(&records, secret).await;
            return gone.map(Again::from).map_err(failed("delete the record"));
        }
        if !self.ensured.is_recent(secret, stage) {
            let found = tenant::known(&self.context, &record.cluster_id).await;
            let subject = self.subject(&record, found.as_deref()).await?;
            let tenant = tenant::place(client, &peer_of(&record), found).await?;
            self.ensure(secret, &record, &tenant, &subject).await?;
        }
        match record.forget_at() {
            Some(time) if time <= now => write(&records, secret, &record.handed_over()).await,
            Some(time) => Ok(Again::After(time.duration_since(now).unsigned_abs())),
            None => Ok(Again::After(AGAIN)),
        }
    }

    /// Gives an identity to who asks, or says why not. The certificate is signed while the rights are
    /// made: without those it is worth nothing.
    async fn answer(
        &self,
        records: &Api<Secret>,
        secret: &Secret,
        record: &Record,
    ) -> Result<Again, Error> {
        let client = &self.context.client;
        // Nothing is made before the record is kept, so that all is removed with it.
        let secret = finalizer::keep(records, secret, FINALIZER).await;
        let secret = secret.map_err(failed("keep the record"))?;
        let now = Record::read(&secret).map_err(|error| Error::Record(secret.name_any(), error))?;
        if now != *record {
            // Another request has come meanwhile: that brings it here again.
            return Ok(Again::WhenAsked);
        }
        let (peer, found) =
            (peer_of(record), tenant::known(&self.context, &record.cluster_id).await);
        let (tenant, subject, ca) = tokio::try_join!(
            tenant::place(client, &peer, found.clone()),
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
                metrics::decided(Outcome::Refused);
                return write(records, &secret, &refused(record, &tenant, refusal)).await;
            }
        };
        if let Some(token) = &record.return_token {
            keep_token(&self.context, record, token).await?;
        }
        let access = Access {
            server: self.context.settings.api_server_url.clone(),
            ca: ca.map(|pem| base64::standard(pem.as_bytes())),
            namespace: tenant,
            credentials,
        };
        metrics::decided(match &access.credentials {
            Credentials::Certificate { .. } => Outcome::Certificate,
            Credentials::Token(_) => Outcome::Token,
        });
        write(records, &secret, &self.given(record, &access)).await
    }

    /// How far the peering in this namespace has come.
    fn stage(&self, tenant: Option<&str>) -> Stage {
        let requests = tenant.map(|tenant| self.requests.within(tenant)).unwrap_or_default();
        let requests = requests.iter().map(|request| Request::from_resource(request));
        stage(&self.context.settings.cluster_name, requests)
    }

    /// Whom certificates of this identity are for: of the generation that it has, or of the current
    /// one if it has none yet.
    async fn subject(&self, record: &Record, tenant: Option<&Namespace>) -> Result<Subject, Error> {
        let client = &self.context.client;
        let noted = match tenant {
            Some(tenant) => account::generation(client, &tenant.name_any()).await?,
            None => None,
        };
        let generation = match noted {
            Some(generation) => generation,
            None => generation::current(client).await?,
        };
        Ok(Subject { cluster_id: record.cluster_id.clone(), generation })
    }

    /// Makes what the identity consists of in that namespace.
    async fn ensure(
        &self,
        secret: &Secret,
        record: &Record,
        tenant: &Tenant,
        subject: &Subject,
    ) -> Result<(), Error> {
        let client = &self.context.client;
        self.requests.filled().await;
        let stage = self.stage(Some(&tenant.name));
        account::ensure(client, tenant, &peer_of(record).cluster_name, stage, subject).await?;
        self.ensured.note(secret, stage);
        Ok(())
    }

    /// A certificate, if that is what was asked for and what there is here.
    async fn sign(&self, record: &Record, subject: &Subject) -> Result<Signed, Error> {
        let Some(request) = &record.signing_request else { return Ok(Signed::None) };
        match signing_request::check(request) {
            Ok(asked) if asked == *subject => {}
            Ok(asked) if asked.cluster_id == subject.cluster_id => {
                let generation = subject.generation.clone();
                return Ok(Signed::Refused(AuthError::other_generation(generation)));
            }
            Ok(_) => {
                let error = "the signing request is for another cluster than the one that asks";
                return Ok(Signed::Refused(AuthError::new(error, Refusal::Other)));
            }
            Err(error) => {
                return Ok(Signed::Refused(AuthError::new(error.to_string(), Refusal::Other)));
            }
        }
        let signed = self.signer.sign(&self.context.client, subject, request).await?;
        Ok(signed.map_or(Signed::None, Signed::Certificate))
    }

    /// The record with an identity for who asked.
    fn given(&self, record: &Record, access: &Access) -> Record {
        let (tenant, form) = (&access.namespace, access.credentials.form());
        info!(cluster = %record.cluster_id, tenant, form, "giving an identity");
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

/// Who asks.
fn peer_of(record: &Record) -> ClusterIdentity {
    ClusterIdentity {
        cluster_id: record.cluster_id.clone(),
        cluster_name: name_or_id(record.cluster_name.as_ref(), &record.cluster_id),
    }
}

/// What has come of a signing request.
enum Signed {
    /// A certificate, in PEM.
    Certificate(Vec<u8>),
    /// None was asked for, or this cluster signs none.
    None,
    /// It is not to be signed.
    Refused(AuthError),
}

/// The record with why there is no identity for who asked.
fn refused(record: &Record, tenant: &str, refusal: AuthError) -> Record {
    Record {
        answered: Some(record.request.clone()),
        answered_at: Some(Timestamp::now()),
        kubeconfig: None,
        refusal: Some(refusal),
        tenant: Some(tenant.to_owned()),
        // It comes again with the next request.
        return_token: None,
        ..record.clone()
    }
}

/// The record as it is to be, unless it has changed since it was read.
async fn write(records: &Api<Secret>, seen: &Secret, record: &Record) -> Result<Again, Error> {
    let mut secret = seen.clone();
    secret.data = record.to_secret().data;
    secret.metadata.managed_fields = None;
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match records.replace(&seen.name_any(), &params, &secret).await {
        Ok(_) => Ok(Again::WhenAsked),
        // Somebody has changed or deleted it: that brings it here again.
        Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {
            Ok(Again::WhenAsked)
        }
        Err(error) => Err(failed("write the answer")(error)),
    }
}

/// The token by which this cluster gets an identity in return, where it looks for tokens.
async fn keep_token(context: &Context, record: &Record, token: &Confidential) -> Result<(), Error> {
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
    let kept = writer::apply(&secrets, MANAGER, &secret).await;
    kept.map(drop).map_err(failed("keep the token that came with the request"))
}

fn remote_token(cluster: &ClusterId) -> String {
    format!("remote-token-{cluster}")
}

async fn root_ca(context: &Context) -> Result<Option<String>, Error> {
    let maps = Api::<ConfigMap>::namespaced(context.client.clone(), NAMESPACE);
    let map = maps.get_opt(ROOT_CA).await.map_err(failed("read the API server's certificates"))?;
    let pem = map.and_then(|map| map.data?.remove("ca.crt"));
    if pem.is_none() {
        warn!(
            "the ConfigMap {NAMESPACE}/{ROOT_CA} has no ca.crt: other clusters will trust this one's API server by their system's certificates"
        );
    }
    Ok(pem)
}

/// Removes all that the identity of a cluster consists of.
async fn withdraw(context: &Context, cluster: &ClusterId) -> Result<(), Error> {
    let client = &context.client;
    let secrets = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let gone = secrets.delete(&remote_token(cluster), &Default::default()).await.map(drop);
    writer::absent_is_fine(gone).map_err(failed("delete the token of the cluster"))?;
    let tenant = tenant::find(client, cluster).await?;
    // First of all: what was signed for this cluster until now must never count again.
    let used = match &tenant {
        Some(tenant) => account::generation(client, &tenant.name_any()).await?,
        None => None,
    };
    generation::end(client, used.as_deref()).await?;
    let Some(tenant) = tenant else { return Ok(()) };
    account::remove(client, &tenant.name_any()).await?;
    let us = &context.settings.cluster_name;
    tenant::remove_unless_needed(client, &tenant, cluster, us).await?;
    info!(%cluster, "the identity is gone");
    Ok(())
}
