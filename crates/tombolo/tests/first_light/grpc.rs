//! Calls of a cluster's address service, from one of its nodes.

use std::{
    fs::File,
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::AsFd as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustls::{ClientConfig, pki_types::ServerName};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tombolo_api::{
    ipam::{GetRemotePodIpRequest, MapRequest, UnmapRequest, ipam_client::IpamClient},
    names::{IPAM_CLIENT_SECRET, IPAM_PORT, NAMESPACE, ipam_host},
};
use tombolo_runtime::mutual_tls::Identity;
use tombolo_testbed::{Cluster, Node};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

const TIMEOUT: Duration = Duration::from_secs(5);

/// A client of the address service, for one other cluster.
#[derive(Clone)]
pub struct AddressClient {
    client: IpamClient<Channel>,
    cluster: String,
}

impl AddressClient {
    /// A client on rome's first node, with the certificate of rome's clients.
    pub async fn new(rome: &Cluster, address: IpAddr, cluster: &str) -> Self {
        let secrets: Api<Secret> = Api::namespaced(rome.client().await.unwrap(), NAMESPACE);
        let secret = secrets.get(IPAM_CLIENT_SECRET).await.expect("clients have a certificate");
        let config = Arc::new(Identity::of(&secret).unwrap().client().unwrap());
        let (node, to) = (rome.node(1).clone(), SocketAddr::new(address, IPAM_PORT));
        let endpoint = Endpoint::from_shared(format!("https://{to}")).unwrap();
        let channel = endpoint.connect_with_connector_lazy(tower::service_fn(move |_| {
            let (node, config) = (node.clone(), config.clone());
            async move { secured(&node, to, config).await.map(TokioIo::new) }
        }));
        Self { client: IpamClient::new(channel), cluster: cluster.to_owned() }
    }

    pub async fn map(&self, ip: &str) -> Result<String, Status> {
        let request = MapRequest { cluster_id: self.cluster.clone(), ip: ip.into(), owner: None };
        Ok(self.client.clone().map_endpoint_ip(request).await?.into_inner().ip)
    }

    pub async fn unmap(&self, ip: &str) -> Result<(), Status> {
        let request = UnmapRequest { cluster_id: self.cluster.clone(), ip: ip.into(), owner: None };
        self.client.clone().unmap_endpoint_ip(request).await.map(drop)
    }

    pub async fn remote(&self, ip: &str) -> Result<String, Status> {
        let request = GetRemotePodIpRequest { cluster_id: self.cluster.clone(), ip: ip.into() };
        Ok(self.client.clone().get_remote_pod_ip(request).await?.into_inner().remote_ip)
    }
}

async fn secured(
    node: &Node,
    to: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<tokio::net::TcpStream>> {
    let stream = connect(node, to).await?;
    let name = ServerName::try_from(ipam_host()).expect("a DNS name");
    TlsConnector::from(config).connect(name, stream).await
}

/// A connection from the network namespace of the node.
pub async fn connect(node: &Node, to: SocketAddr) -> io::Result<tokio::net::TcpStream> {
    let namespace = File::open(Path::new("/run/netns").join(node.network_namespace()))?;
    let inside = move || {
        // A separate thread, because it can't leave the namespace again.
        let moved = std::thread::spawn(move || {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(namespace.as_fd(), network)?;
            TcpStream::connect_timeout(&to, TIMEOUT)
        });
        moved.join().expect("it does not panic")
    };
    let stream = tokio::task::spawn_blocking(inside).await??;
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}
