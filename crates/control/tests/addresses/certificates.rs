//! The address service with mutual TLS: only clients with a certificate of this cluster's CA are
//! accepted, and renewed certificates are used.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _},
};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tombolo_api::{
    ipam::{GetHomePodIpRequest, ipam_client::IpamClient},
    names::{IPAM_AUTHORITY_SECRET, IPAM_CLIENT_SECRET, IPAM_SERVER_SECRET, NAMESPACE, ipam_host},
};
use tombolo_control::testing::{AddressService, certificates};
use tombolo_runtime::{lease::Leading, mutual_tls::Identity, shutdown::Shutdown};
use tombolo_testbed::eventually;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::side::{Side, cidr};

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_with_a_certificate_are_accepted() {
    let (rome, _alone) = Side::alone("rome").await;
    let (address, end) = serve(&rome).await;
    let own = rome.until_in::<Secret>(NAMESPACE, IPAM_CLIENT_SECRET, |_| true).await;

    let known = Identity::of(&own).unwrap().client().unwrap();
    assert_eq!(home_ip(secured(address, known)).await.unwrap(), "10.20.0.1");

    let plain = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    assert_is_refused(plain).await;

    let mut roots = RootCertStore::empty();
    roots.add(certificate(&own, "ca.crt")).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = || {
        let builder = ClientConfig::builder_with_provider(provider.clone());
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        builder.with_root_certificates(roots.clone())
    };
    let with_h2 = |mut config: ClientConfig| {
        config.alpn_protocols = vec![b"h2".to_vec()];
        config
    };
    let no_certificate = with_h2(builder().with_no_client_auth());
    assert_is_refused(secured(address, no_certificate)).await;

    // A client certificate of another CA.
    let (chain, key) = of_another_authority();
    let other = with_h2(builder().with_client_auth_cert(vec![chain], key).unwrap());
    assert_is_refused(secured(address, other)).await;

    // A client with another CA does not trust the server.
    let mut wrong = own.clone();
    let pem = rcgen::generate_simple_self_signed([ipam_host()]).unwrap().cert.pem();
    wrong.data.as_mut().unwrap().insert("ca.crt".into(), ByteString(pem.into_bytes()));
    let other_ca = Identity::of(&wrong).unwrap().client().unwrap();
    assert_is_refused(secured(address, other_ca)).await;
    end.trigger();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_and_used() {
    let (rome, _alone) = Side::alone("rome").await;
    let (address, end) = serve(&rome).await;
    let stored = async |name: &'static str| rome.get_in::<Secret>(NAMESPACE, name).await.unwrap();
    rome.until_in::<Secret>(NAMESPACE, IPAM_CLIENT_SECRET, |_| true).await;
    let first = shown(address, &stored(IPAM_CLIENT_SECRET).await).await.unwrap();
    assert_eq!(first, certificate(&stored(IPAM_SERVER_SECRET).await, "tls.crt"));

    // Both expire soon: they are replaced, the CA stays.
    let authority = stored(IPAM_AUTHORITY_SECRET).await;
    for name in [IPAM_SERVER_SECRET, IPAM_CLIENT_SECRET] {
        let soon = ends_soon(&authority);
        rome.put_in::<Secret>(NAMESPACE, name, json!({ "data": { "tls.crt": soon } })).await;
        let is_new = |secret: &Secret| certificate(secret, "tls.crt") != pem(&soon.0);
        rome.until_in::<Secret>(NAMESPACE, name, is_new).await;
    }
    assert_eq!(stored(IPAM_AUTHORITY_SECRET).await.data, authority.data);
    let wanted = certificate(&stored(IPAM_SERVER_SECRET).await, "tls.crt");
    assert_ne!(wanted, first);
    is_served(&rome, address, &wanted).await;

    // Without the CA, the CA and all certificates are replaced.
    rome.delete_in::<Secret>(NAMESPACE, IPAM_AUTHORITY_SECRET).await;
    let old = certificate(&authority, "tls.crt");
    for name in [IPAM_SERVER_SECRET, IPAM_CLIENT_SECRET] {
        rome.until_in::<Secret>(NAMESPACE, name, |it| certificate(it, "ca.crt") != old).await;
    }
    let wanted = certificate(&stored(IPAM_SERVER_SECRET).await, "tls.crt");
    is_served(&rome, address, &wanted).await;
    end.trigger();
}

/// The address service with mutual TLS, with turin as a peer.
async fn serve(rome: &Side) -> (SocketAddr, Shutdown) {
    let shutdown = Shutdown::new();
    let context = Arc::new(rome.context(&shutdown));
    let ipam = AddressService::start(&context).await.unwrap();
    let turin = "id-of-turin".parse().unwrap();
    ipam.reserve(turin, cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    let (serving, tls) = watch::channel(None);
    tokio::spawn(certificates::keep(context, serving));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(ipam.serve_on(listener, Leading::alone(shutdown.clone()), Some(tls)));
    (address, shutdown)
}

async fn home_ip(channel: Channel) -> Result<String, Status> {
    let request = GetHomePodIpRequest { cluster_id: "id-of-turin".into(), ip: "10.20.0.1".into() };
    Ok(IpamClient::new(channel).get_home_pod_ip(request).await?.into_inner().home_ip)
}

/// The connection fails, not the request.
async fn assert_is_refused(channel: Channel) {
    let said = home_ip(channel).await.expect_err("the connection fails");
    let source = std::error::Error::source(&said);
    let broken = source.and_then(|source| source.downcast_ref::<tonic::transport::Error>());
    assert!(broken.is_some(), "{said:?}");
}

fn secured(address: SocketAddr, config: ClientConfig) -> Channel {
    let config = Arc::new(config);
    let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap();
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
        let config = config.clone();
        async move { connect(address, config).await.map(hyper_util::rt::TokioIo::new) }
    }))
}

