//! The record of a request for an identity: a Secret that the auth service writes, and in which the
//! controllers put the answer.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use tombolo_api::{
    ClusterId, ClusterName,
    auth::{AuthError, Confidential, IdentityRequest},
    names::{AUTH_NAMESPACE, CLUSTER_ID_LABEL, FINALIZER, IDENTITY_RECORD_LABEL},
};

use super::nonce::hash;

/// A request for an identity, and its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Id of the requesting cluster.
    pub cluster_id: ClusterId,
    /// Its name, if given.
    pub cluster_name: Option<ClusterName>,
    /// URL of its auth service, if given.
    pub auth_url: Option<String>,
    /// The token with which this cluster gets an identity in return, if given.
    pub return_token: Option<Confidential>,
    /// Hash of its nonce, if given.
    pub nonce_hash: Option<String>,
    /// The signing request in PEM. `None`: a ServiceAccount token is requested.
    pub signing_request: Option<String>,
    /// Id of this request: distinguishes it from earlier ones of the same cluster.
    pub request: String,
    /// Id of the request that was answered last.
    pub answered: Option<String>,
    /// The answer: an identity, until it is delivered.
    pub kubeconfig: Option<Confidential>,
    /// The answer instead of an identity: a refusal.
    pub refusal: Option<AuthError>,
    /// Time of the answer.
    pub answered_at: Option<Timestamp>,
    /// The tenant namespace.
    pub tenant: Option<String>,
    /// Whether the cluster has released its identity.
    pub released: bool,
}

/// A Secret that is not a [`Record`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record of a request for an identity has no valid {0:?}")]
pub struct NotARecord(&'static str);

const NAME_PREFIX: &str = "identity-";

/// Name of the Secret with the record of a cluster's request.
pub fn record_name(cluster: &ClusterId) -> String {
    format!("{NAME_PREFIX}{cluster}")
}

/// Cluster id of a record, even if nothing else in it is readable: from its data or its name.
pub fn recorded_cluster(secret: &Secret) -> Option<ClusterId> {
    let field = secret.data.as_ref().and_then(|data| data.get(CLUSTER_ID));
    let field = field.and_then(|bytes| str::from_utf8(&bytes.0).ok()?.parse().ok());
    let by_name = || secret.metadata.name.as_ref()?.strip_prefix(NAME_PREFIX)?.parse().ok();
    field.or_else(by_name)
}

/// Name of the Secret in [`AUTH_NAMESPACE`] with the token that only this cluster may present.
pub fn return_token_name(cluster: &ClusterId) -> String {
    format!("return-token-{cluster}")
}

impl Record {
    /// The record of a new request with this id.
    pub fn of(request: &IdentityRequest, id: String) -> Self {
        Self {
            cluster_id: request.cluster_id.clone(),
            cluster_name: request.cluster_name.clone(),
            auth_url: request.auth_url.clone(),
            return_token: request.return_token.clone(),
            nonce_hash: request.nonce.as_ref().map(hash),
            signing_request: request.signing_request.clone(),
            request: id,
            answered: None,
            kubeconfig: None,
            refusal: None,
            answered_at: None,
            tenant: None,
            released: false,
        }
    }

    /// Reads a Secret.
    pub fn read(secret: &Secret) -> Result<Self, NotARecord> {
        let text = |key: &str| {
            let bytes = secret.data.as_ref()?.get(key)?;
            String::from_utf8(bytes.0.clone()).ok()
        };
        let cluster_name = match text(CLUSTER_NAME) {
            Some(name) => Some(name.parse().map_err(|_| NotARecord(CLUSTER_NAME))?),
            None => None,
        };
        Ok(Self {
            cluster_id: text(CLUSTER_ID)
                .and_then(|id| id.parse().ok())
                .ok_or(NotARecord(CLUSTER_ID))?,
            cluster_name,
            auth_url: text(AUTH_URL),
            return_token: text(RETURN_TOKEN).map(Confidential::from),
            nonce_hash: text(NONCE_HASH),
            signing_request: text(SIGNING_REQUEST),
            request: text(REQUEST).ok_or(NotARecord(REQUEST))?,
            answered: text(ANSWERED),
            kubeconfig: text(KUBECONFIG).map(Confidential::from),
            refusal: text(REFUSAL).and_then(|text| serde_json::from_str(&text).ok()),
            answered_at: text(ANSWERED_AT).and_then(|time| time.parse().ok()),
            tenant: text(TENANT),
            released: text(RELEASED).is_some(),
        })
    }

    /// The Secret, in [`AUTH_NAMESPACE`].
    pub fn to_secret(&self) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.name = Some(record_name(&self.cluster_id));
        secret.metadata.namespace = Some(AUTH_NAMESPACE.to_owned());
        // The objects created for the identity are deleted before the record.
        secret.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        secret.metadata.labels = Some(BTreeMap::from([
            (CLUSTER_ID_LABEL.to_owned(), self.cluster_id.to_string()),
            (IDENTITY_RECORD_LABEL.to_owned(), "true".to_owned()),
        ]));
        let answered_at = self.answered_at.map(|time| time.to_string());
        let refusal = self.refusal.as_ref().and_then(|why| serde_json::to_string(why).ok());
        let fields = [
            (CLUSTER_ID, Some(self.cluster_id.as_str())),
            (CLUSTER_NAME, self.cluster_name.as_ref().map(ClusterName::as_str)),
            (AUTH_URL, self.auth_url.as_deref()),
            (RETURN_TOKEN, self.return_token.as_ref().map(Confidential::reveal)),
            (NONCE_HASH, self.nonce_hash.as_deref()),
            (SIGNING_REQUEST, self.signing_request.as_deref()),
            (REQUEST, Some(self.request.as_str())),
            (ANSWERED, self.answered.as_deref()),
            (KUBECONFIG, self.kubeconfig.as_ref().map(Confidential::reveal)),
            (REFUSAL, refusal.as_deref()),
            (ANSWERED_AT, answered_at.as_deref()),
            (TENANT, self.tenant.as_deref()),
            (RELEASED, self.released.then_some("true")),
        ];
        let data = fields.into_iter().filter_map(|(key, text)| {
            Some((key.to_owned(), ByteString(text?.as_bytes().to_vec())))
        });
        secret.data = Some(data.collect());
        secret
    }

    /// Whether the request is not answered yet.
    pub fn is_open(&self) -> bool {
        self.answered.as_ref() != Some(&self.request)
    }

    /// When to delete an answer that was not delivered.
    pub fn forget_at(&self) -> Option<Timestamp> {
        self.kubeconfig.as_ref()?;
        Some(
            self.answered_at.map_or(Timestamp::MIN, |time| {
                time.saturating_add(ANSWER_RETENTION).unwrap_or(time)
            }),
        )
    }

    /// The record without confidential data, as it is stored after delivery.
    pub fn without_secrets(&self) -> Self {
        Self { kubeconfig: None, return_token: None, ..self.clone() }
    }
}

