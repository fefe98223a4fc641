//! The records of requests: written here, answered by the control plane, handed over once.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::json;
use tokio::time::timeout;
use tombolo_api::{
    ClusterId,
    auth::{AuthError, Confidential, IdentityRelease, IdentityRequest, IdentityResponse, Refusal},
    names::{AUTH_NAMESPACE, IDENTITY_RECORD_LABEL},
};
use tombolo_core::identity::{Admission, Record, admit, hash, record_name, return_token_name};
use tombolo_runtime::observe::Watched;
use tracing::{error, warn};
use uuid::Uuid;

use super::{Failure, limits::Limits, token_in};

const MANAGER: &str = "liqo-auth";

/// How long the control plane may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a record is written anew when somebody else has changed it meanwhile.
const TRIES: usize = 5;
/// How many identities there are: where it takes no token, anybody could fill the API server.
const MOST_IDENTITIES: usize = 1024;

/// The records, in the API server.
pub(super) struct Requests {
    records: Api<Secret>,
    /// The same, as they were a moment ago.
    seen: Watched<Secret>,
}

impl Requests {
    pub fn new(client: Client) -> Self {
        let records = Api::namespaced(client, AUTH_NAMESPACE);
        let only = watcher::Config::default().labels(&format!("{IDENTITY_RECORD_LABEL}=true"));
        Self { seen: Watched::new(records.clone(), only), records }
    }

    pub async fn ready(&self) {
        self.seen.filled().await;
    }

    /// The token that this one cluster may show, if there is one.
    pub async fn return_token(&self, cluster: &ClusterId) -> Result<Confidential, Failure> {
        let secret = self
            .records
            .get_opt(&return_token_name(cluster))
            .await
            .map_err(|error| internal(&error))?;
        Ok(secret.and_then(|secret| token_in(&secret)).unwrap_or_default())
    }

    /// Whether this is who has the identity already: it shows the nonce that it was given for.
    pub async fn knows(&self, request: &IdentityRequest) -> Result<bool, Failure> {
        let name = record_name(&request.cluster_id);
        let secret = self.records.get_opt(&name).await.map_err(|error| internal(&error))?;
        let recorded = secret
            .filter(|secret| secret.metadata.deletion_timestamp.is_none())
            .and_then(|secret| Record::read(&secret).ok());
        let new = Record::of(request, String::new());
        Ok(recorded.is_some() && admit(recorded.as_ref(), &new) == Admission::Again)
    }

    /// Records the request and waits for the answer.
    pub async fn answer(
        &self,
        request: &IdentityRequest,
        limits: &Limits,
    ) -> Result<IdentityResponse, Failure> {
        let record = Record::of(request, Uuid::new_v4().to_string());
        let recorded = self.record(&record, limits).await?;
        let name = record_name(&record.cluster_id);
        let answer = timeout(PATIENCE, self.answered(&name, &record, version(&recorded))).await;
        let Some((answer, secret)) = answer.ok().flatten() else {
            if record.nonce_hash.is_none() {
                // Nobody could ask for it again.
                self.patch(&name, json!({ "released": encode("true") })).await?;
            }
            let text = "the control plane of this cluster has not answered in time: try again";
            return Err(Failure::new(StatusCode::GATEWAY_TIMEOUT, text));
        };
        let kubeconfig =
            answer.map_err(|why| Failure::because(StatusCode::UNPROCESSABLE_ENTITY, why))?;
        let nothing = json!({
            "metadata": { "resourceVersion": secret.resource_version() },
            "data": { "kubeconfig": null, "returnToken": null },
        });
        let records = self.records.clone();
        // Who asked does not have to wait for that.
        tokio::spawn(async move {
            let forgotten = records.patch(&name, &manager(), &Patch::Merge(nothing)).await;
            match forgotten {
                // Where another request has been recorded meanwhile, what is there is not ours.
                Err(kube::Error::Api(status)) if status.code == 409 || status.code == 404 => {}
                Err(error) => {
                    warn!(
                        "the answer stays in its record until the controllers forget it: {error}"
                    );
                }
                Ok(_) => {}
            }
        });
        Ok(IdentityResponse { kubeconfig })
    }

