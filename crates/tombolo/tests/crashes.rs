//! The address service as a process on a real API server, killed repeatedly under load, and
//! compared with a simple reference model.

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::control::{Control, PEERS, config_of, know_peers};
use futures::future::join_all;
use kube::api::ListParams;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tombolo_api::discovery::ResourceRequest;
use tombolo_api::ipam::ipam_client::IpamClient;
use tombolo_api::ipam::{
    GetHomePodIpRequest, GetRemotePodIpRequest, MapBatchRequest, MapRequest, UnmapBatchRequest,
    UnmapRequest, map_result, unmap_result,
};
use tombolo_api::net::{IpamStorage, NatMapping, NetworkConfig};
use tombolo_api::{Cidr, NatCidr};
use tombolo_testbed::{ClusterSpec, Testbed, eventually};
use tombolo_testing::Side;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const CLIENTS: u8 = 8;
const ENDPOINTS: u64 = 12;
const CRASHES: usize = 8;
/// Answers between two crashes.
const ANSWERS: usize = 120;
/// Endpoints in a batch.
const BATCH: u64 = 5;
/// A cluster that peers repeatedly: the answers per peering, the minimum number of peerings, its
/// tenant namespace, and its PodCIDR, which is also that of another peer.
const PISA: &str = "id-of-pisa";
const PISA_ANSWERS: usize = 12;
const PEERINGS: usize = 4;
const PISA_NAMESPACE: &str = "liqo-tenant-pisa";
const PISA_PODS: &str = "10.20.0.0/16";
/// ExternalCIDR of this cluster.
const EXTERNAL: &str = "10.128.0.0/16";
/// How long the service may be unavailable.
const TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loses_no_answered_mapping_and_leaves_no_other() {
    let spec = ClusterSpec::new("rome").control_plane_only();
    let bed = Testbed::builder("crashes").cluster(spec).start().await.expect("a control plane");
    let side = Side::new(bed.cluster("rome")).await;
    know_peers(&side, EXTERNAL).await;
    request_peering_with_pisa(&side).await;
    let program = Path::new(env!("CARGO_BIN_EXE_tombolo"));
    let mut control = Control::start(&side, program, "one").await;
    prometheus_is_answered(&control).await;

    let shared = Shared::default();
    let client = |number| {
        let channel = Endpoint::from_shared(format!("http://{}", control.address)).unwrap();
        Client::new(number, IpamClient::new(channel.connect_lazy()), &shared)
    };
    let clients = (0..CLIENTS).map(|number| client(number).run()).collect::<Vec<_>>();
    let clients = join_all(clients);
    let comes_and_goes = client(CLIENTS).peer_and_unpeer(&side);
    let crashes = async {
        for crash in 0..CRASHES {
            shared.answers_reach((crash + 1) * ANSWERS + crash * 7).await;
            drop(control);
            control = Control::start(&side, program, "one").await;
        }
        shared.end.store(true, Ordering::Relaxed);
        control
    };
    let (known, (of_pisa, peerings), control) = tokio::join!(clients, comes_and_goes, crashes);
    let known: Mapped = known.into_iter().flatten().chain(of_pisa).collect();
    println!(
        "{} answers, {CRASHES} crashes, {peerings} peerings, {} mapped",
        shared.count(),
        known.len()
    );
    let mappings = async || nat_mappings(&side).await;
    eventually("NatMappings have all answered mappings", mappings, |it| *it == known).await;
    drop(control);
    assert_eq!(stored(&side).await, known, "the stored mappings are the answered ones");
    bed.remove().expect("it is removed");
}

