//! The records of requests: written here, answered by the controllers, delivered once.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::json;
use tokio::{runtime::Handle, time::timeout};
use tombolo_api::{
    ClusterId,
    auth::{AuthError, Confidential, IdentityRelease, IdentityResponse, Refusal},
    names::{AUTH_NAMESPACE, IDENTITY_RECORD_LABEL},
};
use tombolo_core::identity::{
    Admission, MAX_IDENTITIES, Record, admit, hash, record_name, return_token_name, token_in,
};
use tombolo_runtime::{observe::Watched, task::Background, writer};
use tracing::{error, warn};

use super::{Failure, limits::Limits};

const MANAGER: &str = "liqo-auth";

/// Time limit of the controllers.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts to write a record that changes concurrently.
const MAX_ATTEMPTS: usize = 5;

/// The records in the API server.
pub(super) struct Requests {
    records: Api<Secret>,
    /// The same from a watch.
    seen: Watched<Secret>,
    /// Tasks that clients do not wait for.
    background: Arc<Background>,
}

/// Why a request is admitted.
#[derive(Debug)]
pub(super) enum Admitted {
    /// By its token, or because no token is required.
    ByToken,
    /// By the nonce of an existing identity only. If that is gone by now, this is the response.
    ByNonce(Failure),
}

/// The answer to a request.
#[derive(Debug)]
enum Answer {
    Identity(Confidential),
    Refusal(AuthError),
    /// A later request has replaced this one, or received the answer: there will be none.
    Superseded,
}

/// A recorded request. Without a nonce it can't be repeated, so it is released unless the answer is
/// delivered.
#[derive(Debug)]
pub(super) struct Recorded {
    secret: Secret,
    /// Set if it has to be released, in the background.
    unclaimed: Option<(Api<Secret>, Arc<Background>)>,
}

impl Recorded {
    /// The answer is delivered.
    pub fn handed_over(mut self) {
        self.unclaimed = None;
    }
}

/// Whatever the reason: there was no answer in time, or the client has disconnected.
impl Drop for Recorded {
    fn drop(&mut self) {
        let Some((records, background)) = self.unclaimed.take() else { return };
        let secret = std::mem::take(&mut self.secret);
        if Handle::try_current().is_ok() {
            background.spawn("release a request", async move {
                if let Err(error) = mark_released(&records, &secret).await {
                    warn!("can't release the abandoned request {}: {error}", secret.name_any());
                }
            });
        }
    }
}

impl Requests {
    pub fn new(client: Client, background: Arc<Background>) -> Self {
        let records = Api::namespaced(client, AUTH_NAMESPACE);
        let only = watcher::Config::default().labels(&format!("{IDENTITY_RECORD_LABEL}=true"));
        Self { seen: Watched::new(records.clone(), only), records, background }
    }

    pub async fn ready(&self) {
        self.seen.synced().await;
    }

    /// The token for this cluster only, or an empty one.
    pub async fn return_token(&self, cluster: &ClusterId) -> Result<Confidential, Failure> {
        let secret = self
            .records
            .get_opt(&return_token_name(cluster))
            .await
            .map_err(|error| internal(&error))?;
        Ok(secret.and_then(|secret| token_in(&secret)).unwrap_or_default())
    }

    /// Whether this is the renewal of a certificate, proved by the nonce. Anybody can send such a
    /// request, so only the watch is consulted.
    pub fn renews(&self, new: &Record) -> bool {
        let recorded = self
            .seen
            .get(AUTH_NAMESPACE, &record_name(&new.cluster_id))
            .filter(|secret| secret.metadata.deletion_timestamp.is_none())
            .and_then(|secret| Record::read(&secret).ok());
        new.signing_request.is_some() && admit(recorded.as_ref(), new) == Admission::Again
    }