    /// Waits for the answer, in the record as it is at this version or later. `None`: it is gone.
    async fn answered(
        &self,
        name: &str,
        record: &Record,
        from: u64,
    ) -> Option<(Result<Confidential, AuthError>, Arc<Secret>)> {
        let mut changes = self.seen.changes();
        let mut was_there = false;
        loop {
            changes.mark_unchanged();
            match self.seen.get(AUTH_NAMESPACE, name) {
                Some(secret) if version(&secret) >= from => {
                    was_there = true;
                    if let Some(answer) = answer_in(&secret, record) {
                        return Some((answer, secret));
                    }
                }
                None if was_there => return None,
                _ => {}
            }
            changes.changed().await.ok()?;
        }
    }

    /// Marks the record of an identity that is given back.
    pub async fn release(&self, release: &IdentityRelease) -> Result<(), Failure> {
        let name = record_name(&release.cluster_id);
        let secret = self.records.get_opt(&name).await.map_err(|error| internal(&error))?;
        let Some(record) = secret.as_ref().and_then(|secret| Record::read(secret).ok()) else {
            return Ok(());
        };
        if record.nonce_hash != Some(hash(&release.nonce)) {
            return Err(taken());
        }
        self.patch(&name, json!({ "released": encode("true") })).await
    }

    /// Writes the request into its record, and returns that.
    async fn record(&self, new: &Record, limits: &Limits) -> Result<Secret, Failure> {
        let name = record_name(&new.cluster_id);
        let mut is_counted = false;
        for attempt in 0..TRIES {
            // What was seen a moment ago is good enough as long as nothing has changed since, and if
            // something has, the API server says so.
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
            // Only who could have it counts, so that nobody else can keep a cluster out.
            if !is_counted && admission != Admission::Taken {
                limits.identity(&new.cluster_id)?;
                is_counted = true;
            }
            let written = match admission {
                // It may have been given back just now.
                Admission::Taken if attempt == 0 => continue,
                Admission::Taken => return Err(taken()),
                Admission::New if self.seen.index().len() >= MOST_IDENTITIES => {
                    return Err(no_more());
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
                Ok(written) => return Ok(written),
                Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
                Err(error) => return Err(internal(&error)),
            }
        }
        let text = "an earlier request of this cluster is still in the way: try again";
        Err(Failure::new(StatusCode::SERVICE_UNAVAILABLE, text))
    }

    async fn patch(&self, name: &str, data: serde_json::Value) -> Result<(), Failure> {
        let patch = Patch::Merge(json!({ "data": data }));
        self.records
            .patch(name, &manager(), &patch)
            .await
            .map(drop)
            .map_err(|error| internal(&error))
    }
}

/// The answer to the latest request, if its nonce is ours: another one of the same cluster may have
/// come between, and is as good, but for a certificate, which is for one key.
fn answer_in(secret: &Secret, ours: &Record) -> Option<Result<Confidential, AuthError>> {
    let record = Record::read(secret).ok()?;
    let same = record.request == ours.request
        || record.nonce_hash.is_some()
            && record.nonce_hash == ours.nonce_hash
            && record.signing_request == ours.signing_request;
    if !same || record.is_open() {
        return None;
    }
    record.kubeconfig.map(Ok).or(record.refusal.map(Err))
}

/// The API server counts its versions up.
fn version(secret: &Secret) -> u64 {
    secret.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn taken() -> Failure {
    let error = "this cluster id has an identity here already, which was given to whoever showed \
                 another nonce; if it is lost, delete the Secret identity-<cluster id> in the \
                 namespace liqo-auth of this cluster";
    Failure::because(StatusCode::CONFLICT, AuthError::new(error, Refusal::IdentityTaken))
}

fn no_more() -> Failure {
    warn!("{MOST_IDENTITIES} clusters have an identity here: no other one gets any");
    let error = format!(
        "{MOST_IDENTITIES} clusters have an identity here, and no more can: for each that is gone, \
         delete the Secret identity-<cluster id> in the namespace liqo-auth of this cluster"
    );
    Failure::new(StatusCode::INSUFFICIENT_STORAGE, &error)
}

fn internal(error: &kube::Error) -> Failure {
    error!("records of requests: {error}");
    let text = "the API server of this cluster does not do what it should: try again";
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
