//! Has certificates for other clusters signed by this cluster's signer, through the Kubernetes API.
//! Not every cluster has that signer: then a token is issued.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::{StreamExt, pin_mut};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{
        CertificateSigningRequest, CertificateSigningRequestCondition,
        CertificateSigningRequestSpec, CertificateSigningRequestStatus,
    },
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams, WatchEvent, WatchParams},
};
use tokio::time::timeout;
use tombolo_core::identity::Subject;
use tombolo_runtime::{chain::Chain, task::Background, writer};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::{Error, MANAGER, account::TOKEN_SECONDS, failed};

const SIGNER: &str = "kubernetes.io/kube-apiserver-client";
/// Lifetime of a certificate: that of a token.
const CERTIFICATE_SECONDS: i64 = TOKEN_SECONDS;
/// Time limit of the signer, shorter than that of the requesting cluster.
const SIGNING_TIMEOUT: Duration = Duration::from_secs(5);
/// A signer that has not answered is not tried again for this long.
const UNAVAILABLE_RETRY: Duration = Duration::from_secs(600);

/// This cluster's signer, which may be missing.
#[derive(Debug, Default)]
pub(super) struct Signer {
    unavailable_since: Mutex<Option<Instant>>,
    /// Deletes CertificateSigningRequests when they are no longer needed.
    deletions: Background,
}

impl Signer {
    /// A certificate, in PEM, for the checked `request`. `None`: this cluster signs none.
    pub async fn sign(
        &self,
        client: &Client,
        subject: &Subject,
        request: &str,
    ) -> Result<Option<Vec<u8>>, Error> {
        let absent = *self.unavailable_since.lock().unwrap_or_else(PoisonError::into_inner);
        if absent.is_some_and(|since| since.elapsed() < UNAVAILABLE_RETRY) {
            return Ok(None);
        }
        let requests = Api::<CertificateSigningRequest>::all(client.clone());
        // A random name: nobody can have created one of this name to have it approved instead.
        let name = format!("liqo-{}-{}", subject.cluster_id, Uuid::new_v4());
        let signed = timeout(SIGNING_TIMEOUT, request_certificate(&requests, &name, request)).await;
        // In the background; Kubernetes deletes remaining ones, too.
        self.deletions.spawn("delete a CertificateSigningRequest", async move {
            let deleted = requests.delete(&name, &Default::default()).await.map(drop);
            if let Err(error) = writer::absent_is_fine(deleted) {
                debug!("delete CertificateSigningRequest {name}: {error}");
            }
        });
        let late = signed.is_err().then(Instant::now);
        *self.unavailable_since.lock().unwrap_or_else(PoisonError::into_inner) = late;
        let certificate = match signed {
            Ok(Err(error)) if is_forbidden(&error) => {
                warn!("{}", Chain(&error));
                None
            }
            Ok(signed) => signed?,
            Err(_) => None,
        };
        if certificate.is_none() {
            info!("{SIGNER} has not signed a certificate: issuing a token");
        }
        Ok(certificate)
    }
}

/// Creates and approves a CertificateSigningRequest. `None`: it is denied.
async fn request_certificate(
    requests: &Api<CertificateSigningRequest>,
    name: &str,
    pem: &str,
) -> Result<Option<Vec<u8>>, Error> {
    let failure = |what: &str| failed(format!("{what} CertificateSigningRequest {name}"));
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let wanted = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.as_bytes().to_vec()),
            signer_name: SIGNER.to_owned(),
            usages: Some(vec!["client auth".to_owned()]),
            expiration_seconds: Some(i32::try_from(CERTIFICATE_SECONDS).unwrap_or(i32::MAX)),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    // The watch starts before the request exists, so no extra read is needed after the approval.
    let only = WatchParams::default().fields(&format!("metadata.name={name}"));
    let (mut made, changes) = tokio::try_join!(
        async { requests.create(&params, &wanted).await.map_err(failure("create")) },
        async { requests.watch(&only, "0").await.map_err(failure("watch")) },
    )?;
    let status = made.status.get_or_insert_default();
    status.conditions.get_or_insert_default().push(CertificateSigningRequestCondition {
        type_: "Approved".to_owned(),
        status: "True".to_owned(),
        reason: Some("ClusterIdentity".to_owned()),
        message: Some("an identity for another cluster".to_owned()),
        ..CertificateSigningRequestCondition::default()
    });
    let approved = requests.replace_subresource("approval", name, &params, &made).await;
    approved.map_err(failure("approve"))?;
    pin_mut!(changes);
    while let Some(change) = changes.next().await {
        match change.map_err(failure("watch"))? {
            WatchEvent::Added(now) | WatchEvent::Modified(now) => {
                if let Some(outcome) = outcome(&now) {
                    return Ok(outcome);
                }
            }
            WatchEvent::Deleted(_) | WatchEvent::Error(_) => break,
            WatchEvent::Bookmark(_) => {}
        }
    }
    Ok(None)
}