/// The process exports its metrics from the start.
async fn prometheus_is_answered(control: &Control) {
    let mut stream = TcpStream::connect((control.address.ip(), 8080)).await.expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.expect("it is asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    for line in [
        "HTTP/1.0 200 OK",
        "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8",
        "# TYPE tombolo_discovery_step_duration_seconds histogram",
        "# TYPE tombolo_discovery_duration_seconds histogram",
        "tombolo_discovery_step_duration_seconds_count{step=\"request_identity\"} 0",
        "tombolo_identity_requests_total{outcome=\"refused\"} 0",
        "# EOF",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
}

type Mapped = BTreeMap<(String, IpAddr), IpAddr>;

/// Shared state of all clients.
#[derive(Default)]
struct Shared {
    answers: AtomicUsize,
    answered: Notify,
    end: AtomicBool,
    /// The endpoint of each allocated address. Because of the quarantine, no other endpoint gets
    /// the address during this test.
    owners: Mutex<BTreeMap<IpAddr, IpAddr>>,
}

impl Shared {
    fn count(&self) -> usize {
        self.answers.load(Ordering::Relaxed)
    }

    fn note_answer(&self) {
        self.answers.fetch_add(1, Ordering::Relaxed);
        self.answered.notify_waiters();
    }

    async fn answers_reach(&self, count: usize) {
        loop {
            let answered = self.answered.notified();
            if self.count() >= count {
                return;
            }
            answered.await;
        }
    }
}

/// A client with its own endpoints, which records the answers.
struct Client<'a> {
    number: u8,
    service: IpamClient<Channel>,
    shared: &'a Shared,
    random: u64,
    mapped: Mapped,
}

impl<'a> Client<'a> {
    fn new(number: u8, service: IpamClient<Channel>, shared: &'a Shared) -> Self {
        let random = u64::from(number) + 1;
        Self { number, service, shared, random, mapped: Mapped::new() }
    }

    async fn run(mut self) -> Mapped {
        while !self.shared.end.load(Ordering::Relaxed) {
            let (peer, pods) = PEERS[self.pick(2) as usize];
            self.do_anything(peer, pods.parse().expect("a network")).await;
        }
        self.mapped
    }

    /// Peers and unpeers with a cluster until the end. Also returns the number of peerings.
    async fn peer_and_unpeer(mut self, side: &Side) -> (Mapped, usize) {
        for peerings in 1.. {
            let pods = peer_with_pisa(side).await;
            // Retried until pisa's translated CIDRs for this cluster are known.
            self.look(PISA).await;
            for _ in 0..PISA_ANSWERS {
                self.do_anything(PISA, pods).await;
            }
            if peerings >= PEERINGS && self.shared.end.load(Ordering::Relaxed) {
                return (self.mapped, peerings);
            }
            unpeer_from_pisa(side).await;
            let pod = Ipv4Addr::new(10, 20, 0, 1).into();
            let said = async || self.home(PISA, pod).await.err().map(|status| status.code());
            eventually("the peering is over", said, |it| *it == Some(Code::NotFound)).await;
            self.mapped.clear();
        }
        unreachable!("the loop returns")
    }

    /// A random call for a peer with this translated PodCIDR.
    async fn do_anything(&mut self, peer: &str, pods: Cidr) {
        match self.pick(7) {
            0 | 1 => self.map(peer).await,
            2 => self.unmap(peer).await,
            3 => self.map_batch(peer).await,
            4 => self.unmap_batch(peer).await,
            5 => self.look(peer).await,
            _ => self.check_home_address(peer, pods).await,
        }
        self.shared.note_answer();
    }

    async fn map(&mut self, peer: &str) {
        let endpoint = self.endpoint();
        let request = MapRequest { cluster_id: peer.into(), ip: endpoint.to_string(), owner: None };
        let mut service = self.service.clone();
        let answer = until_answered(async || service.map_endpoint_ip(request.clone()).await).await;
        self.is_mapped(peer, endpoint, &answer.expect("it can be mapped").ip);
    }

    async fn map_batch(&mut self, peer: &str) {
        let endpoints = self.endpoints();
        let request =
            |ip: &IpAddr| MapRequest { cluster_id: peer.into(), ip: ip.to_string(), owner: None };
        let requests: Vec<_> = endpoints.iter().map(request).collect();
        let mut service = self.service.clone();
        let ask = async || {
            service.map_endpoint_ip_batch(MapBatchRequest { requests: requests.clone() }).await
        };
        let answer = until_answered(ask).await.expect("they can be mapped");
        assert_eq!(answer.results.len(), endpoints.len());
        for (endpoint, result) in endpoints.into_iter().zip(answer.results) {
            let Some(map_result::Result::Response(mapped)) = result.result else {
                panic!("{endpoint} for {peer}: {result:?}");
            };
            self.is_mapped(peer, endpoint, &mapped.ip);
        }
    }

