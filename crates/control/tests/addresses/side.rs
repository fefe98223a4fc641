//! One of two clusters that all tests share, and the components in it.

use std::{
    collections::BTreeMap,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Client, ResourceExt, api::ListParams};
use serde_json::json;
use tokio::{
    net::TcpListener,
    sync::{Mutex, MutexGuard, OnceCell},
    task::JoinHandle,
};
use tombolo_api::{
    Cidr,
    config::ClusterConfig,
    ipam::{GetRemotePodIpRequest, MapRequest, UnmapRequest, ipam_client::IpamClient},
    names,
    net::{IpamStorage, IpamStorageSpec, NatMapping, NatMappingSpec, NetworkConfig},
};
use tombolo_control::testing::{
    AddressService, Clock, Context, ServeError, network_config, replicator,
};
use tombolo_runtime::{lease::Leading, shutdown::Shutdown};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed, eventually};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

/// One cluster.
pub struct Side(tombolo_testing::Side);

impl Deref for Side {
    type Target = tombolo_testing::Side;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// All tests share one testbed, one at a time.
static BED: OnceCell<Testbed> = OnceCell::const_new();
static ALONE: Mutex<()> = Mutex::const_new(());

async fn cluster(name: &str) -> &'static Cluster {
    let start = async || {
        let cluster = |name| ClusterSpec::new(name).control_plane_only();
        let bed = Testbed::builder("addresses").cluster(cluster("rome")).cluster(cluster("milan"));
        let bed = bed.start().await.expect("the API servers start");
        let side = |name| tombolo_testing::Side::new(bed.cluster(name));
        tokio::join!(side("rome"), side("milan"));
        bed
    };
    BED.get_or_init(start).await.cluster(name)
}

impl Side {
    /// A cluster without peers, reserved for one test.
    pub async fn alone(name: &str) -> (Self, MutexGuard<'static, ()>) {
        let alone = ALONE.lock().await;
        let side = Self::of(name).await;
        side.clear::<NetworkConfig>().await;
        side.clear::<NatMapping>().await;
        side.clear::<IpamStorage>().await;
        side.clear::<ClusterConfig>().await;
        (side, alone)
    }

    pub async fn of(name: &str) -> Self {
        Self(tombolo_testing::Side::again(cluster(name).await).await)
    }

    /// The address service, and a client of it.
    pub async fn serve(&self) -> (AddressService, IpamClient<Channel>, Shutdown) {
        self.serve_at(self.client.clone(), Arc::new(Timestamp::now)).await
    }

    /// The same, with another clock and another client of the API server.
    pub async fn serve_at(
        &self,
        client: Client,
        clock: Clock,
    ) -> (AddressService, IpamClient<Channel>, Shutdown) {
        let shutdown = Shutdown::new();
        let context = Context::new(client, self.settings.clone(), shutdown.clone());
        let (ipam, client) = serve_in(&context, clock).await;
        (ipam, client, shutdown)
    }

    /// The address service: a connection to it, its shutdown, and its result.
    pub async fn serve_a_channel(&self) -> (Channel, Shutdown, JoinHandle<Result<(), ServeError>>) {
        let shutdown = Shutdown::new();
        let ipam = AddressService::start(&self.context(&shutdown)).await.unwrap();
        let (channel, ended) = serve(&ipam, &shutdown).await;
        (channel, shutdown, ended)
    }

    /// The address service and the controllers that join networks.
    pub async fn start(&self) -> (AddressService, Shutdown) {
        let shutdown = Shutdown::new();
        let context = Arc::new(self.context(&shutdown));
        let ipam = AddressService::start(&context).await.unwrap();
        tokio::spawn(network_config::run(context.clone(), ipam.clone()));
        tokio::spawn(replicator::run(context));
        (ipam, shutdown)
    }

    pub fn context(&self, shutdown: &Shutdown) -> Context {
        Context::new(self.client.clone(), self.settings.clone(), shutdown.clone())
    }

    /// A gateway announces itself.
    pub async fn gateway(&self, ip: &str) {
        let annotations = json!({
            names::GATEWAY_ENDPOINT_ANNOTATION: ip,
            names::GATEWAY_PORT_ANNOTATION: "51840",
            names::GATEWAY_PUBLIC_KEY_ANNOTATION: format!("{}=", "A".repeat(43)),
        });
        let lease = json!({ "metadata": { "annotations": annotations } });
        self.put_in::<Lease>(names::NAMESPACE, names::GATEWAY_LEASE, lease).await;
    }

