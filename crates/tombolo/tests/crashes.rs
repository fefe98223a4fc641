//! The address service as a process on a real API server, killed again and again in the middle of its
//! work, against a reference that is simple enough to be right.

mod common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::control::{Control, PEERS, know_peers};
use futures::future::join_all;
use kube::api::ListParams;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tombolo_api::ipam::ipam_client::IpamClient;
use tombolo_api::ipam::{GetRemotePodIpRequest, MapRequest, UnmapRequest};
use tombolo_api::net::{IpamStorage, NatMapping};
use tombolo_testbed::{ClusterSpec, Testbed, eventually};
use tombolo_testing::Side;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const CLIENTS: u8 = 8;
const ENDPOINTS: u64 = 12;
const CRASHES: usize = 8;
/// Answers between two crashes.
const ANSWERS: usize = 120;

#[tokio::test(flavor = "multi_thread")]
async fn no_crash_loses_what_was_answered_or_leaves_what_was_not() {
    let spec = ClusterSpec::new("rome").control_plane_only();
    let bed = Testbed::builder("crashes").cluster(spec).start().await.expect("a control plane");
    let side = Side::new(bed.cluster("rome")).await;
    know_peers(&side).await;
    let program = Path::new(env!("CARGO_BIN_EXE_tombolo"));
    let mut control = Control::start(&side, program, "one").await;
    prometheus_is_answered(&control).await;

    let shared = Shared::default();
    let clients = (0..CLIENTS).map(|number| {
        let channel = Endpoint::from_shared(format!("http://{}", control.address)).unwrap();
        Client::new(number, IpamClient::new(channel.connect_lazy()), &shared).run()
    });
    let clients = join_all(clients.collect::<Vec<_>>());
    let crashes = async {
        for crash in 0..CRASHES {
            shared.answers_reach((crash + 1) * ANSWERS + crash * 7).await;
            drop(control);
            control = Control::start(&side, program, "one").await;
        }
        shared.end.store(true, Ordering::Relaxed);
        control
    };
    let (known, control) = tokio::join!(clients, crashes);
    let known: Mapped = known.into_iter().flatten().collect();
    println!("{} answers, {CRASHES} crashes, {} mapped", shared.count(), known.len());
    let told = async || told(&side).await;
    eventually("gateways are told what was answered", told, |told| *told == known).await;
    drop(control);
    assert_eq!(stored(&side).await, known, "what is stored is what was answered");
    bed.remove().expect("it is removed");
}

/// The process says what it measures, though there is nothing to measure yet.
async fn prometheus_is_answered(control: &Control) {
    let mut stream = TcpStream::connect((control.address.ip(), 8080)).await.expect("it listens");
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.expect("it is asked");
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("an answer");
    for line in [
        "HTTP/1.0 200 OK",
        "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8",
        "# TYPE tombolo_discovery_step_seconds histogram",
        "# TYPE tombolo_discovery_seconds histogram",
        "tombolo_discovery_step_seconds_count{step=\"identity\"} 0",
        "tombolo_identity_requests_total{outcome=\"refused\"} 0",
        "# EOF",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
    }
}

type Mapped = BTreeMap<(String, IpAddr), IpAddr>;

/// What all clients know.
#[derive(Default)]
struct Shared {
    answers: AtomicUsize,
    answered: Notify,
    end: AtomicBool,
    /// The endpoint that an address was given to: within the time of this test no other one gets it.
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

/// One that asks about endpoints that no other one asks about, and remembers the answers.
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
            let (what, peer, endpoint) = (self.pick(4), self.pick(2), self.pick(ENDPOINTS));
            let peer = PEERS[usize::try_from(peer).expect("it is small")].0;
            let endpoint = Ipv4Addr::new(192, 0, 2, self.number * 16 + endpoint as u8).into();
            match what {
                0 | 1 => self.map(peer, endpoint).await,
                2 => self.unmap(peer, endpoint).await,
                _ => self.look(peer, endpoint).await,
            }
            self.shared.note_answer();
        }
        self.mapped
    }

    async fn map(&mut self, peer: &str, endpoint: IpAddr) {
        let request = MapRequest { cluster_id: peer.into(), ip: endpoint.to_string() };
        let mut service = self.service.clone();
        let answer = until_answered(async || service.map_endpoint_ip(request.clone()).await).await;
        let address = answer.expect("it can be mapped").ip.parse().expect("an address");
        let of = |mapped: &&IpAddr| **mapped == address;
        let others = self.mapped.iter().filter(|((_, ip), _)| *ip == endpoint).map(|(_, it)| it);
        assert!(others.clone().all(|it| of(&it)), "{endpoint} is {address} for {peer} only");
        let owner = *self.shared.owners.lock().unwrap().entry(address).or_insert(endpoint);
        assert_eq!(owner, endpoint, "{address} is given to two");
        self.mapped.insert((peer.into(), endpoint), address);
    }

    async fn unmap(&mut self, peer: &str, endpoint: IpAddr) {
        let request = UnmapRequest { cluster_id: peer.into(), ip: endpoint.to_string() };
        let mut service = self.service.clone();
        let answer =
            until_answered(async || service.unmap_endpoint_ip(request.clone()).await).await;
        answer.expect("it can be unmapped");
        self.mapped.remove(&(peer.into(), endpoint));
    }

    async fn look(&mut self, peer: &str, endpoint: IpAddr) {
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

    fn pick(&mut self, count: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) % count
    }
}

/// Asks again where nobody was there to answer, or the answer was lost.
async fn until_answered<T>(
    mut ask: impl AsyncFnMut() -> Result<tonic::Response<T>, Status>,
) -> Result<T, Status> {
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if is_lost(&status) => {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            }
            Err(status) => return Err(status),
        }
    }
}

fn is_lost(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal)
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

async fn told(side: &Side) -> Mapped {
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