async fn connect(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from(ipam_host()).unwrap();
    TlsConnector::from(config).connect(name, stream).await
}

/// The server's certificate, as seen by a client with this certificate.
async fn shown(address: SocketAddr, client: &Secret) -> io::Result<CertificateDer<'static>> {
    let config = Identity::of(client).unwrap().client().unwrap();
    let stream = connect(address, Arc::new(config)).await?;
    let all = stream.get_ref().1.peer_certificates().expect("the server shows one");
    Ok(all[0].clone().into_owned())
}

/// Waits until the server uses this certificate, as seen by a client with its current certificate.
async fn is_served(rome: &Side, address: SocketAddr, wanted: &CertificateDer<'static>) {
    let look = async || {
        let client = rome.get_in::<Secret>(NAMESPACE, IPAM_CLIENT_SECRET).await?;
        shown(address, &client).await.ok()
    };
    eventually("the server's certificate", look, |now| now.as_ref() == Some(wanted)).await;
    let client = rome.get_in::<Secret>(NAMESPACE, IPAM_CLIENT_SECRET).await.unwrap();
    let config = Identity::of(&client).unwrap().client().unwrap();
    assert_eq!(home_ip(secured(address, config)).await.unwrap(), "10.20.0.1");
}

fn certificate(secret: &Secret, key: &str) -> CertificateDer<'static> {
    pem(&secret.data.as_ref().unwrap()[key].0)
}

fn pem(bytes: &[u8]) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(bytes).unwrap()
}

/// A certificate of the CA that expires in an hour.
fn ends_soon(authority: &Secret) -> ByteString {
    let text =
        |key: &str| String::from_utf8(authority.data.as_ref().unwrap()[key].0.clone()).unwrap();
    let key = KeyPair::from_pem(&text("tls.key")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&text("tls.crt"), key).unwrap();
    let mut params = CertificateParams::new([ipam_host()]).unwrap();
    let now = jiff::Timestamp::now().as_second().unsigned_abs();
    params.not_after =
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now) + Duration::from_secs(3600);
    let signed = params.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
    ByteString(signed.pem().into_bytes())
}

fn of_another_authority() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let mut params = CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = Issuer::new(params, KeyPair::generate().unwrap());
    let mut params = CertificateParams::default();
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let signed = params.signed_by(&key, &issuer).unwrap();
    (signed.der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}