    /// All IpamStorages and NatMappings, without the record of the writer.
    pub async fn all_addresses(&self) -> (Vec<IpamStorageSpec>, Vec<NatMappingSpec>) {
        let storages = self.all::<IpamStorage>().list(&ListParams::default()).await.unwrap();
        let mappings = self.all::<NatMapping>().list(&ListParams::default()).await.unwrap();
        let storages = storages.into_iter().map(|storage| storage.spec);
        let mappings = mappings.into_iter().map(|mapping| mapping.spec);
        (storages.filter(|spec| spec.writer.is_none()).collect(), mappings.collect())
    }

    /// The names of all IpamStorages and NatMappings.
    pub async fn all_object_names(&self) -> Vec<String> {
        let storages = self.all::<IpamStorage>().list(&ListParams::default()).await.unwrap();
        let mappings = self.all::<NatMapping>().list(&ListParams::default()).await.unwrap();
        let storages = storages.iter().map(ResourceExt::name_any);
        storages.chain(mappings.iter().map(ResourceExt::name_any)).collect()
    }

    /// All mapped endpoints, for all clusters.
    pub async fn mapped(&self) -> Vec<String> {
        let storages = self.all_addresses().await.0;
        let all = storages.iter().flat_map(|storage| storage.endpoint_mappings.keys());
        all.map(ToString::to_string).collect()
    }

    /// Waits until the NatMappings have this number of mappings, for all clusters.
    pub async fn until_nat_mappings(&self, count: usize) -> BTreeMap<String, String> {
        let enough = |mappings: &BTreeMap<_, _>| mappings.len() == count;
        let what = format!("NatMappings with {count} mappings");
        eventually(&what, async || self.nat_mappings().await, enough).await
    }

    /// The mappings of all NatMappings.
    pub async fn nat_mappings(&self) -> BTreeMap<String, String> {
        let mappings = self.all::<NatMapping>().list(&ListParams::default()).await.unwrap();
        let all = mappings.iter().flat_map(|mapping| &mapping.spec.cluster_mappings);
        all.map(|(from, to)| (from.to_string(), to.to_string())).collect()
    }
}

/// A clock that a test can advance.
#[derive(Clone, Debug, Default)]
pub struct Time(Arc<AtomicI64>);

impl Time {
    pub fn clock(&self) -> Clock {
        let ahead = self.0.clone();
        Arc::new(move || {
            Timestamp::now() + SignedDuration::from_secs(ahead.load(Ordering::Relaxed))
        })
    }

    pub fn pass(&self, time: SignedDuration) {
        self.0.fetch_add(time.as_secs(), Ordering::Relaxed);
    }
}

/// The address service, and a client of it.
pub async fn serve_in(context: &Context, clock: Clock) -> (AddressService, IpamClient<Channel>) {
    let ipam = AddressService::start_at(context, clock).await.unwrap();
    let (channel, _) = serve(&ipam, &context.shutdown).await;
    (ipam, IpamClient::new(channel))
}

async fn serve(
    ipam: &AddressService,
    shutdown: &Shutdown,
) -> (Channel, JoinHandle<Result<(), ServeError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ended =
        tokio::spawn(ipam.clone().serve_on(listener, Leading::alone(shutdown.clone()), None));
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap();
    (channel.connect().await.unwrap(), ended)
}

pub async fn map(
    client: &mut IpamClient<Channel>,
    cluster: &str,
    ip: &str,
) -> Result<String, Status> {
    let request = MapRequest { cluster_id: cluster.into(), ip: ip.into(), owner: None };
    Ok(client.map_endpoint_ip(request).await?.into_inner().ip)
}

pub async fn unmap(client: &mut IpamClient<Channel>, cluster: &str, ip: &str) {
    let request = UnmapRequest { cluster_id: cluster.into(), ip: ip.into(), owner: None };
    client.unmap_endpoint_ip(request).await.unwrap();
}

pub async fn remote(
    client: &mut IpamClient<Channel>,
    cluster: &str,
    ip: &str,
) -> Result<String, Status> {
    let request = GetRemotePodIpRequest { cluster_id: cluster.into(), ip: ip.into() };
    Ok(client.get_remote_pod_ip(request).await?.into_inner().remote_ip)
}

pub fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}
