//! gRPC channels to the address service of this cluster.

use std::{error::Error, time::Duration};

use http::Uri;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::{TlsConnector, client::TlsStream};
use tombolo_api::names::{IPAM_CLIENT_SECRET, IPAM_PORT, NAMESPACE, ipam_host};
use tombolo_runtime::mutual_tls::Identity;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

const CONNECT: Duration = Duration::from_secs(5);
const PING: Duration = Duration::from_secs(4);

/// A channel to the address service of this cluster, connected on first use. With `certificates`,
/// it uses mutual TLS.
pub fn address_service(home: &Client, certificates: bool) -> Channel {
    address_service_at(&format!("{}:{IPAM_PORT}", ipam_host()), home, certificates)
}

/// The same for an address service at this host and port.
pub fn address_service_at(address: &str, home: &Client, certificates: bool) -> Channel {
    let scheme = if certificates { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"));
    let endpoint = endpoint.expect("a host and a port make a URI");
    // Detects a dead connection while a request waits.
    let endpoint = endpoint.connect_timeout(CONNECT).http2_keep_alive_interval(PING);
    let endpoint = endpoint.keep_alive_timeout(PING);
    if !certificates {
        return endpoint.connect_lazy();
    }
    let secrets: Api<Secret> = Api::namespaced(home.clone(), NAMESPACE);
    endpoint.connect_with_connector_lazy(service_fn(move |uri: Uri| {
        let secrets = secrets.clone();
        async move { secured(&uri, &secrets).await.map(TokioIo::new) }
    }))
}

/// Reads the certificate for every connection, so that a renewed one is used.
async fn secured(
    uri: &Uri,
    secrets: &Api<Secret>,
) -> Result<TlsStream<TcpStream>, Box<dyn Error + Send + Sync>> {
    let secret = secrets.get(IPAM_CLIENT_SECRET).await?;
    let config = Identity::of(&secret)?.client()?;
    let address = (uri.host().unwrap_or_default(), uri.port_u16().unwrap_or(IPAM_PORT));
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(ipam_host())?;
    Ok(TlsConnector::from(std::sync::Arc::new(config)).connect(name, stream).await?)
}
