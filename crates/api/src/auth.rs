//! The JSON of the auth service: public information about a cluster, and requests for an identity.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ClusterId, ClusterName};

/// Public information about a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Id of the cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// Name of the cluster.
    pub cluster_name: ClusterName,

    /// URL of its API server.
    pub api_server_url: String,

    /// CA certificates of its API server, in PEM. Unset: the CAs of the system.
    #[serde(rename = "apiServerCA", skip_serializing_if = "Option::is_none")]
    pub api_server_ca: Option<String>,

    /// The generation for the certificate of a cluster without an identity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
}

/// A request for an identity.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRequest {
    /// Id of the requesting cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// The token of the issuing cluster. Unset or empty: a request without a token.
    #[serde(default)]
    pub token: Confidential,

    /// Name of the requesting cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<ClusterName>,

    /// A secret of the requesting cluster. A repeated request with the same nonce gets the identity
    /// again, in case the response was lost; with another nonce or none it is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<Confidential>,

    /// URL of the requesting cluster's auth service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,

    /// The token with which the issuing cluster gets an identity in return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_token: Option<Confidential>,

    /// For `POST /identity/certificate`: a certificate signing request in PEM. The key stays in the
    /// requesting cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_request: Option<String>,
}

/// An identity.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityResponse {
    /// A kubeconfig with the URL of the API server and the credentials: a token, or a certificate
    /// without its key.
    pub kubeconfig: Confidential,
}

/// Returns an identity: `DELETE` with the nonce of its request.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRelease {
    /// Id of the cluster that holds the identity.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// The nonce of the request for the identity.
    pub nonce: Confidential,
}

/// An error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthError {
    /// Human-readable message.
    pub error: String,

    /// Machine-readable reason.
    #[serde(default)]
    pub reason: Refusal,

    /// The required generation of the certificate, if the requested one differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
}

impl AuthError {
    /// An error without a generation.
    pub fn new(error: impl Into<String>, reason: Refusal) -> Self {
        Self { error: error.into(), reason, generation: None }
    }

    /// The request is for another generation than the required one.
    pub fn other_generation(generation: String) -> Self {
        let error = format!("the certificate has to be for generation {generation}");
        Self { generation: Some(generation), ..Self::new(error, Refusal::OtherGeneration) }
    }
}

/// The reasons that a client distinguishes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// A token is required, and the request has none.
    EmptyTokenRefused,
    /// The token is wrong.
    WrongToken,
    /// The cluster id has an identity already, issued for another nonce.
    IdentityTaken,
    /// Both clusters have the same name.
    SameName,
    /// The requested certificate is for another generation of the identity than the one in the
    /// response.
    OtherGeneration,
    /// Another reason, described by the message.
    #[default]
    #[serde(other)]
    Other,
}

/// A secret text: a token or a kubeconfig. It can be sent, compared and, by
/// [`reveal`](Self::reveal), used; `Debug` hides it.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidential(String);

impl Confidential {
    /// The text itself. The caller must not log or print it.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// A message of another party, with this secret redacted.
    pub fn hide_in(&self, message: &str) -> String {
        if self.is_empty() { message.to_owned() } else { message.replace(&self.0, "(hidden)") }
    }

    /// Whether the text is empty, as in a request without a token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Confidential {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// In constant time, so that the duration does not reveal where the texts differ.
impl PartialEq for Confidential {
    fn eq(&self, other: &Self) -> bool {
        let (a, b) = (self.0.as_bytes(), other.0.as_bytes());
        let differing = a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b));
        a.len() == b.len() && std::hint::black_box(differing) == 0
    }
}

impl Eq for Confidential {}

impl fmt::Debug for Confidential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "(empty)" } else { "(hidden)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &str = r#"{"clusterID":"cluster-1","token":"s3cret"}"#;

    #[test]
    fn a_secret_is_redacted_in_messages_of_others() {
        let token = Confidential::from("s3cret".to_owned());
        assert_eq!(token.hide_in("s3cret, as=s3cret"), "(hidden), as=(hidden)");
        assert_eq!(Confidential::default().hide_in("as it is"), "as it is");
    }

    #[test]
    fn a_request_parses_and_serializes_as_documented() {
        let request: IdentityRequest = serde_json::from_str(REQUEST).unwrap();
        assert_eq!(request.token.reveal(), "s3cret");
        assert_eq!(serde_json::to_string(&request).unwrap(), REQUEST);
    }

    #[test]
    fn a_request_needs_no_token() {
        let request: IdentityRequest =
            serde_json::from_str(r#"{"clusterID": "cluster-1"}"#).unwrap();
        assert!(request.token.is_empty());
    }

    #[test]
    fn an_unknown_reason_is_parsed_as_other() {
        let error: AuthError =
            serde_json::from_str(r#"{"error": "too early", "reason": "TooEarly"}"#).unwrap();
        assert_eq!(error.reason, Refusal::Other);
        let error: AuthError = serde_json::from_str(r#"{"error": "no"}"#).unwrap();
        assert_eq!(error.reason, Refusal::Other);
    }

    #[test]
    fn a_request_needs_a_valid_id() {
        let error = serde_json::from_str::<IdentityRequest>(r#"{"clusterID": "../.."}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("is not a cluster id"), "{error}");
    }

    #[test]
    fn debug_output_hides_secrets() {
        let request: IdentityRequest = serde_json::from_str(REQUEST).unwrap();
        let response = IdentityResponse { kubeconfig: "s3cret".to_owned().into() };
        let shown = format!("{request:?} {request:#?} {response:?} {response:#?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn tokens_are_equal_only_as_a_whole() {
        let token = |text: &str| Confidential::from(text.to_owned());
        assert_eq!(token("abc"), token("abc"));
        assert_ne!(token("abc"), token("abd"));
        assert_ne!(token("abc"), token("ab"));
        assert_ne!(token(""), token("a"));
    }

    /// A comparison of the revealed text would reveal by its duration how much of it is right.
    #[test]
    fn secrets_are_compared_only_in_this_module() {
        fn check(folder: &std::path::Path) {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    check(&path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
                    for part in code.split([';', '{', '}', '|']) {
                        let compares = [" == ", " != ", ".eq(", ".ne(", ".cmp("];
                        let compares = compares.iter().any(|sign| part.contains(sign));
                        let what = path.display();
                        assert!(!(compares && part.contains("reveal()")), "{what}: {part}");
                    }
                }
            }
        }
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for folder in std::fs::read_dir(crates).unwrap() {
            check(&folder.unwrap().path().join("src"));
        }
    }
}
