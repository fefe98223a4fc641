//! The JSON of the auth service: what a cluster tells about itself, and how another one gets an
//! identity there.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ClusterId, ClusterName};

/// What anybody may know about a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterInfo {
    /// Its id.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// Its name.
    pub cluster_name: ClusterName,

    /// URL of its API server.
    pub api_server_url: String,

    /// Certificates, in PEM, by which to trust its API server. Unset: those of the system.
    #[serde(rename = "apiServerCA", skip_serializing_if = "Option::is_none")]
    pub api_server_ca: Option<String>,

    /// The generation that a certificate has to be for, of a cluster that has none there yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
}

/// A request for an identity.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRequest {
    /// Id of the cluster that asks.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// The token of the cluster that is asked. Unset or empty: it is hoped to need none.
    #[serde(default)]
    pub token: Confidential,

    /// Name of the cluster that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_name: Option<ClusterName>,

    /// What only the cluster that asks knows. With the same one it gets its identity again,
    /// should the answer be lost; with another one, or with none, it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nonce: Option<Confidential>,

    /// URL of the auth service of the cluster that asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth_url: Option<String>,

    /// The token by which the cluster that is asked gets an identity in return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_token: Option<Confidential>,

    /// For `POST /identity/certificate`: the certificate that is asked for, as a signing request
    /// in PEM. Its key stays with the cluster that asks.
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

/// A cluster gives its identity back: `DELETE` with the nonce by which it got it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityRelease {
    /// Id of the cluster whose identity it is.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// The nonce of its request.
    pub nonce: Confidential,
}

/// Why there is no other answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthError {
    /// For people.
    pub error: String,

    /// For programs.
    #[serde(default)]
    pub reason: Refusal,

    /// The generation that a certificate has to be for, if the one asked for is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
}

impl AuthError {
    /// For a reason that takes no more words.
    pub fn new(error: impl Into<String>, reason: Refusal) -> Self {
        Self { error: error.into(), reason, generation: None }
    }

    /// The certificate has to be for another generation.
    pub fn other_generation(generation: String) -> Self {
        let error = format!("the certificate has to be for generation {generation}");
        Self { generation: Some(generation), ..Self::new(error, Refusal::OtherGeneration) }
    }
}

/// The reasons that a caller tells apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// It takes a token, and there was none.
    EmptyTokenRefused,
    /// The token is not the right one.
    WrongToken,
    /// The cluster id has an identity already, and the nonce is not the one it was given for.
    IdentityTaken,
    /// The cluster that asks is called like the one that is asked.
    SameName,
    /// The certificate that was asked for is for another generation of the identity than the one
    /// that the answer names.
    OtherGeneration,
    /// Something else, which the text says.
    #[default]
    #[serde(other)]
    Other,
}

/// A token or a kubeconfig: a text that must not be seen. It can be sent, compared and, by
/// [`reveal`](Self::reveal), used; it is never shown for debugging.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confidential(String);

impl Confidential {
    /// The text itself. Whoever calls this answers for where it goes.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What somebody else says, without this.
    pub fn hide_in(&self, said: &str) -> String {
        if self.is_empty() { said.to_owned() } else { said.replace(&self.0, "(hidden)") }
    }

    /// Whether there is no text at all, as in a request without a token.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Confidential {
    fn from(text: String) -> Self {
        Self(text)
    }
}

/// In a time that does not tell where the texts differ.
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
    fn what_is_confidential_is_hidden_in_what_others_say() {
        let token = Confidential::from("s3cret".to_owned());
        assert_eq!(token.hide_in("s3cret, as=s3cret"), "(hidden), as=(hidden)");
        assert_eq!(Confidential::default().hide_in("as it is"), "as it is");
    }

    #[test]
    fn a_request_is_read_and_written_as_printed() {
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
    fn a_reason_that_is_not_known_yet_is_another_one() {
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
    fn what_is_confidential_is_never_shown() {
        let request: IdentityRequest = serde_json::from_str(REQUEST).unwrap();
        let response = IdentityResponse { kubeconfig: "s3cret".to_owned().into() };
        let shown = format!("{request:?} {request:#?} {response:?} {response:#?}");
        assert!(!shown.contains("s3cret"), "{shown}");
    }

    #[test]
    fn tokens_are_compared_whole() {
        let token = |text: &str| Confidential::from(text.to_owned());
        assert_eq!(token("abc"), token("abc"));
        assert_ne!(token("abc"), token("abd"));
        assert_ne!(token("abc"), token("ab"));
        assert_ne!(token(""), token("a"));
    }

    /// Whoever compares the text itself tells by the time it takes how much of it is right.
    #[test]
    fn what_is_confidential_is_compared_only_here() {
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
