//! A process that dies before or after any of its writes: the next one has all answered mappings
//! and no others, and can continue.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

use jiff::SignedDuration;
use kube::api::ListParams;
use tombolo_api::{
    NatCidr,
    ipam::{
        MapBatchRequest, MapRequest, UnmapBatchRequest, UnmapRequest, ipam_client::IpamClient,
        map_result,
    },
    net::{IpamStorage, NatMapping},
};
use tombolo_control::testing::AddressService;
use tombolo_core::ipam::{NETWORKS, QUARANTINE, WRITER};
use tombolo_runtime::shutdown::Shutdown;
use tombolo_testbed::eventually;
use tonic::transport::Channel;

use crate::{
    side::{Side, Time, cidr},
    wire::{Cut, Wire},
};

const TURIN: &str = "id-of-turin";
const GENOA: &str = "id-of-genoa";

#[derive(Clone, Debug)]
enum Step {
    Peer(&'static str),
    Map(&'static str, RangeInclusive<u8>),
    Unmap(&'static str, RangeInclusive<u8>),
    /// Waits until all NatMappings are written.
    NatMappings,
    Unpeer(&'static str),
    End,
}

/// All kinds of writes: of the writer's record, of networks, of new and existing shards, of
/// NatMappings, and deletions.
const STEPS: [Step; 11] = [
    Step::Peer(TURIN),
    Step::Peer(GENOA),
    Step::Map(TURIN, 1..=70),
    Step::Map(GENOA, 60..=66),
    Step::NatMappings,
    Step::Unmap(TURIN, 1..=3),
    Step::Unmap(TURIN, 60..=61),
    Step::Unpeer(GENOA),
    Step::NatMappings,
    Step::Map(TURIN, 71..=72),
    Step::End,
];

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_any_two_writes_loses_and_leaks_nothing() {
    let (rome, _alone) = Side::alone("rome").await;
    let whole = Wire::new(&rome);
    let mut known = Mapped::new();
    let left = live(&rome, &whole, &Time::default(), &mut known).await;
    assert!(left.is_empty(), "all steps are done");
    assert_eq!(known.len(), 70 - 5 + 2);
    println!("{} writes", whole.writes());
    for n in 1..=whole.writes() {
        for cut in [Cut::Before(n), Cut::After(n)] {
            die_and_go_on(&rome, cut).await;
        }
    }
}

/// By cluster and endpoint.
type Mapped = BTreeMap<(String, String), String>;

async fn die_and_go_on(rome: &Side, cut: Cut) {
    rome.clear::<NatMapping>().await;
    rome.clear::<IpamStorage>().await;
    let (time, mut known) = (Time::default(), Mapped::new());
    let left = live(rome, &Wire::cut_at(rome, cut), &time, &mut known).await;

    let (ipam, mut client, service) = rome.serve_at(rome.client.clone(), time.clock()).await;
    let (stored, doubt) = (stored(rome).await, doubt(left.first(), &known));
    assert_eq!(nat_mappings(rome).await, stored, "{cut:?}, {left:?}: NatMappings");
    let sure = |mapped: &Mapped| {
        let sure = mapped.iter().filter(|(key, _)| !doubt.contains(*key));
        sure.map(|(key, ip)| (key.clone(), ip.clone())).collect::<Mapped>()
    };
    assert_eq!(sure(&stored), sure(&known), "{cut:?}, {left:?}");
    let same = |(key, ip)| stored.get(key).is_none_or(|stored| stored == ip);
    assert!(known.iter().all(same), "{cut:?}, {left:?}: other addresses");
    known.retain(|key, _| stored.contains_key(key));

    for step in left.iter().filter(|step| !matches!(step, Step::End)) {
        act(rome, step, &ipam, &mut client, &service, &mut known).await;
    }
    assert_eq!(known.len(), 70 - 5 + 2, "{cut:?}");
    assert_eq!(self::stored(rome).await, known, "{cut:?}: in the end");
    act(rome, &Step::NatMappings, &ipam, &mut client, &service, &mut known).await;

    act(rome, &Step::Unpeer(TURIN), &ipam, &mut client, &service, &mut known).await;
    time.pass(QUARANTINE + SignedDuration::from_secs(15));
    let names = async || {
        ipam.external_cidr().await.expect("it answers");
        rome.all_object_names().await
    };
    eventually(&format!("nothing is left, {cut:?}"), names, |it| *it == [NETWORKS, WRITER]).await;
    act(rome, &Step::End, &ipam, &mut client, &service, &mut known).await;
}

/// Performs the steps until the connection is cut, and returns the remaining ones.
async fn live(rome: &Side, wire: &Wire, time: &Time, known: &mut Mapped) -> Vec<Step> {
    let mut done = 0;
    let steps = async {
        let (ipam, mut client, service) = rome.serve_at(wire.client(), time.clock()).await;
        for step in &STEPS {
            act(rome, step, &ipam, &mut client, &service, known).await;
            done += 1;
        }
    };
    tokio::select! {
        () = steps => {}
        () = wire.is_cut() => {}
    }
    STEPS[done..].to_vec()
}

async fn act(
    rome: &Side,
    step: &Step,
    ipam: &AddressService,
    client: &mut IpamClient<Channel>,
    service: &Shutdown,
    known: &mut Mapped,
) {
    match step {
        Step::Peer(peer) => {
            let pods = cidr(if *peer == TURIN { "10.20.0.0/16" } else { "10.30.0.0/16" });
            let external = cidr(if *peer == TURIN { "10.21.0.0/16" } else { "10.31.0.0/16" });
            ipam.reserve(peer.parse().unwrap(), pods, external).await.unwrap();
            let (peer, none) = (peer.parse().unwrap(), NatCidr::None);
            ipam.set_local_nat_cidrs(peer, none, none).await.unwrap();
        }
        Step::Map(peer, range) => {
            let request = |(cluster_id, ip)| MapRequest { cluster_id, ip, owner: None };
            let requests = keys(peer, range).map(request).collect();
            let answer = client.map_endpoint_ip_batch(MapBatchRequest { requests }).await.unwrap();
            for (key, result) in keys(peer, range).zip(answer.into_inner().results) {
                let Some(map_result::Result::Response(mapped)) = result.result else {
                    panic!("{key:?}: {result:?}");
                };
                known.insert(key, mapped.ip);
            }
        }
        Step::Unmap(peer, range) => {
            let request = |(cluster_id, ip)| UnmapRequest { cluster_id, ip, owner: None };
            let requests = keys(peer, range).map(request).collect();
            client.unmap_endpoint_ip_batch(UnmapBatchRequest { requests }).await.unwrap();
            for key in keys(peer, range) {
                known.remove(&key);
            }
        }
        Step::NatMappings => {
            let all = async || nat_mappings(rome).await;
            eventually("NatMappings are written", all, |all| all == known).await;
        }
        Step::Unpeer(peer) => {
            ipam.release(peer.parse().unwrap()).await.unwrap();
            known.retain(|(cluster, _), _| cluster != peer);
        }
        Step::End => {
            service.trigger();
            let ended = async || ipam.external_cidr().await.is_err();
            eventually("the service has stopped", ended, |it| *it).await;
        }
    }
}

/// Mappings that may or may not be stored, because the request was not answered.
fn doubt(step: Option<&Step>, known: &Mapped) -> BTreeSet<(String, String)> {
    match step {
        Some(Step::Map(peer, range) | Step::Unmap(peer, range)) => keys(peer, range).collect(),
        Some(Step::Unpeer(peer)) => {
            known.keys().filter(|(cluster, _)| cluster == peer).cloned().collect()
        }
        Some(Step::Peer(_) | Step::NatMappings | Step::End) | None => BTreeSet::new(),
    }
}

fn keys(peer: &str, range: &RangeInclusive<u8>) -> impl Iterator<Item = (String, String)> {
    let peer = peer.to_owned();
    range.clone().map(move |n| (peer.clone(), format!("192.0.2.{n}")))
}

async fn stored(rome: &Side) -> Mapped {
    let storages = rome.all::<IpamStorage>().list(&ListParams::default()).await.unwrap();
    let mappings = storages.iter().flat_map(|storage| &storage.spec.endpoint_mappings);
    let all = mappings.flat_map(|(ip, mapping)| {
        let clusters = mapping.cluster_mappings.keys();
        clusters.map(|cluster| ((cluster.to_string(), ip.to_string()), mapping.ip.to_string()))
    });
    all.collect()
}

async fn nat_mappings(rome: &Side) -> Mapped {
    let mappings = rome.all::<NatMapping>().list(&ListParams::default()).await.unwrap();
    let all = mappings.iter().flat_map(|mapping| {
        let cluster = mapping.spec.cluster_id.to_string();
        let all = mapping.spec.cluster_mappings.iter();
        all.map(move |(ip, mapped)| ((cluster.clone(), ip.to_string()), mapped.to_string()))
    });
    all.collect()
}
