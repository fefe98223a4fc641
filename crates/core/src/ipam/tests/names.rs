//! Names that nobody has any more.

use super::{disk::writes, properties::no_overlap, *};

/// Of milan, which is called 10.2.0.0/16 and 10.3.0.0/16 here, and of whoever has the same networks.
const PODS: &str = "10.0.0.0/16";
const EXTERNAL: &str = "10.1.0.0/16";

#[test]
fn the_name_of_a_peer_that_is_gone_rests_before_another_peer_gets_it() {
    let mut ipam = peered();
    let mut disk = Disk::of(&ipam);
    ipam.release(&id("milan"), NOW);
    disk.write(&mut ipam);
    let mut ipam = disk.load(config());
    let names = reserve(&mut ipam, "pisa", NOW);
    assert_eq!(names, [cidr("10.4.0.0/16"), cidr("10.5.0.0/16")]);
    ipam.release(&id("pisa"), NOW);
    disk.write(&mut ipam);

    let mut ipam = disk.load(config());
    let until = ipam.next_to_wake().expect("they rest");
    assert!(until.duration_since(NOW) >= REST);
    ipam.wake(until, 0);
    disk.write(&mut ipam);
    assert!(!disk.storages.contains_key("liqo-networks-milan"), "it is forgotten");
    assert_eq!(ipam.next_to_wake(), None);
    let names = reserve(&mut ipam, "genoa", until);
    assert_eq!(names, [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")]);
}

#[test]
fn it_is_the_time_that_counts_and_not_when_somebody_looks() {
    let mut ipam = peered();
    ipam.release(&id("milan"), NOW);
    let until = ipam.next_to_wake().unwrap();
    let names = reserve(&mut ipam, "genoa", until);
    assert_eq!(names, [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")]);
    let mut disk = Disk::of(&ipam);
    assert!(!disk.storages.contains_key("liqo-networks-milan"), "what is taken rests no more");
    disk.write(&mut ipam);
    assert!(disk.load_at(config(), until).take_changes().is_empty());
}

#[test]
fn a_peer_that_comes_again_has_its_names_at_once() {
    let mut ipam = peered();
    let turin = id("turin");
    // Its pods have the later one of the two names.
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
        assert!(ipam.next_to_wake().is_some(), "turin had others before");
        no_overlap(ipam);
    }
}

#[test]
fn what_leads_into_a_name_that_is_freed_leads_nowhere() {
    let (milan, turin, pod) = (id("milan"), id("turin"), ip("10.2.7.7"));
    let gone = |ipam: &mut IpamState| ipam.release(&id("milan"), NOW);
    let renamed = |ipam: &mut IpamState| {
        let reserved = vec![cidr("10.2.0.0/24")];
        ipam.configure(Config { reserved, ..config() }).unwrap();
        reserve(ipam, "milan", NOW);
    };
    for free in [gone as fn(&mut IpamState), renamed] {
        let mut ipam = peered();
        let mapped = ipam.map_endpoint(&turin, pod, NOW).unwrap();
        let other = ipam.map_endpoint(&turin, ip("192.0.2.7"), NOW).unwrap();
        let mut disk = Disk::of(&ipam);
        ipam.take_changes();
        free(&mut ipam);
        assert!(ipam.remote_pod_ip(&turin, pod).is_err());
        assert_eq!(ipam.remote_pod_ip(&turin, ip("192.0.2.7")), Ok(other), "what is elsewhere");

        // Whichever of the writes is the only one.
        for write in writes(&mut ipam.clone()) {
            let mut disk = disk.clone();
            disk.perform(write);
            let mut again = disk.load(ipam.config.clone());
            disk.write(&mut again);
            let is_milans = again.subnets(&milan).is_some_and(|it| {
                it.translated_pod_cidr().is_some_and(|name| name.net().contains(&pod))
            });
            let is_told =
                disk.mappings.values().any(|it| it.spec.cluster_mappings.contains_key(&pod));
            assert!(!is_told || is_milans, "no gateway leads to whoever is next");
        }

        disk.write(&mut ipam);
        let told = &disk.mappings.values().next().unwrap().spec.cluster_mappings;
        assert_eq!(told.keys().collect::<Vec<_>>(), [&ip("192.0.2.7")]);
        let mut ipam = disk.load(ipam.config.clone());
        let error = ipam.map_endpoint(&turin, pod, NOW).unwrap_err();
        for part in ["10.2.7.7", "10.2.0.0/16", "cluster milan", "181 s"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        ipam.unmap_endpoint(&turin, pod, NOW);

        // The rest of both is over at the same time.
        let until = ipam.next_to_wake().unwrap();
        assert_eq!(ipam.map_endpoint(&turin, pod, until), Ok(mapped), "it is somebody else by now");
        disk.write(&mut ipam);
        let loaded = disk.load_at(ipam.config.clone(), NOW);
        assert_eq!(loaded.remote_pod_ip(&turin, pod), Ok(mapped), "whatever its clock says");
    }
}

#[test]
fn what_was_an_endpoint_elsewhere_is_no_pod_of_a_peer_that_is_called_so_now() {
    let mut ipam = peered();
    let (turin, pisa) = (id("turin"), id("pisa"));
    ipam.map_endpoint(&turin, ip("10.30.0.5"), NOW).unwrap();
    ipam.map_endpoint(&turin, ip("10.40.0.5"), NOW).unwrap();
    ipam.reserve(&pisa, cidr("10.30.0.0/16"), cidr("10.31.0.0/16"), NOW).unwrap();
    assert!(ipam.remote_pod_ip(&turin, ip("10.30.0.5")).is_err());
    assert!(ipam.remote_pod_ip(&turin, ip("10.40.0.5")).is_ok());
    ipam.map_endpoint(&turin, ip("10.30.0.5"), NOW).expect("now it is a pod of pisa");
    ipam.reserve(&pisa, cidr("10.30.0.0/15"), cidr("10.32.0.0/16"), NOW).unwrap();
    assert!(ipam.remote_pod_ip(&turin, ip("10.30.0.5")).is_ok(), "pisa has more than it had");
    ipam.reserve(&pisa, cidr("10.30.0.0/17"), cidr("10.32.0.0/16"), NOW).unwrap();
    assert!(ipam.remote_pod_ip(&turin, ip("10.30.0.5")).is_ok(), "pisa has less than it had");
}

#[test]
fn where_only_names_are_left_that_rest_it_is_said_for_how_long() {
    let pools = vec![cidr("10.0.0.0/14")];
    let mut ipam = IpamState::load(Config { pools, ..config() }, &[], &[], NOW).unwrap();
    let names = reserve(&mut ipam, "milan", NOW);
    assert_eq!(names, [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")]);
    let wanted = (cidr(PODS), cidr(EXTERNAL));
    let error = ipam.reserve(&id("pisa"), wanted.0, wanted.1, NOW).unwrap_err();
    assert!(!error.to_string().contains("rest"), "nothing rests: {error}");
    ipam.release(&id("milan"), NOW);
    let before = ipam.clone();
    let soon = NOW + jiff::SignedDuration::from_secs(60);
    let error = ipam.reserve(&id("pisa"), wanted.0, wanted.1, soon).unwrap_err();
    let told = "2 names of peers that are gone rest, the first for 121 s more";
    assert!(error.to_string().contains(told), "{error}");
    assert_eq!(ipam, before, "nothing is lost");
    assert_eq!(reserve(&mut ipam, "milan", soon), names, "whose they were gets them");
    ipam.release(&id("milan"), soon);
    assert_eq!(reserve(&mut ipam, "pisa", soon + REST * 2), names);
}

#[test]
fn a_peer_that_changes_its_networks_over_and_over_does_not_get_all_names() {
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
    for part in ["cluster pisa", "14 names", "181 s"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert_eq!(ipam, before);
    change(&mut ipam, 0, NOW).expect("what it had it may have again");
    ipam.release(&pisa, NOW);
    change(&mut ipam, changed, NOW).unwrap_err();
    let spec = ipam.storage(&Part::Networks(pisa.clone())).unwrap();
    assert_eq!(spec.resting_subnets.len(), 16);
    assert!(size(&spec) < 4096, "{}", size(&spec));
    change(&mut ipam, changed, NOW + REST * 2).unwrap();
}

#[test]
fn what_can_not_be_restored_rests() {
    let mut disk = Disk::of(&peered());
    let networks = disk.storages.get_mut(&Part::Networks(id("turin")).storage()).unwrap();
    let turin = networks.spec.cluster_subnets.get_mut(&id("turin")).unwrap();
    turin.remote_nat_external_cidr = NatCidr::Remapped(cidr("10.3.0.0/16"));
    let mut ipam = disk.load(config());
    assert!(ipam.subnets(&id("turin")).is_none(), "milan has 10.3.0.0/16");
    let pisa = ipam.reserve(&id("pisa"), cidr("10.20.0.0/16"), cidr("10.50.0.0/16"), NOW).unwrap();
    assert_ne!(pisa.translated_pod_cidr(), Some(cidr("10.20.0.0/16")));
    let milan = [cidr("10.2.0.0/16"), cidr("10.3.0.0/16")];
    assert_eq!(reserve(&mut ipam, "milan", NOW), milan, "what is in use stays as it is");
}

#[test]
fn nothing_rests_for_longer_than_if_it_were_freed_now() {
    let mut ipam = peered();
    ipam.release(&id("milan"), NOW + REST * 100);
    let disk = Disk::of(&ipam);
    let until = disk.load(config()).next_to_wake().unwrap();
    assert!(until.duration_since(NOW) < REST * 2, "{until}");
}

/// A peer with the networks of milan, and what they are called.
fn reserve(ipam: &mut IpamState, peer: &str, now: Timestamp) -> [Cidr; 2] {
    let names = ipam.reserve(&id(peer), cidr(PODS), cidr(EXTERNAL), now).unwrap();
    [names.translated_pod_cidr().unwrap(), names.translated_external_cidr().unwrap()]
}