    /// Waits for the answer to a recorded request.
    pub async fn answer(
        &self,
        new: &Record,
        recorded: &Recorded,
    ) -> Result<IdentityResponse, Failure> {
        let answer = timeout(ANSWER_TIMEOUT, self.answered(new, &recorded.secret)).await;
        let Some((answer, secret)) = answer.ok().flatten() else {
            let text = "the controllers of this cluster have not answered in time: try again";
            return Err(Failure::new(StatusCode::GATEWAY_TIMEOUT, text));
        };
        let kubeconfig = match answer {
            Answer::Identity(kubeconfig) => kubeconfig,
            Answer::Refusal(why) => {
                return Err(Failure::because(StatusCode::UNPROCESSABLE_ENTITY, why));
            }
            Answer::Superseded => {
                let text = "a later request of this cluster has replaced this one: try again";
                return Err(Failure::new(StatusCode::CONFLICT, text));
            }
        };
        // The client need not wait for this.
        self.background.spawn("forget an answer", forget(self.records.clone(), secret));
        Ok(IdentityResponse { kubeconfig })
    }

    /// Waits for the answer in this version of the record or a later one. `None`: the record is
    /// gone.
    async fn answered(&self, new: &Record, recorded: &Secret) -> Option<(Answer, Arc<Secret>)> {
        let (name, from) = (recorded.name_any(), version(recorded));
        let mut changes = self.seen.changes();
        let mut was_there = false;
        loop {
            changes.mark_unchanged();
            match self.seen.get(AUTH_NAMESPACE, &name) {
                Some(secret) if version(&secret) >= from => {
                    was_there = true;
                    if let Some(answer) = answer_in(&secret, new) {
                        return Some((answer, secret));
                    }
                }
                None if was_there => return None,
                _ => {}
            }
            changes.changed().await.ok()?;
        }
    }

    /// Marks the record of an identity as released.
    pub async fn release(&self, release: &IdentityRelease) -> Result<(), Failure> {
        let name = record_name(&release.cluster_id);
        let secret = self.records.get_opt(&name).await.map_err(|error| internal(&error))?;
        let Some(secret) = secret else { return Ok(()) };
        let Ok(record) = Record::read(&secret) else { return Ok(()) };
        if record.nonce_hash != Some(hash(&release.nonce)) {
            return Err(taken());
        }
        mark_released(&self.records, &secret).await.map_err(|error| internal(&error))
    }

    /// Writes the request into its record.
    pub async fn record(
        &self,
        new: &Record,
        admitted: Admitted,
        limits: &Limits,
    ) -> Result<Recorded, Failure> {
        let name = record_name(&new.cluster_id);
        let mut is_counted = false;
        for attempt in 0..MAX_ATTEMPTS {
            // The watch is good enough for the first attempt: if it is outdated, the write
            // conflicts.
            let seen = match attempt {
                0 => self.seen.get(AUTH_NAMESPACE, &name).map(Arc::unwrap_or_clone),
                _ => self.records.get_opt(&name).await.map_err(|error| internal(&error))?,
            };
            if let Some(seen) = &seen
                && seen.metadata.deletion_timestamp.is_some()
            {
                match attempt {
                    0 => continue,
                    _ => break,
                }
            }
            let recorded = seen.as_ref().and_then(|secret| Record::read(secret).ok());
            let admission = admit(recorded.as_ref(), new);
            // The identity of the nonce no longer exists.
            if admission == Admission::New
                && let Admitted::ByNonce(failure) = admitted
            {
                return Err(failure);
            }
            // Only requests that could succeed are counted, so that nobody can lock out another
            // cluster.
            if !is_counted && admission != Admission::Taken {
                limits.identity(&new.cluster_id)?;
                is_counted = true;
            }
            let written = match admission {
                // It may have been released just now.
                Admission::Taken if attempt == 0 => continue,
                // The record is about to be deleted.
                Admission::Taken if recorded.is_some_and(|recorded| recorded.released) => break,
                Admission::Taken => return Err(taken()),
                Admission::New if self.seen.index().len() >= MAX_IDENTITIES => {
                    return Err(limit_reached());
                }
                Admission::New => self.records.create(&params(), &new.to_secret()).await,
                Admission::Again => {
                    let version = seen.and_then(|secret| secret.resource_version());
                    let patch = json!({
                        "metadata": { "resourceVersion": version },
                        "data": {
                            "released": null,
                            "signingRequest": new.signing_request.as_deref().map(encode),
                            "refusal": null,
                            "request": encode(&new.request),
                            "clusterName": new.cluster_name.as_ref().map(|name| encode(name.as_str())),
                            "authUrl": new.auth_url.as_deref().map(encode),
                            "returnToken": new.return_token.as_ref().map(|token| encode(token.reveal())),
                        },
                    });
                    self.records.patch(&name, &manager(), &Patch::Merge(patch)).await
                }
            };
            match written {
                Ok(secret) => {
                    let owner = || (self.records.clone(), self.background.clone());
                    let unclaimed = new.nonce_hash.is_none().then(owner);
                    return Ok(Recorded { secret, unclaimed });
                }
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(internal(&error)),
            }
        }
        let text = "an earlier request of this cluster is still being processed: try again";
        Err(Failure::unavailable(text))
    }
}

