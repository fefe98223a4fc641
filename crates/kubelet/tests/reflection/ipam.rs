//! Rome's address service.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use kube::api::ListParams;
use tokio::{
    net::TcpListener,
    sync::{OnceCell, watch},
    task::JoinHandle,
};
use tombolo_api::{Cidr, ClusterId, NatCidr, net::IpamStorage};
use tombolo_control::testing::{AddressService, Context, ServeError, certificates};
use tombolo_runtime::{lease::Leading, shutdown::Shutdown};
use tombolo_testing::Side;
use tonic::transport::{Channel, Endpoint};

static SERVICE: OnceCell<(AddressService, SocketAddr)> = OnceCell::const_new();

/// A client of the service, with a peering with `cluster`, which translates rome's ExternalCIDR to
/// 10.72.0.0/16.
pub async fn client(rome: &Side, cluster: &ClusterId) -> Channel {
    let (ipam, address) = SERVICE.get_or_init(async || serve(rome).await).await;
    let cidr = |text: &str| text.parse::<Cidr>().unwrap();
    let (pods, external) = (cidr("10.244.0.0/16"), cidr("10.245.0.0/16"));
    ipam.reserve(cluster.clone(), pods, external).await.unwrap();
    let nat = |text| NatCidr::Remapped(cidr(text));
    let (pods, external) = (nat("10.71.0.0/16"), nat("10.72.0.0/16"));
    ipam.set_local_nat_cidrs(cluster.clone(), pods, external).await.unwrap();
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

/// The same service with mutual TLS.
pub async fn serve_secured(rome: &Side, listener: TcpListener) -> Secured {
    let (ipam, _) = SERVICE.get_or_init(async || serve(rome).await).await;
    let shutdown = Shutdown::new();
    let context = Context::new(rome.client.clone(), rome.settings.clone(), shutdown.clone());
    let (serving, tls) = watch::channel(None);
    tokio::spawn(certificates::keep(Arc::new(context), serving));
    let leading = Leading::alone(shutdown.clone());
    let served = tokio::spawn(ipam.clone().serve_on(listener, leading, Some(tls)));
    Secured { shutdown, served }
}

/// A server with mutual TLS.
pub struct Secured {
    shutdown: Shutdown,
    served: JoinHandle<Result<(), ServeError>>,
}

impl Secured {
    pub async fn end(self) {
        self.shutdown.trigger();
        self.served.await.unwrap().unwrap();
    }
}

/// Whether an endpoint is mapped for any cluster.
pub async fn is_mapped(rome: &Side, ip: &str) -> bool {
    let storages = rome.all::<IpamStorage>().list(&ListParams::default()).await.unwrap();
    let mut mapped = storages.iter().flat_map(|storage| storage.spec.endpoint_mappings.keys());
    mapped.any(|own| own.to_string() == ip)
}

async fn serve(rome: &Side) -> (AddressService, SocketAddr) {
    let shutdown = Shutdown::new();
    let context = Context::new(rome.client.clone(), rome.settings.clone(), shutdown.clone());
    let ipam = AddressService::start(&context).await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(ipam.clone().serve_on(listener, Leading::alone(shutdown), None));
    (ipam, address)
}