/// Whether this cluster does not allow or does not know such requests.
fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Api(_, error)
        if matches!(&**error, kube::Error::Api(status) if [403, 404].contains(&status.code)))
}

/// The outcome of a request, once there is one.
fn outcome(request: &CertificateSigningRequest) -> Option<Option<Vec<u8>>> {
    if has(request, "Denied") || has(request, "Failed") {
        return Some(None);
    }
    let status: &CertificateSigningRequestStatus = request.status.as_ref()?;
    let certificate = status.certificate.as_ref().filter(|pem| !pem.0.is_empty())?;
    Some(Some(certificate.0.clone()))
}

fn has(request: &CertificateSigningRequest, condition: &str) -> bool {
    let conditions = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|it| it.type_ == condition && it.status == "True"))
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use serde_json::{Value, json};

    use super::*;

    fn request(status: &Value) -> CertificateSigningRequest {
        let spec = json!({ "request": "", "signerName": SIGNER });
        serde_json::from_value(json!({ "metadata": {}, "spec": spec, "status": status })).unwrap()
    }

    fn condition(kind: &str, status: &str) -> Value {
        json!({ "type": kind, "status": status })
    }

    #[test]
    fn a_request_without_a_certificate_is_pending() {
        let approved = json!({ "conditions": [condition("Approved", "True")] });
        for status in [Value::Null, json!({}), approved, json!({ "certificate": "" })] {
            assert_eq!(outcome(&request(&status)), None, "{status}");
        }
    }

    #[test]
    fn a_signed_certificate_is_returned() {
        // "PEM", in base64.
        let signed =
            json!({ "certificate": "UEVN", "conditions": [condition("Approved", "True")] });
        assert_eq!(outcome(&request(&signed)), Some(Some(b"PEM".to_vec())));
        let not_denied =
            json!({ "certificate": "UEVN", "conditions": [condition("Denied", "False")] });
        assert_eq!(outcome(&request(&not_denied)), Some(Some(b"PEM".to_vec())));
    }

    #[test]
    fn a_denied_or_failed_request_gives_no_certificate() {
        for kind in ["Denied", "Failed"] {
            let conditions = [condition("Approved", "True"), condition(kind, "True")];
            for certificate in [Value::Null, json!("UEVN")] {
                let status = json!({ "certificate": certificate, "conditions": conditions });
                assert_eq!(outcome(&request(&status)), Some(None), "{status}");
            }
        }
    }

    #[test]
    fn a_forbidden_or_unknown_signer_is_no_failure() {
        let answered = |code| {
            let status = json!({ "code": code });
            let status: Status = serde_json::from_value(status).unwrap();
            failed("make")(kube::Error::Api(status.boxed()))
        };
        assert!(is_forbidden(&answered(403)) && is_forbidden(&answered(404)));
        for code in [401, 409, 422, 429, 500, 503] {
            assert!(!is_forbidden(&answered(code)), "{code}");
        }
        assert!(!is_forbidden(&Error::Random));
        assert!(!is_forbidden(&failed("make")(kube::Error::LinesCodecMaxLineLengthExceeded)));
    }
}