/// Marks this record as released, and no later one of the same name.
async fn mark_released(records: &Api<Secret>, recorded: &Secret) -> kube::Result<()> {
    let patch = json!({
        "metadata": { "uid": recorded.uid() },
        "data": { "released": encode("true") },
    });
    let marked = records.patch(&recorded.name_any(), &manager(), &Patch::Merge(patch)).await;
    writer::absent_is_fine(marked.map(drop))
}

/// Deletes a delivered answer, unless a later request has been recorded.
async fn forget(records: Api<Secret>, secret: Arc<Secret>) {
    let nothing = json!({
        "metadata": { "resourceVersion": secret.resource_version() },
        "data": { "kubeconfig": null, "returnToken": null },
    });
    let forgotten = records.patch(&secret.name_any(), &manager(), &Patch::Merge(nothing)).await;
    if let Err(error) = writer::absent_is_fine(forgotten.map(drop)) {
        warn!("can't delete a delivered answer, the controllers will: {error}");
    }
}

/// The answer to the latest request if it has our nonce: a repeated request of the same cluster is
/// equivalent, unless it has another signing request, and so another key.
fn answer_in(secret: &Secret, ours: &Record) -> Option<Answer> {
    let record = Record::read(secret).ok()?;
    let same = record.request == ours.request
        || record.nonce_hash.is_some()
            && record.nonce_hash == ours.nonce_hash
            && record.signing_request == ours.signing_request;
    if !same {
        return Some(Answer::Superseded);
    }
    if record.is_open() {
        return None;
    }
    let identity = record.kubeconfig.map(Answer::Identity);
    Some(identity.or(record.refusal.map(Answer::Refusal)).unwrap_or(Answer::Superseded))
}

/// Resource versions of the API server increase.
fn version(secret: &Secret) -> u64 {
    secret.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn taken() -> Failure {
    let error = "this cluster id has an identity here already, issued for another nonce; if that \
                 identity is lost, delete the Secret identity-<cluster id> in the namespace \
                 liqo-auth of this cluster";
    Failure::because(StatusCode::CONFLICT, AuthError::new(error, Refusal::IdentityTaken))
}

fn limit_reached() -> Failure {
    warn!("refused a new identity: {MAX_IDENTITIES} clusters have one");
    let error = format!(
        "{MAX_IDENTITIES} clusters have an identity here, which is the limit: for each that is gone, \
         delete the Secret identity-<cluster id> in the namespace liqo-auth of this cluster"
    );
    Failure::new(StatusCode::INSUFFICIENT_STORAGE, &error)
}

fn internal(error: &kube::Error) -> Failure {
    error!("can't read or write a record in {AUTH_NAMESPACE}: {error}");
    let text = "the API server of this cluster has failed: try again";
    Failure::new(StatusCode::INTERNAL_SERVER_ERROR, text)
}

fn params() -> PostParams {
    PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() }
}

