//! TLS in which both sides show a certificate of the same authority. Each has a Secret with its own
//! certificate, its key, and the authority, as cert-manager would write it.

use std::sync::Arc;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
};

/// Key, in the Secret, of the certificate.
pub const CERTIFICATE: &str = "tls.crt";
/// Key, in the Secret, of its private key.
pub const KEY: &str = "tls.key";
/// Key, in the Secret, of the authority.
pub const AUTHORITY: &str = "ca.crt";

/// What is spoken inside.
const HTTP2: &[u8] = b"h2";

/// What a Secret holds can't be used. Never says what it holds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is not there.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// It is something else.
    #[error("{0} is not what it should be, in PEM")]
    NotPem(&'static str),
    /// TLS can't do with it.
    #[error("use the certificate")]
    Use(#[from] rustls::Error),
    /// The authority can't tell who is who.
    #[error("use the authority")]
    Authority(#[from] VerifierBuilderError),
}

/// One side.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authority: Arc<RootCertStore>,
}

impl Identity {
    /// The one in a Secret.
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

    /// For a server: it lets in only clients with a certificate of the authority.
    pub fn server(&self) -> Result<ServerConfig, Error> {
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(self.clients()?)
            .with_single_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    /// For a client: it speaks only to a server with a certificate of the authority.
    pub fn client(&self) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_webpki_verifier(self.servers()?)
            .with_client_auth_cert(self.chain.clone(), self.key.clone_key())?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(config)
    }

    /// Whether clients who know the authority take it, at that time, for the server of this name.
    pub fn is_server(&self, name: &ServerName<'_>, at: UnixTime) -> bool {
        let Some((own, rest)) = self.chain.split_first() else { return false };
        let taken = |servers: Arc<WebPkiServerVerifier>| {
            servers.verify_server_cert(own, rest, name, &[], at).is_ok()
        };
        self.server().is_ok() && self.servers().is_ok_and(taken)
    }

    /// Whether servers who know the authority take it, at that time, for a client.
    pub fn is_client(&self, at: UnixTime) -> bool {
        let Some((own, rest)) = self.chain.split_first() else { return false };
        let taken = |clients: Arc<dyn ClientCertVerifier>| {
            clients.verify_client_cert(own, rest, at).is_ok()
        };
        self.client().is_ok() && self.clients().is_ok_and(taken)
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
