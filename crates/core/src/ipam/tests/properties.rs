//! Invariants for any requests, in any order, with a crash at any point.

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, sample::Index};

use super::{
    super::*,
    NOW,
    disk::{Disk, Write, writes},
    id, peered,
    world::{World, act, kind, no_endpoint_in_freed_cidr},
};
use crate::translate::{first_host, overlap};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn cidrs_never_overlap_and_the_stored_state_is_complete(
        kind in kind(),
        acts in prop::collection::vec(act(), 1..80),
    ) {
        let mut world = World::new(kind);
        let mut disk = Disk::of(&world.ipam);
        world.ipam.take_changes();
        for act in acts {
            world.perform(&act);
            no_overlap(&world.ipam);
            disk.write(&mut world.ipam);
            let ipam = &world.ipam;
            let mut loaded = disk.load_at(ipam.config.clone(), world.now);
            prop_assert!(loaded.take_changes().is_empty(), "{act:?} is not stored in full");
            loaded.external.last = ipam.external.last;
            prop_assert_eq!(&loaded, ipam);
        }
    }

    /// The process dies after any number of the writes of a batch, in any order, with or without
    /// the NatMappings. Every mapping that was answered before is restored, and no other one.
    #[test]
    fn a_crash_between_writes_keeps_all_answered_mappings_and_adds_none(
        kind in kind(),
        acts in prop::collection::vec(act(), 1..60),
        together in prop::collection::vec(act(), 1..4),
        order in prop::collection::vec(any::<Index>(), 16),
        cut: Index,
        writes_nat_mappings: bool,
    ) {
        let mut world = World::new(kind);
        let mut disk = Disk::of(&world.ipam);
        world.ipam.take_changes();
        for act in acts {
            world.perform(&act);
            let stored = |write: &Write| writes_nat_mappings || matches!(write, Write::Storage(..));
            let log = writes(&mut world.ipam).into_iter();
            log.filter(stored).for_each(|write| disk.perform(write));
        }
        let known = answers(&world.ipam);
        let clusters = world.ipam.clusters.clone();
        together.iter().for_each(|act| world.perform_now(act));
        let log = shuffled(writes(&mut world.ipam), &order);
        let end = cut.index(log.len() + 1);
        log.into_iter().take(end).for_each(|write| disk.perform(write));

        let (ipam, now) = (&world.ipam, world.now);
        let mut again = disk.load_at(ipam.config.clone(), now);
        no_overlap(&again);
        let quarantined: Vec<_> = again.quarantine.all().map(|(_, cidr, _)| cidr).collect();
        no_endpoint_in_freed_cidr(&again, &quarantined);
        let (wanted, found) = (answers(ipam), answers(&again));
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
            let is_right = clusters.get(cluster) == Some(subnets)
                || ipam.clusters.get(cluster) == Some(subnets);
            prop_assert!(is_right, "{cluster} has {subnets:?}");
        }
        disk.write(&mut again);
        let mut right = disk.load_at(ipam.config.clone(), now);
        prop_assert!(right.take_changes().is_empty(), "the stored state is complete");
    }

    #[test]
    fn the_order_of_requests_does_not_matter(
        requests in prop::collection::btree_set((0_usize..2, 0_u8..60), 1..60),
        order in prop::collection::vec(any::<Index>(), 16),
    ) {
        let requests: Vec<_> = requests.into_iter().collect();
        let map = |requests: &[(usize, u8)]| {
            let mut ipam = peered();
            for (peer, host) in requests {
                let peer = id(["milan", "turin"][*peer]);
                ipam.map_endpoint(&peer, IpAddr::from([192, 0, 2, *host]), NOW).unwrap();
            }
            ipam
        };
        let (one, other) = (map(&requests), map(&shuffled(requests.clone(), &order)));
        let (one, other) = (answers(&one), answers(&other));
        prop_assert!(one.keys().eq(other.keys()), "the same endpoints are mapped");
        let addresses = |of: &BTreeMap<_, IpAddr>| of.values().copied().collect::<BTreeSet<_>>();
        prop_assert_eq!(addresses(&one), addresses(&other), "to the same addresses");
        let endpoints: BTreeSet<_> = one.keys().map(|(_, ip)| ip).collect();
        prop_assert_eq!(addresses(&one).len(), endpoints.len(), "each to its own");
    }

    #[test]
    fn another_endpoint_gets_an_address_only_after_the_quarantine(
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
                    Some((other, since)) => *other == endpoint || now.duration_since(*since) >= QUARANTINE,
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

/// The allocated addresses, by cluster and endpoint.
pub(super) fn answers(ipam: &IpamState) -> BTreeMap<(ClusterId, IpAddr), IpAddr> {
    let mut answers = BTreeMap::new();
    for (shard, _, allocation) in ipam.external.all() {
        if let Some(address) = ipam.external.get(shard.cluster(), allocation.ip) {
            answers.insert((shard.cluster().clone(), allocation.ip), address.0);
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

pub(super) fn no_overlap(ipam: &IpamState) {
    let own = [ipam.config.pod_cidr, ipam.config.service_cidr, ipam.external_cidr()];
    let translated = ipam.clusters.values().flat_map(|subnets| {
        [subnets.translated_pod_cidr().unwrap(), subnets.translated_external_cidr().unwrap()]
    });
    let all: Vec<_> = own.into_iter().chain(translated).collect();
    for (n, one) in all.iter().enumerate() {
        for other in &all[n + 1..] {
            assert!(!overlap(*one, *other), "{one} overlaps {other}");
        }
    }
    let mut endpoints = BTreeMap::new();
    for ((_, ip), address) in answers(ipam) {
        let of = endpoints.entry(address).or_insert(ip);
        assert_eq!(*of, ip, "{address} is allocated to two endpoints");
        assert!(ipam.external_cidr().net().contains(&address));
        assert_ne!(address, first_host(ipam.external_cidr()));
    }
}
