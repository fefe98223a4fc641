//! Translated CIDRs that peers have released.

use super::{disk::writes, properties::no_overlap, *};

/// The CIDRs of milan, translated to 10.2.0.0/16 and 10.3.0.0/16, and of peers with the same CIDRs.
const PODS: &str = "10.0.0.0/16";
const EXTERNAL: &str = "10.1.0.0/16";

#[test]
fn a_released_cidr_is_quarantined_before_another_peer_gets_it() {
    let mut ipam = peered();
    let mut disk = Disk::of(&ipam);
    ipam.release(&id("milan"), NOW);
    disk.write(&mut ipam);
    let mut ipam = disk.load(config());
    let cidrs = reserve(&mut ipam, "pisa", NOW);
    assert_eq!(cidrs, [cidr("10.4.0.0/16"), cidr("10.5.0.0/16")]);
    ipam.release(&id("pisa"), NOW);
    disk.write(&mut ipam);

    let mut ipam = disk.load(config());
    let until = ipam.next_expiry().expect("a quarantine");
    assert!(until.duration_since(NOW) >= QUARANTINE);
    ipam.expire(until, 0);
    disk.write(&mut ipam);
    assert!(!disk.storages.contains_key("liqo-networks-milan"), "the empty storage is deleted");
    assert_eq!(ipam.next_expiry(), None);
    let cidrs = reserve(&mut ipam, "genoa", until);
    assert_eq!(cidrs, [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")]);
}

#[test]
fn an_expired_cidr_is_free_before_expire_is_called() {
    let mut ipam = peered();
    ipam.release(&id("milan"), NOW);
    let until = ipam.next_expiry().unwrap();
    let cidrs = reserve(&mut ipam, "genoa", until);
    assert_eq!(cidrs, [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")]);
    let mut disk = Disk::of(&ipam);
    assert!(!disk.storages.contains_key("liqo-networks-milan"), "the quarantine has ended");
    disk.write(&mut ipam);
    assert!(disk.load_at(config(), until).take_changes().is_empty());
}

#[test]
fn a_peer_that_returns_gets_its_translated_cidrs_back_at_once() {
    let mut ipam = peered();
    let turin = id("turin");
    // The translated CIDR of its pods is the higher of the two.
    let networks = (cidr("10.1.0.0/16"), cidr("10.0.0.0/16"));
    ipam.release(&turin, NOW);
    let first = ipam.reserve(&turin, networks.0, networks.1, NOW).unwrap().clone();
    ipam.release(&id("milan"), NOW);
    ipam.release(&turin, NOW);
    let disk = Disk::of(&ipam);
    let mut loaded = disk.load(config());
    for ipam in [&mut ipam, &mut loaded] {
        let again = ipam.reserve(&turin, networks.0, networks.1, NOW).unwrap();
        assert_eq!(again.translated_pod_cidr(), first.translated_pod_cidr());
        assert_eq!(again.translated_external_cidr(), first.translated_external_cidr());
        assert_eq!(reserve(ipam, "milan", NOW), [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")]);
        assert!(ipam.next_expiry().is_some(), "turin's first CIDRs are quarantined");
        no_overlap(ipam);
    }
}

#[test]
fn endpoints_in_a_released_cidr_are_unmapped() {
    let (milan, turin, pod) = (id("milan"), id("turin"), ip("10.2.7.7"));
    let gone = |ipam: &mut IpamState| ipam.release(&id("milan"), NOW);
    let moved = |ipam: &mut IpamState| {
        let reserved = vec![cidr("10.2.0.0/24")];
        ipam.configure(Config { reserved, ..config() }).unwrap();
        reserve(ipam, "milan", NOW);
    };
    for free in [gone as fn(&mut IpamState), moved] {
        let mut ipam = peered();
        let mapped = ipam.map_endpoint(&turin, pod, NOW).unwrap();
        let other = ipam.map_endpoint(&turin, ip("192.0.2.7"), NOW).unwrap();
        let mut disk = Disk::of(&ipam);
        ipam.take_changes();
        free(&mut ipam);
        assert!(ipam.remote_pod_ip(&turin, pod).is_err());
        assert_eq!(ipam.remote_pod_ip(&turin, ip("192.0.2.7")), Ok(other), "other endpoints stay");

        // The process dies after any single one of the writes.
        for write in writes(&mut ipam.clone()) {
            let mut disk = disk.clone();
            disk.perform(write);
            let mut again = disk.load(ipam.config.clone());
            disk.write(&mut again);
            let is_milans = again.subnets(&milan).is_some_and(|it| {
                it.translated_pod_cidr().is_some_and(|cidr| cidr.net().contains(&pod))
            });
            let is_mapped =
                disk.mappings.values().any(|it| it.spec.cluster_mappings.contains_key(&pod));
            assert!(!is_mapped || is_milans, "gateways have no mapping into a released CIDR");
        }

        disk.write(&mut ipam);
        let mappings = &disk.mappings.values().next().unwrap().spec.cluster_mappings;
        assert_eq!(mappings.keys().collect::<Vec<_>>(), [&ip("192.0.2.7")]);
        let mut ipam = disk.load(ipam.config.clone());
        let error = ipam.map_endpoint(&turin, pod, NOW).unwrap_err();
        for part in ["10.2.7.7", "10.2.0.0/16", "cluster milan", "181 s"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        ipam.unmap_endpoint(&turin, pod, NOW);

        // The quarantines of the address and of the CIDR expire at the same time.
        let until = ipam.next_expiry().unwrap();
        assert_eq!(ipam.map_endpoint(&turin, pod, until), Ok(mapped), "no peer's pod any more");
        disk.write(&mut ipam);
        let loaded = disk.load_at(ipam.config.clone(), NOW);
        assert_eq!(loaded.remote_pod_ip(&turin, pod), Ok(mapped), "even if the clock is behind");
    }
}

#[test]
fn endpoints_in_a_newly_reserved_cidr_are_unmapped() {
    let mut ipam = peered();
    let (turin, pisa) = (id("turin"), id("pisa"));
    ipam.map_endpoint(&turin, ip("10.30.0.5"), NOW).unwrap();
    ipam.map_endpoint(&turin, ip("10.40.0.5"), NOW).unwrap();
    ipam.reserve(&pisa, cidr("10.30.0.0/16"), cidr("10.31.0.0/16"), NOW).unwrap();
    assert!(ipam.remote_pod_ip(&turin, ip("10.30.0.5")).is_err());
    assert!(ipam.remote_pod_ip(&turin, ip("10.40.0.5")).is_ok());
    ipam.map_endpoint(&turin, ip("10.30.0.5"), NOW).expect("now it is a pod of pisa");
    ipam.reserve(&pisa, cidr("10.30.0.0/15"), cidr("10.32.0.0/16"), NOW).unwrap();
    assert!(ipam.remote_pod_ip(&turin, ip("10.30.0.5")).is_ok(), "pisa's CIDR has grown");
    ipam.reserve(&pisa, cidr("10.30.0.0/17"), cidr("10.32.0.0/16"), NOW).unwrap();
    assert!(ipam.remote_pod_ip(&turin, ip("10.30.0.5")).is_ok(), "pisa's CIDR has shrunk");
}

#[test]
fn the_error_for_full_pools_says_when_a_quarantine_expires() {
    let pools = vec![cidr("10.0.0.0/14")];
    let mut ipam = IpamState::load(Config { pools, ..config() }, &[], &[], NOW).unwrap();
    let cidrs = reserve(&mut ipam, "milan", NOW);
    assert_eq!(cidrs, [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")]);
    let wanted = (cidr(PODS), cidr(EXTERNAL));
    let error = ipam.reserve(&id("pisa"), wanted.0, wanted.1, NOW).unwrap_err();
    assert!(!error.to_string().contains("quarantined"), "nothing is quarantined: {error}");
    ipam.release(&id("milan"), NOW);
    let before = ipam.clone();
    let soon = NOW + jiff::SignedDuration::from_secs(60);
    let error = ipam.reserve(&id("pisa"), wanted.0, wanted.1, soon).unwrap_err();
    let wait = "2 CIDRs of former peers are quarantined, the first expires in 121 s";
    assert!(error.to_string().contains(wait), "{error}");
    assert_eq!(ipam, before, "nothing has changed");
    assert_eq!(reserve(&mut ipam, "milan", soon), cidrs, "the former peer gets them back");
    ipam.release(&id("milan"), soon);
    assert_eq!(reserve(&mut ipam, "pisa", soon + QUARANTINE * 2), cidrs);
}

#[test]
fn the_translated_cidrs_of_one_peer_are_limited() {
    let mut ipam = peered();
    let pisa = id("pisa");
    let network = |n: usize| cidr(&format!("10.{}.0.0/16", 100 + n));
    let change = |ipam: &mut IpamState, n: usize, now| {
        ipam.reserve(&pisa, network(2 * n + 12), network(2 * n + 13), now).map(drop)
    };
    let changed = (0..).take_while(|n| change(&mut ipam, *n, NOW).is_ok()).count();
    assert_eq!(changed, 8);
    let before = ipam.clone();
    let error = change(&mut ipam, changed, NOW).unwrap_err();
    for part in ["cluster pisa", "14 of its translated CIDRs", "181 s"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(ipam, before);
    change(&mut ipam, 0, NOW).expect("former CIDRs can be reserved again");
    ipam.release(&pisa, NOW);
    change(&mut ipam, changed, NOW).unwrap_err();
    let spec = ipam.storage(&StorageShard::Networks(pisa.clone())).unwrap();
    assert_eq!(spec.quarantined_cidrs.len(), 16);
    assert!(size(&spec) < 4096, "{}", size(&spec));
    change(&mut ipam, changed, NOW + QUARANTINE * 2).unwrap();
}

#[test]
fn cidrs_that_cannot_be_restored_are_quarantined() {
    let mut disk = Disk::of(&peered());
    let networks = disk.storages.get_mut(&StorageShard::Networks(id("turin")).storage()).unwrap();
    let turin = networks.spec.cluster_subnets.get_mut(&id("turin")).unwrap();
    turin.remote_nat_external_cidr = NatCidr::Remapped(cidr("10.3.0.0/16"));
    let mut ipam = disk.load(config());
    assert!(ipam.subnets(&id("turin")).is_none(), "milan has 10.3.0.0/16");
    let pisa = ipam.reserve(&id("pisa"), cidr("10.20.0.0/16"), cidr("10.50.0.0/16"), NOW).unwrap();
    assert_ne!(pisa.translated_pod_cidr(), Some(cidr("10.20.0.0/16")));
    let milan = [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")];
    assert_eq!(reserve(&mut ipam, "milan", NOW), milan, "CIDRs in use do not change");
}

#[test]
fn a_restored_quarantine_is_never_longer_than_a_new_one() {
    let mut ipam = peered();
    ipam.release(&id("milan"), NOW + QUARANTINE * 100);
    let disk = Disk::of(&ipam);
    let until = disk.load(config()).next_expiry().unwrap();
    assert!(until.duration_since(NOW) < QUARANTINE * 2, "{until}");
}

/// Reserves the CIDRs of milan for a peer and returns the translated CIDRs.
fn reserve(ipam: &mut IpamState, peer: &str, now: Timestamp) -> [Cidr; 2] {
    let subnets = ipam.reserve(&id(peer), cidr(PODS), cidr(EXTERNAL), now).unwrap();
    [subnets.translated_pod_cidr().unwrap(), subnets.translated_external_cidr().unwrap()]
}
