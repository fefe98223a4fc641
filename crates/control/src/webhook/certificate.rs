//! The webhook's certificate: self-signed, and shared by all replicas in a Secret.

use std::sync::{Arc, Mutex, PoisonError};

use axum_server::tls_rustls::RustlsConfig;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tombolo_api::names::{NAMESPACE, WEBHOOK_CERTIFICATE, WEBHOOK_SERVICE};

/// The certificate can't be provided.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The Secret can't be read.
    #[error("read the Secret")]
    Read(#[source] kube::Error),
    /// The Secret can't be written.
    #[error("write the Secret")]
    Write(#[source] kube::Error),
    /// The certificate can't be generated.
    #[error("generate a certificate")]
    Make(#[from] rcgen::Error),
    /// The certificate can't be used.
    #[error("use the certificate: {0}; delete the Secret to generate another one")]
    Use(String),
}

/// A certificate and its key, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate.
    pub chain: String,
    key: String,
}

impl Certificate {
    /// The certificate in a Secret, if it can be used.
    pub fn of(secret: &Secret) -> Option<Self> {
        let text = |key| {
            let bytes = secret.data.as_ref()?.get(key)?;
            String::from_utf8(bytes.0.clone()).ok()
        };
        let certificate = Self { chain: text("tls.crt")?, key: text("tls.key")? };
        certificate.config().is_ok().then_some(certificate)
    }

    /// The stored certificate, or a new one if there is none that can be used.
    pub async fn get_or_make(secrets: &Api<Secret>) -> Result<Self, Error> {
        let have = secrets.get_opt(WEBHOOK_CERTIFICATE).await.map_err(Error::Read)?;
        if let Some(certificate) = have.as_ref().and_then(Self::of) {
            return Ok(certificate);
        }
        let made = Self::make()?;
        let mut secret = made.secret();
        let stored = match have {
            None => secrets.create(&PostParams::default(), &secret).await,
            Some(have) => {
                secret.metadata.resource_version = have.metadata.resource_version;
                secrets.replace(WEBHOOK_CERTIFICATE, &PostParams::default(), &secret).await
            }
        };
        match stored {
            Ok(_) => Ok(made),
            // Another replica was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let theirs = secrets.get(WEBHOOK_CERTIFICATE).await.map_err(Error::Read)?;
                Self::of(&theirs)
                    .ok_or_else(|| Error::Use("another replica has written an invalid one".into()))
            }
            Err(error) => Err(Error::Write(error)),
        }
    }

    fn make() -> Result<Self, Error> {
        let service = format!("{WEBHOOK_SERVICE}.{NAMESPACE}");
        let names = ["", ".svc", ".svc.cluster.local"].map(|domain| format!("{service}{domain}"));
        let made = rcgen::generate_simple_self_signed(names)?;
        Ok(Self { chain: made.cert.pem(), key: made.signing_key.serialize_pem() })
    }

    fn secret(&self) -> Secret {
        let data = [("tls.crt", &self.chain), ("tls.key", &self.key)];
        let data = data.map(|(key, text)| (key.to_owned(), ByteString(text.clone().into_bytes())));
        Secret {
            metadata: ObjectMeta {
                name: Some(WEBHOOK_CERTIFICATE.into()),
                namespace: Some(NAMESPACE.into()),
                ..ObjectMeta::default()
            },
            type_: Some("kubernetes.io/tls".into()),
            data: Some(data.into()),
            ..Secret::default()
        }
    }

    fn config(&self) -> Result<ServerConfig, Error> {
        let unusable = |error: &dyn std::fmt::Display| Error::Use(error.to_string());
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| unusable(&error))?;
        // Details of a key must not be logged.
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes())
            .map_err(|_| Error::Use("tls.key is not a private key in PEM".into()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable(&error))?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(|error| unusable(&error))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(config)
    }
}

/// The certificate in use.
#[derive(Clone)]
pub struct Serving {
    config: RustlsConfig,
    certificate: Arc<Mutex<Certificate>>,
}

impl Serving {
    /// Starts with this certificate.
    pub fn new(certificate: Certificate) -> Result<Self, Error> {
        let config = RustlsConfig::from_config(Arc::new(certificate.config()?));
        Ok(Self { config, certificate: Arc::new(Mutex::new(certificate)) })
    }

    /// The server's configuration, which is updated in place.
    pub fn config(&self) -> RustlsConfig {
        self.config.clone()
    }

    /// Switches to this certificate.
    pub fn follow(&self, certificate: &Certificate) -> Result<(), Error> {
        let mut current = self.certificate.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != *certificate {
            self.config.reload_from_config(Arc::new(certificate.config()?));
            current.clone_from(certificate);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_certificate_survives_a_round_trip() {
        let made = Certificate::make().unwrap();
        let read = Certificate::of(&made.secret()).unwrap();
        assert!(made == read && read.config().is_ok());
    }

    #[test]
    fn an_unusable_certificate_is_treated_as_missing() {
        let mut made = Certificate::make().unwrap();
        made.key = "no key".into();
        assert!(Certificate::of(&made.secret()).is_none());
    }
}