    fn is_mapped(&mut self, peer: &str, endpoint: IpAddr, address: &str) {
        let address = address.parse().expect("an address");
        let of = |mapped: &&IpAddr| **mapped == address;
        let others = self.mapped.iter().filter(|((_, ip), _)| *ip == endpoint).map(|(_, it)| it);
        assert!(others.clone().all(|it| of(&it)), "{endpoint} is {address} for {peer} only");
        let owner = *self.shared.owners.lock().unwrap().entry(address).or_insert(endpoint);
        assert_eq!(owner, endpoint, "{address} is allocated twice");
        self.mapped.insert((peer.into(), endpoint), address);
    }

    async fn unmap(&mut self, peer: &str) {
        let endpoint = self.endpoint();
        let request =
            UnmapRequest { cluster_id: peer.into(), ip: endpoint.to_string(), owner: None };
        let mut service = self.service.clone();
        let answer =
            until_answered(async || service.unmap_endpoint_ip(request.clone()).await).await;
        answer.expect("it can be unmapped");
        self.mapped.remove(&(peer.into(), endpoint));
    }

    async fn unmap_batch(&mut self, peer: &str) {
        let endpoints = self.endpoints();
        let request =
            |ip: &IpAddr| UnmapRequest { cluster_id: peer.into(), ip: ip.to_string(), owner: None };
        let requests: Vec<_> = endpoints.iter().map(request).collect();
        let mut service = self.service.clone();
        let ask = async || {
            service.unmap_endpoint_ip_batch(UnmapBatchRequest { requests: requests.clone() }).await
        };
        let answer = until_answered(ask).await.expect("they can be unmapped");
        assert_eq!(answer.results.len(), endpoints.len());
        for (endpoint, result) in endpoints.into_iter().zip(answer.results) {
            let is_done = matches!(result.result, Some(unmap_result::Result::Response(_)));
            assert!(is_done, "{endpoint} for {peer}: {result:?}");
            self.mapped.remove(&(peer.into(), endpoint));
        }
    }

    /// The translated address of a remote pod keeps its host part.
    async fn check_home_address(&mut self, peer: &str, pods: Cidr) {
        let real: Cidr = if peer == PISA { PISA_PODS.parse().unwrap() } else { pods };
        let host = self.pick(60_000) as u32 + 1;
        let within = |cidr: Cidr| match cidr.net().network() {
            IpAddr::V4(network) => Ipv4Addr::from(u32::from(network) + host).into(),
            IpAddr::V6(network) => panic!("{network} is not IPv4"),
        };
        let home = self.home(peer, within(real)).await;
        assert_eq!(home.expect("the peer is known"), within(pods), "the home address for {peer}");
    }

    async fn home(&self, peer: &str, ip: IpAddr) -> Result<IpAddr, Status> {
        let request = GetHomePodIpRequest { cluster_id: peer.into(), ip: ip.to_string() };
        let mut service = self.service.clone();
        let answer = until_answered(async || service.get_home_pod_ip(request.clone()).await).await;
        answer.map(|answer| answer.home_ip.parse().expect("an address"))
    }

    async fn look(&mut self, peer: &str) {
        let endpoint = self.endpoint();
        let request = GetRemotePodIpRequest { cluster_id: peer.into(), ip: endpoint.to_string() };
        let mut service = self.service.clone();
        let answer =
            until_answered(async || service.get_remote_pod_ip(request.clone()).await).await;
        let found = match answer {
            Ok(found) => Some(found.remote_ip.parse().expect("an address")),
            Err(status) => {
                assert_eq!(status.code(), Code::NotFound, "{status}");
                None
            }
        };
        let known = self.mapped.get(&(peer.into(), endpoint)).copied();
        assert_eq!(found, known, "{endpoint} for {peer}");
    }

