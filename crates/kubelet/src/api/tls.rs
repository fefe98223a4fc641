//! TLS of the kubelet API: a self-signed certificate with this pod's address, and clients with a
//! certificate of the client CA of this cluster's API server.

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
    #[error("create the serving certificate of the kubelet API")]
    Certificate(#[from] rcgen::Error),
    #[error("configure TLS of the kubelet API")]
    Setup(#[from] rustls::Error),
    #[error("use the client CA in ConfigMap {NAMESPACE}/{AUTHENTICATION}")]
    Clients(#[from] rustls::server::VerifierBuilderError),
    #[error("parse {CLIENT_CA} in ConfigMap {NAMESPACE}/{AUTHENTICATION}")]
    Authority(#[from] rustls::pki_types::pem::Error),
    #[error("no {CLIENT_CA} in ConfigMap {NAMESPACE}/{AUTHENTICATION}, or not read yet")]
    NoAuthority,
    #[error("TLS handshake")]
    Handshake(#[from] std::io::Error),
}

/// Accepts TLS connections.
pub(super) struct Tls {
    serving: Serving,
    authority: Watched<ConfigMap>,
    /// The configuration for this resourceVersion of the ConfigMap.
    cached: Mutex<Option<(Option<String>, Arc<ServerConfig>)>>,
}

impl Tls {
    pub(super) fn new(client: Client, address: IpAddr) -> Result<Self, TlsError> {
        let api = Api::namespaced(client, NAMESPACE);
        Ok(Self {
            serving: Serving::new(address)?,
            authority: Watched::new(api, named(AUTHENTICATION)),
            cached: Mutex::default(),
        })
    }

    /// Accepts a connection. `None`: the caller has presented no certificate.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
    ) -> Result<(TlsStream<TcpStream>, Option<Caller>), TlsError> {
        let stream = TlsAcceptor::from(self.config()?).accept(stream).await?;
        let presented = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
        let caller = presented.and_then(|certificate| Caller::of(certificate));
        Ok((stream, caller))
    }

    fn config(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let found = self.authority.get(NAMESPACE, AUTHENTICATION).ok_or(TlsError::NoAuthority)?;
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((version, config)) = &*cached
            && *version == found.resource_version()
        {
            return Ok(config.clone());
        }
        let config = self.serving.config(&found)?;
        *cached = Some((found.resource_version(), config.clone()));
        Ok(config)
    }
}

/// The serving certificate.
struct Serving {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Serving {
    fn new(address: IpAddr) -> Result<Self, TlsError> {
        let generated = rcgen::generate_simple_self_signed([address.to_string()])?;
        let key = PrivatePkcs8KeyDer::from(generated.signing_key.serialize_der());
        Ok(Self { certificate: generated.cert.der().clone(), key })
    }

    fn config(&self, authority: &ConfigMap) -> Result<Arc<ServerConfig>, TlsError> {
        let data = authority.data.as_ref().and_then(|data| data.get(CLIENT_CA));
        let pem = data.ok_or(TlsError::NoAuthority)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots.add(certificate?)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        // A caller without a certificate gets a 401 instead of a failed handshake.
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
