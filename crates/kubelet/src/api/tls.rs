//! TLS of the kubelet API: a certificate of our own with this pod's address, and clients by the
//! authority that this cluster's API server takes client certificates from.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, PoisonError},
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt};
use rustls::{
    RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tombolo_runtime::observe::{Watched, named};

use super::auth::Caller;

const NAMESPACE: &str = "kube-system";
const AUTHENTICATION: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "client-ca-file";

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("make a serving certificate")]
    Certificate(#[from] rcgen::Error),
    #[error("set up TLS")]
    Setup(#[from] rustls::Error),
    #[error("take client certificates of this authority")]
    Clients(#[from] rustls::server::VerifierBuilderError),
    #[error("read the certificates in ConfigMap {NAMESPACE}/{AUTHENTICATION}")]
    Authority(#[from] rustls::pki_types::pem::Error),
    #[error("ConfigMap {NAMESPACE}/{AUTHENTICATION} has not been read yet")]
    NoAuthority,
    #[error("shake hands")]
    Handshake(#[from] std::io::Error),
}

/// How connections are accepted.
pub(super) struct Tls {
    serving: Serving,
    authority: Watched<ConfigMap>,
    /// Made of the authority that has this version.
    made: Mutex<Option<(Option<String>, Arc<ServerConfig>)>>,
}

impl Tls {
    pub(super) fn new(client: Client, address: IpAddr) -> Result<Self, TlsError> {
        let api = Api::namespaced(client, NAMESPACE);
        Ok(Self {
            serving: Serving::new(address)?,
            authority: Watched::new(api, named(AUTHENTICATION)),
            made: Mutex::default(),
        })
    }

    /// A connection, and who is at the other end if that was shown.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(TlsStream<TcpStream>, Option<Caller>), TlsError> {
        let stream = TlsAcceptor::from(self.config()?).accept(stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let caller = shown.and_then(|certificate| Caller::of(certificate));
        Ok((stream, caller))
    }

    fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let found = self.authority.get(NAMESPACE, AUTHENTICATION).ok_or(TlsError::NoAuthority)?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((version, config)) = &*made
            && *version == found.resource_version()
        {
            return Ok(config.clone());
        }
        let config = self.serving.config(&found)?;
        *made = Some((found.resource_version(), config.clone()));
        Ok(config)
    }
}

/// Our own certificate.
struct Serving {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Serving {
    fn new(address: IpAddr) -> Result<Self, TlsError> {
        let made = rcgen::generate_simple_self_signed([address.to_string()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self { certificate: made.cert.der().clone(), key })
    }

    fn config(&self, authority: &ConfigMap) -> Result<Arc<ServerConfig>, TlsError> {
        let data = authority.data.as_ref().and_then(|data| data.get(CLIENT_CA));
        let pem = data.ok_or(TlsError::NoAuthority)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        // Whoever shows no certificate hears so in an answer, not in a broken handshake.
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
                .allow_unauthenticated()
                .build()?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![self.certificate.clone()],
                PrivateKeyDer::Pkcs8(self.key.clone_key()),
            )?;
        Ok(Arc::new(config))
    }
}
