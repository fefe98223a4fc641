//! Callers that begin to say something and never come to an end.

use std::{sync::Arc, time::Duration};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::side::Side;

/// What a caller is waited for, and some more.
const LIMIT: Duration = Duration::from_secs(12);

pub async fn who_never_ends_a_request_is_not_waited_for(milan: &Side) {
    let header = "POST /identity HTTP/1.1\r\nHost: liqo-auth\r\nContent-Length: 100\r\n";
    let body = format!("{header}\r\n{{\"clusterID\": ");
    let (header, body) = tokio::join!(answer_to(milan, header), answer_to(milan, &body));
    assert!(!header.contains(" 200 "), "{header}");
    assert!(body.starts_with("HTTP/1.1 408 "), "{body}");
}

/// Sends this and nothing more, and reads until the other side ends it.
async fn answer_to(side: &Side, sent: &str) -> String {
    let pem = side.secret("liqo", "liqo-auth-cert", "tls.crt").await;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).expect("PEM")).expect("a root");
    let config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("protocols")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(side.url.trim_start_matches("https://")).await.expect("TCP");
    let name = ServerName::try_from("liqo-auth").expect("a name");
    let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await;
    let mut stream = stream.expect("TLS");
    stream.write_all(sent.as_bytes()).await.expect("sent");
    let mut bytes = Vec::new();
    let read = timeout(LIMIT, stream.read_to_end(&mut bytes)).await;
    // It may end without a word of farewell.
    drop(read.expect("it is not waited for any longer"));
    String::from_utf8_lossy(&bytes).into_owned()
}
