//! The identity that another cluster has issued, in a Secret of the tenant namespace.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::ObjectMeta};
use tombolo_api::{
    ClusterIdentity, Fingerprint,
    auth::Confidential,
    discovery::ForeignCluster,
    names::{CLUSTER_ID_LABEL, IDENTITY_KUBECONFIG_KEY, IDENTITY_NONCE_KEY, IDENTITY_SECRET},
};
use tombolo_core::{discovery::PinnedBy, identity::Access, view::Entry};
use tombolo_runtime::writer;

use super::MANAGER;
use crate::identity::{Error, failed, tenant::retry_forbidden};

const GENERATION: &str = "generation";
const RETURN_TOKEN_SENT: &str = "returnTokenSent";
const AUTH_URL: &str = "authUrl";
const FINGERPRINT: &str = "fingerprint";

/// Contents of the identity Secret.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredIdentity {
    /// Proves to the other cluster that a request comes from this one.
    pub nonce: Confidential,
    /// The credentials, once issued.
    pub access: Option<Access>,
    /// Generation of the identity, as announced by the other cluster.
    pub generation: Option<String>,
    /// Whether the other cluster has the token for an identity here.
    pub return_token_sent: bool,
    /// URL of the auth service that issued it.
    pub auth_url: Option<String>,
    /// Fingerprint of the certificate that the auth service presented.
    pub fingerprint: Option<Fingerprint>,
}

impl StoredIdentity {
    /// Reads the Secret in this tenant namespace.
    pub async fn read(client: &Client, tenant: &str) -> Result<Option<Self>, Error> {
        let secrets = Api::<Secret>::namespaced(client.clone(), tenant);
        let secret = retry_forbidden(|| secrets.get_opt(IDENTITY_SECRET)).await;
        let secret = secret.map_err(failed(format!("read Secret {tenant}/{IDENTITY_SECRET}")))?;
        Ok(secret.map(|secret| Self::of(&secret)))
    }

    fn of(secret: &Secret) -> Self {
        let text = |key: &str| {
            let bytes = secret.data.as_ref()?.get(key)?;
            String::from_utf8(bytes.0.clone()).ok()
        };
        let kubeconfig = text(IDENTITY_KUBECONFIG_KEY)
            .and_then(|text| serde_json::from_str(&text).ok())
            .and_then(|value| Access::read(&value).ok());
        Self {
            nonce: text(IDENTITY_NONCE_KEY).unwrap_or_default().into(),
            access: kubeconfig,
            generation: text(GENERATION),
            return_token_sent: text(RETURN_TOKEN_SENT).is_some(),
            auth_url: text(AUTH_URL),
            fingerprint: text(FINGERPRINT).and_then(|text| text.parse().ok()),
        }
    }

    /// Fingerprint of the cluster that issued the identity: the certificate presented at that time,
    /// or the one that a user has set since. An announcement alone never replaces it.
    pub fn issuer(&self, entry: &ForeignCluster) -> Option<Fingerprint> {
        match Entry::from_resource(entry).pinned_by() {
            Some(PinnedBy::Hand) => entry.spec.fingerprint,
            _ => self.fingerprint,
        }
    }

    /// Writes the Secret.
    pub async fn write(
        &self,
        client: &Client,
        tenant: &str,
        peer: &ClusterIdentity,
    ) -> Result<(), Error> {
        let kubeconfig = self.access.as_ref().map(|access| access.kubeconfig(&peer.cluster_name));
        let fingerprint = self.fingerprint.map(|fingerprint| fingerprint.to_string());
        let fields = [
            (IDENTITY_NONCE_KEY, Some(self.nonce.reveal())),
            (IDENTITY_KUBECONFIG_KEY, kubeconfig.as_ref().map(Confidential::reveal)),
            (GENERATION, self.generation.as_deref()),
            (RETURN_TOKEN_SENT, self.return_token_sent.then_some("true")),
            (AUTH_URL, self.auth_url.as_deref()),
            (FINGERPRINT, fingerprint.as_deref()),
        ];
        let data = fields.into_iter().filter_map(|(key, text)| {
            Some((key.to_owned(), ByteString(text?.as_bytes().to_vec())))
        });
        let labels = [(CLUSTER_ID_LABEL.to_owned(), peer.cluster_id.to_string())];
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(IDENTITY_SECRET.to_owned()),
                labels: Some(labels.into()),
                ..ObjectMeta::default()
            },
            data: Some(data.collect()),
            ..Secret::default()
        };
        let secrets = Api::namespaced(client.clone(), tenant);
        let written = retry_forbidden(|| writer::apply(&secrets, MANAGER, &secret)).await;
        written.map(drop).map_err(failed(format!("write Secret {tenant}/{IDENTITY_SECRET}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_user_can_replace_the_certificate_of_the_issuer() {
        let (first, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let stored = StoredIdentity { fingerprint: Some(first), ..StoredIdentity::default() };
        let spec = serde_json::from_value(json!({ "authUrl": "https://milan" })).unwrap();
        let mut entry = ForeignCluster::new("milan", spec);
        assert_eq!(stored.issuer(&entry), Some(first));
        entry.spec.fingerprint = Some(other);
        for by in [PinnedBy::Mdns, PinnedBy::Dns, PinnedBy::FirstUse] {
            entry.metadata.annotations = Some([by.annotation(other)].into());
            assert_eq!(stored.issuer(&entry), Some(first), "{by:?}");
            assert_eq!(StoredIdentity::default().issuer(&entry), None, "{by:?}");
        }
        entry.metadata.annotations = None;
        assert_eq!(stored.issuer(&entry), Some(other));
    }
}
