//! The auth service serves a user-provided certificate only if the private key matches.

use std::{io, sync::Arc};

use k8s_openapi::api::core::v1::{Secret, Service};
use kube::ResourceExt;
use rcgen::{CertifiedKey, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName},
};
use serde_json::json;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tombolo_testbed::eventually;

use crate::{logs::Logs, side::Side};

const NAME: &str = "auth.example.com";

/// The ClusterConfig refers to the Secret `given`.
pub async fn a_certificate_with_the_wrong_key_is_rejected(rome: &Side, logs: &Logs) {
    let ports = json!([{ "port": 443 }]);
    rome.put_in::<Service>("liqo", "liqo-auth", json!({ "spec": { "ports": ports } })).await;
    let (first, second) = (made(), made());
    provide(rome, &first, &first.signing_key).await;
    wait_until_served(rome, &first).await;
    let announced = announced(rome).await;

    provide(rome, &second, &first.signing_key).await;
    let said = "use the certificate in Secret liqo/given: tls.key is not the key of tls.crt";
    let refused = async || logs.have(said);
    eventually("the mismatch is logged", refused, |refused| *refused).await;
    handshake(rome, &first).await.expect("the first certificate is still served");
    let kept = rome.secret("liqo", "liqo-auth-cert", "tls.crt").await;
    assert_eq!(kept, first.cert.pem(), "the certificate was replaced");
    let still = rome.get_in::<Service>("liqo", "liqo-auth").await.expect("the Service");
    assert_eq!(still.annotations()["discovery.liqo.io/fingerprint"], announced);

    provide(rome, &second, &second.signing_key).await;
    wait_until_served(rome, &second).await;
    rome.delete_in::<Service>("liqo", "liqo-auth").await;
}

fn made() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).expect("a pair")
}

async fn provide(rome: &Side, certificate: &CertifiedKey<KeyPair>, key: &KeyPair) {
    let data = json!({ "tls.crt": certificate.cert.pem(), "tls.key": key.serialize_pem() });
    rome.put_in::<Secret>("liqo", "given", json!({ "stringData": data })).await;
}

/// Waits until clients see this certificate.
async fn wait_until_served(rome: &Side, certificate: &CertifiedKey<KeyPair>) {
    let shown = async || handshake(rome, certificate).await.map_err(|error| error.to_string());
    eventually("the provided certificate is served", shown, Result::is_ok).await.expect("served");
}

/// Succeeds if the server presents this certificate and has its key.
async fn handshake(rome: &Side, expected: &CertifiedKey<KeyPair>) -> io::Result<()> {
    let expected: &CertificateDer<'static> = expected.cert.der();
    let mut roots = RootCertStore::empty();
    roots.add(expected.clone()).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("protocols")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(rome.url.trim_start_matches("https://")).await?;
    let name = ServerName::try_from(NAME).expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    assert_eq!(shown, Some(expected));
    Ok(())
}

async fn announced(rome: &Side) -> String {
    let key = "discovery.liqo.io/fingerprint";
    let said = |service: &Service| service.annotations().contains_key(key);
    let service = rome.until_in::<Service>("liqo", "liqo-auth", said).await;
    let fingerprint = service.annotations()[key].clone();
    assert_eq!(fingerprint, rome.fingerprint().await.to_string());
    fingerprint
}