fn manager() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn encode(text: &str) -> String {
    crate::identity::base64::standard(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Mutex};

    use axum::response::IntoResponse;
    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;
    use tower::service_fn;

    use super::*;

    /// Writes to the API server.
    type Written = Arc<Mutex<Vec<(Method, Value)>>>;

    fn record(signing_request: &str, id: &str) -> Record {
        let request = json!({
            "clusterID": "cluster-1", "nonce": "n", "signingRequest": signing_request,
        });
        Record::of(&serde_json::from_value(request).unwrap(), id.to_owned())
    }

    fn recorded(record: &Record) -> Secret {
        let mut secret = record.to_secret();
        secret.metadata.uid = Some("uid-1".to_owned());
        secret.metadata.resource_version = Some("7".to_owned());
        secret
    }

    /// With a record in the watch that is gone from the API server.
    async fn with_deleted_record(seen: &Secret) -> (Requests, Written) {
        let list = json!({
            "apiVersion": "v1", "kind": "SecretList", "metadata": { "resourceVersion": "7" },
            "items": [seen],
        });
        let written = Written::default();
        let noted = written.clone();
        let server = move |request| respond(request, list.clone(), noted.clone());
        let requests =
            Requests::new(Client::new(service_fn(server), AUTH_NAMESPACE), Arc::default());
        requests.ready().await;
        (requests, written)
    }

    async fn respond(
        request: Request<Body>,
        list: Value,
        written: Written,
    ) -> Result<Response<Body>, Infallible> {
        let (head, body) = request.into_parts();
        if head.uri.query().is_some_and(|query| query.contains("watch=true")) {
            // No more events.
            std::future::pending::<()>().await;
        }
        if head.method == Method::GET && head.uri.path().ends_with("/secrets") {
            return Ok(Response::new(Body::from(list.to_string().into_bytes())));
        }
        if head.method != Method::GET {
            let bytes = body.collect_bytes().await.unwrap();
            let sent = serde_json::from_slice(&bytes).unwrap();
            written.lock().unwrap().push((head.method, sent));
        }
        let gone = json!({ "reason": "NotFound", "code": 404 }).to_string();
        Ok(Response::builder().status(404).body(Body::from(gone.into_bytes())).unwrap())
    }

    fn methods(written: &Written) -> Vec<Method> {
        written.lock().unwrap().iter().map(|(method, _)| method.clone()).collect()
    }

    #[tokio::test]
    async fn a_nonce_alone_gives_no_new_identity() {
        let new = record("PEM", "1");
        let (requests, written) = with_deleted_record(&recorded(&new)).await;
        assert!(requests.renews(&new));
        let admitted = Admitted::ByNonce(Failure::unauthorized(Refusal::WrongToken));
        let refused = requests.record(&new, admitted, &Limits::new()).await.unwrap_err();
        assert_eq!(refused.into_response().status(), StatusCode::UNAUTHORIZED);
        assert_eq!(methods(&written), [Method::PATCH]);
        let by_token = requests.record(&new, Admitted::ByToken, &Limits::new()).await;
        assert!(by_token.is_err() && methods(&written).contains(&Method::POST));
    }

    #[tokio::test]
    async fn only_the_record_that_was_read_is_released() {
        let secret = recorded(&record("PEM", "1"));
        let (requests, written) = with_deleted_record(&secret).await;
        mark_released(&requests.records, &secret).await.unwrap();
        let written = written.lock().unwrap();
        assert_eq!(written.len(), 1);
        assert_eq!(written[0].1["metadata"]["uid"], "uid-1");
    }

    #[test]
    fn a_replaced_request_fails_at_once() {
        let ours = record("PEM", "1");
        let is_superseded = |there: &Record| {
            matches!(answer_in(&there.to_secret(), &ours), Some(Answer::Superseded))
        };
        assert!(is_superseded(&record("another", "2")));
        // A repeated request is equivalent, until the answer is delivered.
        let again = record("PEM", "2");
        assert!(!is_superseded(&ours) && !is_superseded(&again));
        assert!(is_superseded(&Record { answered: Some("2".to_owned()), ..again }));
    }
}
