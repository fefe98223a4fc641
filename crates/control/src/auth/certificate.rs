//! The certificate of the auth service, from the Secret that the controllers write.

use std::{sync::Arc, time::Duration};

use axum_server::tls_rustls::RustlsConfig;
use k8s_openapi::api::core::v1::Secret;
use rustls::{ServerConfig, crypto::aws_lc_rs, sign::SingleCertAndKey};
use tokio::time::timeout;
use tombolo_api::names::{AUTH_CERTIFICATE_SECRET, NAMESPACE};
use tombolo_runtime::{observe::Watched, shutdown::Shutdown};
use tracing::{info, warn};

use crate::key_pair;

/// Waits until the controllers have made the certificate.
pub(super) async fn first(certificate: &Watched<Secret>) -> RustlsConfig {
    let mut changes = certificate.changes();
    loop {
        match certificate.only().map(|secret| config(&secret)) {
            Some(Ok(config)) => return RustlsConfig::from_config(config),
            Some(Err(why)) => unusable(&why),
            None => info!("waiting for the Secret {NAMESPACE}/{AUTH_CERTIFICATE_SECRET}"),
        }
        if timeout(Duration::from_secs(600), changes.changed()).await.is_ok_and(|end| end.is_err())
        {
            std::future::pending::<()>().await;
        }
    }
}

/// Reloads a changed certificate for new connections.
pub(super) async fn follow(certificate: Watched<Secret>, tls: RustlsConfig, shutdown: Shutdown) {
    let mut changes = certificate.changes();
    while let Some(Ok(())) = shutdown.or(changes.changed()).await {
        match certificate.only().map(|secret| config(&secret)) {
            Some(Ok(config)) => tls.reload_from_config(config),
            Some(Err(why)) => unusable(&why),
            None => {}
        }
    }
}

/// HTTP/1.1 only: requests are small, and HTTP/2 would only add attack surface.
fn config(secret: &Secret) -> Result<Arc<ServerConfig>, String> {
    let pair = key_pair::read(secret)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn unusable(why: &str) {
    warn!("can't use the certificate in Secret {NAMESPACE}/{AUTH_CERTIFICATE_SECRET}: {why}");
}