const CLUSTER_ID: &str = "clusterID";
const CLUSTER_NAME: &str = "clusterName";
const AUTH_URL: &str = "authUrl";
const RETURN_TOKEN: &str = "returnToken";
const NONCE_HASH: &str = "nonceHash";
const SIGNING_REQUEST: &str = "signingRequest";
const REQUEST: &str = "request";
const ANSWERED: &str = "answered";
const KUBECONFIG: &str = "kubeconfig";
const REFUSAL: &str = "refusal";
const ANSWERED_AT: &str = "answeredAt";
const TENANT: &str = "tenantNamespace";
const RELEASED: &str = "released";

/// How long an answer is stored for delivery.
const ANSWER_RETENTION: SignedDuration = SignedDuration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    fn record(nonce: Option<&str>) -> Record {
        let request: IdentityRequest = serde_json::from_value(serde_json::json!({
            "clusterID": "cluster-1", "clusterName": "rome", "token": "t", "nonce": nonce,
            "authUrl": "https://rome", "returnToken": "r3turn", "signingRequest": "PEM",
        }))
        .unwrap();
        Record::of(&request, "1".to_owned())
    }

    #[test]
    fn a_record_survives_a_round_trip() {
        let mut record = record(Some("n"));
        assert_eq!(Record::read(&record.to_secret()), Ok(record.clone()));
        record.kubeconfig = Some("k".to_owned().into());
        record.answered = Some("1".to_owned());
        record.answered_at = Some("2026-05-01T12:00:00Z".parse().unwrap());
        record.tenant = Some("liqo-tenant-rome".to_owned());
        record.released = true;
        record.refusal = Some(AuthError::other_generation("2".to_owned()));
        assert_eq!(Record::read(&record.to_secret()), Ok(record));
        assert_eq!(Record::read(&Secret::default()), Err(NotARecord("clusterID")));
    }

    #[test]
    fn a_corrupt_record_still_has_its_cluster_id() {
        let mut secret = record(None).to_secret();
        let data = secret.data.as_mut().unwrap();
        data.remove("request");
        data.insert("clusterName".to_owned(), ByteString(b"not a name".to_vec()));
        assert!(Record::read(&secret).is_err());
        let id = |secret: &Secret| recorded_cluster(secret).map(|id| id.to_string());
        assert_eq!(id(&secret).as_deref(), Some("cluster-1"));
        secret.data.as_mut().unwrap().insert("clusterID".to_owned(), ByteString(vec![0xff]));
        assert_eq!(id(&secret).as_deref(), Some("cluster-1"), "by its name");
        secret.data = None;
        assert_eq!(id(&secret).as_deref(), Some("cluster-1"), "by its name");
        assert_eq!(id(&Secret::default()), None);
    }

    #[test]
    fn neither_nonce_nor_token_is_recorded() {
        let secret = record(Some("n0nce")).to_secret();
        let data = secret.data.unwrap();
        assert!(data.values().all(|value| value.0 != b"n0nce" && value.0 != b"t"));
    }

    #[test]
    fn an_answer_belongs_to_one_request() {
        let mut record = record(None);
        assert!(record.is_open());
        record.answered = Some("1".to_owned());
        assert!(!record.is_open());
        record.request = "2".to_owned();
        assert!(record.is_open());
    }

    #[test]
    fn an_undelivered_answer_expires() {
        let mut record = record(Some("n"));
        assert_eq!(record.forget_at(), None);
        record.kubeconfig = Some("k".to_owned().into());
        record.answered_at = Some("2026-05-01T12:00:00Z".parse().unwrap());
        assert_eq!(record.forget_at(), Some("2026-05-01T12:00:30Z".parse().unwrap()));
    }

    #[test]
    fn nothing_confidential_is_stored_after_delivery() {
        let mut record = record(Some("n"));
        record.kubeconfig = Some("k".to_owned().into());
        let left = record.without_secrets();
        assert_eq!((left.kubeconfig.as_ref(), left.forget_at()), (None, None));
        assert_eq!(left.return_token, None);
        assert_eq!(left.nonce_hash, record.nonce_hash);
    }
}