    fn endpoint(&mut self) -> IpAddr {
        let endpoint = self.pick(ENDPOINTS) as u8;
        Ipv4Addr::new(192, 0, 2, self.number * 16 + endpoint).into()
    }

    /// Some endpoints, possibly repeated.
    fn endpoints(&mut self) -> Vec<IpAddr> {
        let count = self.pick(BATCH) + 1;
        (0..count).map(|_| self.endpoint()).collect()
    }

    fn pick(&mut self, count: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % count
    }
}

/// Retries while the service is unavailable or the answer is lost, up to a timeout.
async fn until_answered<T>(
    mut ask: impl AsyncFnMut() -> Result<tonic::Response<T>, Status>,
) -> Result<T, Status> {
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if is_lost(&status) && begun.elapsed() < TIMEOUT => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(status) => return Err(status),
        }
    }
}

/// Whether the service was unavailable or the connection was lost: a status from the service has no
/// source.
fn is_lost(status: &Status) -> bool {
    status.code() == Code::Unavailable || std::error::Error::source(status).is_some()
}

/// Requests a peering: without it, this cluster would delete its NetworkConfig. A watch that starts
/// later sees the request before any NetworkConfig.
async fn request_peering_with_pisa(side: &Side) {
    side.tenant(PISA_NAMESPACE, PISA).await;
    let own = json!({
        "clusterID": side.settings.cluster_id, "clusterName": side.settings.cluster_name,
    });
    let request = json!({ "spec": { "clusterIdentity": own, "authUrl": "https://192.0.2.1" } });
    side.put_in::<ResourceRequest>(PISA_NAMESPACE, side.settings.cluster_name.as_str(), request)
        .await;
}

/// Creates both NetworkConfigs and their status. Returns the translated PodCIDR in this cluster.
async fn peer_with_pisa(side: &Side) -> Cidr {
    let theirs = config_of(side, PISA, PISA_PODS, "10.21.0.0/16");
    let ours = config_of(side, PISA, &side.settings.pod_cidr.to_string(), EXTERNAL);
    let us = side.settings.cluster_name.as_str();
    side.put_in::<NetworkConfig>(PISA_NAMESPACE, "theirs", theirs).await;
    side.put_in::<NetworkConfig>(PISA_NAMESPACE, us, ours).await;
    let answer = json!({ "processed": true, "podCIDRNAT": "None", "externalCIDRNAT": "None" });
    side.put_status_in::<NetworkConfig>(PISA_NAMESPACE, us, answer).await;
    let nat = |config: &NetworkConfig| config.status.as_ref().and_then(|it| it.pod_cidr_nat);
    let is_answered = |config: &NetworkConfig| nat(config).is_some();
    let config = side.until_in::<NetworkConfig>(PISA_NAMESPACE, "theirs", is_answered).await;
    let Some(NatCidr::Remapped(translated)) = nat(&config) else {
        panic!("{PISA_PODS} belongs to another peer: {:?}", config.status);
    };
    translated
}

async fn unpeer_from_pisa(side: &Side) {
    for config in ["theirs", side.settings.cluster_name.as_str()] {
        side.delete_in::<NetworkConfig>(PISA_NAMESPACE, config).await;
    }
}

async fn stored(side: &Side) -> Mapped {
    let storages = side.all::<IpamStorage>().list(&ListParams::default()).await.unwrap();
    let mut mapped = Mapped::new();
    for (ip, mapping) in storages.iter().flat_map(|storage| &storage.spec.endpoint_mappings) {
        for cluster in mapping.cluster_mappings.keys() {
            mapped.insert((cluster.to_string(), *ip), mapping.ip);
        }
    }
    mapped
}

async fn nat_mappings(side: &Side) -> Mapped {
    let mappings = side.all::<NatMapping>().list(&ListParams::default()).await.unwrap();
    let mut mapped = Mapped::new();
    for mapping in mappings {
        let cluster = mapping.spec.cluster_id.to_string();
        for (ip, address) in mapping.spec.cluster_mappings {
            mapped.insert((cluster.clone(), ip), address);
        }
    }
    mapped
}
