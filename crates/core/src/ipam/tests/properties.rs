//! What holds whatever is asked for, in whatever order, and wherever it is cut off.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, sample::Index};
use tombolo_api::NatCidr;

use super::{
    super::*,
    NOW, config,
    disk::{Disk, Write, writes},
    id, new, peered,
};
use crate::translate::{first_host, overlap};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nothing_ever_overlaps_and_what_is_stored_is_what_is_known(
        acts in prop::collection::vec(act(), 1..60)
    ) {
        let mut ipam = new();
        let mut disk = Disk::of(&ipam);
        ipam.take_changes();
        for act in acts {
            perform(&mut ipam, &act);
            no_overlap(&ipam);
            disk.write(&mut ipam);
            let mut loaded = disk.load(ipam.config.clone());
            prop_assert!(loaded.take_changes().is_empty(), "{act:?} is not stored in full");
            loaded.external.last = ipam.external.last;
            prop_assert_eq!(&loaded, &ipam);
        }
    }

    /// The writes of requests that come together are made in any order, and any number of them, before
    /// the process dies. What was answered by then is as it was answered, and nothing else is mapped;
    /// also where the gateways were not told yet.
    #[test]
    fn wherever_the_writes_end_what_was_answered_is_known_and_nothing_else(
        acts in prop::collection::vec(act(), 1..40),
        together in prop::collection::vec(act(), 1..4),
        order in prop::collection::vec(any::<Index>(), 16),
        cut: Index,
        is_told: bool,
    ) {
        let mut ipam = new();
        let mut disk = Disk::of(&ipam);
        ipam.take_changes();
        for act in acts {
            perform(&mut ipam, &act);
            let stored = |write: &Write| is_told || matches!(write, Write::Storage(..));
            writes(&mut ipam).into_iter().filter(stored).for_each(|write| disk.perform(write));
        }
        let known = answers(&ipam);
        let names = ipam.clusters.clone();
        together.iter().for_each(|act| perform(&mut ipam, act));
        let log = shuffled(writes(&mut ipam), &order);
        let end = cut.index(log.len() + 1);
        log.into_iter().take(end).for_each(|write| disk.perform(write));

        let mut again = disk.load(ipam.config.clone());
        no_overlap(&again);
        let (wanted, found) = (answers(&ipam), answers(&again));
        for (of, answer) in &known {
            if wanted.get(of) == Some(answer) {
                prop_assert_eq!(found.get(of), Some(answer), "{:?} was answered", of);
            }
        }
        for (of, answer) in &found {
            let is_right = known.get(of) == Some(answer) || wanted.get(of) == Some(answer);
            prop_assert!(is_right, "{:?} is {} and was never answered so", of, answer);
        }
        for (cluster, subnets) in &again.clusters {
            let is_right = names.get(cluster) == Some(subnets)
                || ipam.clusters.get(cluster) == Some(subnets);
            prop_assert!(is_right, "{cluster} has {subnets:?}");
        }
        disk.write(&mut again);
        prop_assert!(disk.load(ipam.config.clone()).take_changes().is_empty(), "it is put right");
    }

    #[test]
    fn the_order_of_requests_does_not_matter(
        asked in prop::collection::btree_set((0_usize..2, 0_u8..60), 1..60),
        order in prop::collection::vec(any::<Index>(), 16),
    ) {
        let asked: Vec<_> = asked.into_iter().collect();
        let map = |asked: &[(usize, u8)]| {
            let mut ipam = peered();
            for (peer, host) in asked {
                let peer = id(["milan", "turin"][*peer]);
                ipam.map_endpoint(&peer, IpAddr::from([192, 0, 2, *host]), NOW).unwrap();
            }
            ipam
        };
        let (one, other) = (map(&asked), map(&shuffled(asked.clone(), &order)));
        let (one, other) = (answers(&one), answers(&other));
        prop_assert!(one.keys().eq(other.keys()), "the same are mapped");
        let addresses = |of: &BTreeMap<_, IpAddr>| of.values().copied().collect::<BTreeSet<_>>();
        prop_assert_eq!(addresses(&one), addresses(&other), "to the same addresses");
        let endpoints: BTreeSet<_> = one.keys().map(|(_, ip)| ip).collect();
        prop_assert_eq!(addresses(&one).len(), endpoints.len(), "each to its own");
    }

    #[test]
    fn an_address_goes_to_another_endpoint_only_after_its_rest(
        acts in prop::collection::vec((any::<bool>(), 0_u8..20, 0_i64..100), 1..80)
    ) {
        let mut ipam = super::small();
        let turin = id("turin");
        let mut now = NOW;
        let mut last_use: BTreeMap<IpAddr, (IpAddr, Timestamp)> = BTreeMap::new();
        for (map, host, wait) in acts {
            now += jiff::SignedDuration::from_secs(wait);
            let endpoint = super::endpoint(host);
            let mapped = ipam.remote_pod_ip(&turin, endpoint);
            if map && let Ok(address) = ipam.map_endpoint(&turin, endpoint, now) {
                let is_it = match last_use.get(&address) {
                    Some((other, since)) => *other == endpoint || now.duration_since(*since) >= REST,
                    None => true,
                };
                prop_assert!(is_it, "{address} was {:?}", last_use[&address]);
                last_use.insert(address, (endpoint, Timestamp::MAX));
            } else if !map && let Ok(address) = mapped {
                ipam.unmap_endpoint(&turin, endpoint, now);
                last_use.insert(address, (endpoint, now));
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Act {
    Reserve(u8, Cidr, Cidr),
    LocalNames(u8, NatCidr, NatCidr),
    Release(u8),
    Map(u8, IpAddr),
    Unmap(u8, IpAddr),
    Configure(Vec<Cidr>),
}

fn act() -> impl Strategy<Value = Act> {
    let peer = 0_u8..4;
    let network = || {
        (0_u8..24, 12_u8..=24).prop_map(|(n, prefix)| {
            let net = ipnet::IpNet::new([10, n, 0, 0].into(), prefix).unwrap();
            Cidr::try_from(net.trunc()).unwrap()
        })
    };
    let name = || {
        (0_u8..=24).prop_map(|n| match n {
            24 => NatCidr::None,
            n => format!("10.{n}.0.0/16").parse().unwrap(),
        })
    };
    let endpoint = || (0_u8..24, 0_u8..3).prop_map(|(n, host)| IpAddr::from([10, n, 0, host]));
    prop_oneof![
        2 => (peer.clone(), network(), network()).prop_map(|(p, a, b)| Act::Reserve(p, a, b)),
        2 => (peer.clone(), name(), name()).prop_map(|(p, a, b)| Act::LocalNames(p, a, b)),
        1 => peer.clone().prop_map(Act::Release),
        4 => (peer.clone(), endpoint()).prop_map(|(p, ip)| Act::Map(p, ip)),
        2 => (peer, endpoint()).prop_map(|(p, ip)| Act::Unmap(p, ip)),
        1 => prop::collection::vec(network(), 0..3).prop_map(Act::Configure),
    ]
}

fn perform(ipam: &mut Ipam, act: &Act) {
    match act {
        Act::Reserve(n, pods, external) => {
            let before = ipam.clone();
            match ipam.reserve(&peer(*n), *pods, *external) {
                Ok(subnets) => assert_eq!(subnets.remote_pod_cidr, Some(*pods)),
                Err(_) => assert_eq!(*ipam, before, "exhaustion loses nothing"),
            }
        }
        Act::LocalNames(n, pods, external) => {
            let _ = ipam.set_local_names(&peer(*n), *pods, *external);
        }
        Act::Release(n) => ipam.release(&peer(*n), NOW),
        Act::Map(n, ip) => {
            if let Ok(name) = ipam.map_endpoint(&peer(*n), *ip, NOW) {
                assert_eq!(ipam.remote_pod_ip(&peer(*n), *ip), Ok(name));
            }
        }
        Act::Unmap(n, ip) => ipam.unmap_endpoint(&peer(*n), *ip, NOW),
        Act::Configure(reserved) => {
            ipam.configure(Config { reserved: reserved.clone(), ..config() }).unwrap();
            // As the controller does for every peer that there is.
            for (cluster, subnets) in ipam.clusters.clone() {
                let (pods, external) = (subnets.remote_pod_cidr, subnets.remote_external_cidr);
                let _ = ipam.reserve(&cluster, pods.unwrap(), external.unwrap());
            }
        }
    }
}

/// The addresses given for each cluster.
fn answers(ipam: &Ipam) -> BTreeMap<(ClusterId, IpAddr), IpAddr> {
    let mut answers = BTreeMap::new();
    for (part, _, given) in ipam.external.all() {
        if let Some(address) = ipam.external.get(part.cluster(), given.ip) {
            answers.insert((part.cluster().clone(), given.ip), address.0);
        }
    }
    answers
}

fn shuffled<T>(mut all: Vec<T>, order: &[Index]) -> Vec<T> {
    for (n, index) in order.iter().enumerate().filter(|(n, _)| *n < all.len()).collect::<Vec<_>>() {
        let other = index.index(all.len());
        all.swap(n, other);
    }
    all
}

pub(super) fn no_overlap(ipam: &Ipam) {
    let own = [ipam.config.pod_cidr, ipam.config.service_cidr, ipam.external_cidr()];
    let names = ipam.clusters.values().flat_map(|subnets| {
        [subnets.our_name_for_pods().unwrap(), subnets.our_name_for_external().unwrap()]
    });
    let all: Vec<_> = own.into_iter().chain(names).collect();
    for (n, one) in all.iter().enumerate() {
        for other in &all[n + 1..] {
            assert!(!overlap(*one, *other), "{one} overlaps {other}");
        }
    }
    let mut endpoints = BTreeMap::new();
    for ((_, ip), address) in answers(ipam) {
        let of = endpoints.entry(address).or_insert(ip);
        assert_eq!(*of, ip, "{address} stands for two endpoints");
        assert!(ipam.external_cidr().net().contains(&address));
        assert_ne!(address, first_host(ipam.external_cidr()));
    }
}

fn peer(n: u8) -> ClusterId {
    id(&format!("peer-{n}"))
}
