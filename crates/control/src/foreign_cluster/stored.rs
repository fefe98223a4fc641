//! The identity that another cluster gave us, in the Secret where all who need it find it.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{Api, Client, api::ObjectMeta};
use tombolo_api::{
    ClusterIdentity, Fingerprint,
    auth::Confidential,
    discovery::ForeignCluster,
    names::{CLUSTER_ID_LABEL, IDENTITY_KUBECONFIG_KEY, IDENTITY_NONCE_KEY, IDENTITY_SECRET},
};
use tombolo_core::{discovery::PinnedBy, identity::Access};
use tombolo_runtime::writer;

use super::MANAGER;
use crate::identity::{Error, failed, tenant::once_allowed};

const GENERATION: &str = "generation";
const RETURN_TOKEN_SENT: &str = "returnTokenSent";
const AUTH_URL: &str = "authUrl";
const FINGERPRINT: &str = "fingerprint";

/// What is kept about an identity.
#[derive(Clone, Debug, Default)]
pub(super) struct Stored {
    /// What proves over there that it is we who ask.
    pub nonce: Confidential,
    /// The identity, once it was given.
    pub access: Option<Access>,
    /// The generation of our identity there, as that cluster has named it.
    pub generation: Option<String>,
    /// Whether that cluster has what it needs to get an identity here.
    pub return_token_sent: bool,
    /// Where the identity came from.
    pub auth_url: Option<String>,
    /// The certificate that was shown there.
    pub fingerprint: Option<Fingerprint>,
}

impl Stored {
    /// Reads the Secret in this tenant namespace.
    pub async fn read(client: &Client, tenant: &str) -> Result<Option<Self>, Error> {
        let secrets = Api::<Secret>::namespaced(client.clone(), tenant);
        let secret = once_allowed(|| secrets.get_opt(IDENTITY_SECRET)).await;
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

    /// By which certificate to know the cluster that has given the identity: the one that was shown
    /// then, or the one that somebody has named since. What was only announced is no reason to take
    /// another one for it.
    pub fn giver(&self, entry: &ForeignCluster) -> Option<Fingerprint> {
        match PinnedBy::of(entry) {
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
        let written = once_allowed(|| writer::apply(&secrets, MANAGER, &secret)).await;
        written.map(drop).map_err(failed(format!("write Secret {tenant}/{IDENTITY_SECRET}")))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_somebody_can_say_that_another_certificate_is_that_of_who_gave_the_identity() {
        let (first, other) = (Fingerprint([1; 32]), Fingerprint([2; 32]));
        let stored = Stored { fingerprint: Some(first), ..Stored::default() };
        let spec = serde_json::from_value(json!({ "authUrl": "https://milan" })).unwrap();
        let mut entry = ForeignCluster::new("milan", spec);
        assert_eq!(stored.giver(&entry), Some(first));
        entry.spec.fingerprint = Some(other);
        for by in [PinnedBy::Mdns, PinnedBy::Dns, PinnedBy::FirstUse] {
            entry.metadata.annotations = Some([by.note(other)].into());
            assert_eq!(stored.giver(&entry), Some(first), "{by:?}");
            assert_eq!(Stored::default().giver(&entry), None, "{by:?}");
        }
        entry.metadata.annotations = None;
        assert_eq!(stored.giver(&entry), Some(other));
    }
}
