//! Mutual TLS: both sides present a certificate of the same CA. Each side has a Secret with its
//! certificate, the private key and the CA certificate, in the layout that cert-manager writes.

use std::sync::Arc;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
};

/// Key of the certificate in the Secret.
pub const CERTIFICATE: &str = "tls.crt";
/// Key of the private key in the Secret.
pub const KEY: &str = "tls.key";
/// Key of the CA certificate in the Secret.
pub const AUTHORITY: &str = "ca.crt";

/// ALPN protocol inside TLS.
const HTTP2: &[u8] = b"h2";

/// A Secret is unusable. The texts never contain its data.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A key is missing.
    #[error("the Secret has no key {0}")]
    Missing(&'static str),
    /// A value is not PEM.
    #[error("key {0} of the Secret has no valid PEM")]
    NotPem(&'static str),
    /// TLS rejects the certificate or the key.
    #[error("configure TLS with the certificate in the Secret")]
    Use(#[from] rustls::Error),
    /// The CA certificate verifies nothing.
    #[error("configure TLS with the CA certificate in the Secret")]
    Authority(#[from] VerifierBuilderError),
}

/// Certificate, private key and CA of one side.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authority: Arc<RootCertStore>,
}

impl Identity {
    /// Reads the identity in a Secret.
    pub fn of(secret: &Secret) -> Result<Self, Error> {
        let bytes = |key: &'static str| {
            let found = secret.data.as_ref().and_then(|data| data.get(key));
            found.map(|ByteString(bytes)| bytes.as_slice()).ok_or(Error::Missing(key))
        };
        let mut authority = RootCertStore::empty();
        for certificate in certificates(AUTHORITY, bytes(AUTHORITY)?)? {
            authority.add(certificate)?;
        }
        Ok(Self {
            chain: certificates(CERTIFICATE, bytes(CERTIFICATE)?)?,
            key: PrivateKeyDer::from_pem_slice(bytes(KEY)?).map_err(|_| Error::NotPem(KEY))?,
            authority: Arc::new(authority),
        })
    }

    /// TLS of a server that accepts only clients with a certificate of the CA.
    pub fn server(&self) -> Result<ServerConfig, Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(self.clients()?)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    /// TLS of a client that accepts only servers with a certificate of the CA.
    pub fn client(&self) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_webpki_verifier(self.servers()?)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    /// Whether clients with the same CA accept it at the time `at` as the server `name`.
    pub fn is_server(&self, name: &ServerName<'_>, at: UnixTime) -> bool {
        let Some((own, rest)) = self.chain.split_first() else { return false };
        let accepted = |servers: Arc<WebPkiServerVerifier>| {
            servers.verify_server_cert(own, rest, name, &[], at).is_ok()
        };
        self.server().is_ok() && self.servers().is_ok_and(accepted)
    }

    /// Whether servers with the same CA accept it as a client at the time `at`.
    pub fn is_client(&self, at: UnixTime) -> bool {
        let Some((own, rest)) = self.chain.split_first() else { return false };
        let accepted = |clients: Arc<dyn ClientCertVerifier>| {
            clients.verify_client_cert(own, rest, at).is_ok()
        };
        self.client().is_ok() && self.clients().is_ok_and(accepted)
    }

    fn clients(&self) -> Result<Arc<dyn ClientCertVerifier>, Error> {
        let authority = self.authority.clone();
        Ok(WebPkiClientVerifier::builder_with_provider(authority, provider()).build()?)
    }

    fn servers(&self) -> Result<Arc<WebPkiServerVerifier>, Error> {
        let authority = self.authority.clone();
        Ok(WebPkiServerVerifier::builder_with_provider(authority, provider()).build()?)
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn certificates(key: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or(Error::NotPem(key))
}
