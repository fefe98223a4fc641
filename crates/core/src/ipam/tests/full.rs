//! An external network in which nothing is free.

use super::*;

#[test]
fn what_is_refused_leaves_nothing_unwritten() {
    let (mut ipam, turin, milan) = full();
    ipam.unmap_endpoint(&turin, endpoint(7), NOW);
    ipam.map_endpoint(&milan, endpoint(7), NOW).unwrap();
    let mut disk = Disk::of(&ipam);
    ipam.take_changes();

    let later = NOW + REST * 2;
    let full = ipam.map_endpoint(&turin, endpoint(LAST), later).unwrap_err();
    assert!(full.to_string().contains("0 of its addresses rest"), "all are in use: {full}");
    let changed = ipam.take_changes().parts;
    assert_eq!(changed, [Part::Endpoints(turin, 0)].into(), "the rest of one is over");
    let spec = ipam.storage(changed.first().unwrap()).map(Box::new);
    disk.perform(disk::Write::Storage(changed.first().unwrap().storage(), spec));
    let mut loaded = disk.load_at(ipam.config.clone(), later);
    assert!(loaded.take_changes().is_empty(), "what is stored is what is known");
    assert_eq!(loaded.external, ipam.external);
}

#[test]
fn those_that_rest_are_counted_apart_from_those_in_use_again() {
    let (mut ipam, turin, milan) = full();
    for n in 0..5 {
        ipam.unmap_endpoint(&turin, endpoint(n), NOW + REST * i32::from(n) / 10);
    }
    let asked_at = NOW + REST / 2;
    ipam.map_endpoint(&milan, endpoint(0), asked_at).unwrap();
    ipam.map_endpoint(&turin, endpoint(1), asked_at).unwrap();
    let loaded = Disk::of(&ipam).load_at(ipam.config.clone(), asked_at);
    for mut ipam in [ipam, loaded] {
        let full = ipam.map_endpoint(&turin, endpoint(LAST), asked_at).unwrap_err();
        let first = (REST / 5 + REST / 2).as_secs() + 1;
        assert_eq!(
            full,
            IpamError::ExternalFull { network: cidr("10.1.0.0/28"), resting: 3, first }
        );
    }
}

#[test]
fn one_that_is_asked_for_has_few_others_freed() {
    let config = Config { external_prefix: Some(24), ..config() };
    let mut ipam = IpamState::load(config, &[], &[], NOW).unwrap();
    let turin = id("turin");
    ipam.reserve(&turin, cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    ipam.set_local_names(&turin, NatCidr::None, NatCidr::None).unwrap();
    let all = 256 - 3;
    let far = |n: usize| IpAddr::from([198, 51, (n / 256) as u8, (n % 256) as u8]);
    for n in 0..all {
        ipam.map_endpoint(&turin, far(n), NOW).unwrap();
        ipam.unmap_endpoint(&turin, far(n), NOW);
    }
    let later = NOW + REST * 2;
    let few = PART_SIZE as usize;
    ipam.map_endpoint(&turin, far(all), later).unwrap();
    assert_eq!(ipam.external.all().count(), all - few + 1);
    for n in all + 1..2 * all {
        ipam.map_endpoint(&turin, far(n), later).unwrap();
    }
    ipam.map_endpoint(&turin, far(2 * all), later).unwrap_err();
    assert_eq!(ipam.external.all().count(), all, "all were given again in the end");
}

/// One whose addresses turin has all; milan is a peer, too.
fn full() -> (IpamState, ClusterId, ClusterId) {
    let mut ipam = small();
    let (turin, milan) = (id("turin"), id("milan"));
    ipam.reserve(&milan, cidr("10.30.0.0/16"), cidr("10.31.0.0/16"), NOW).unwrap();
    ipam.set_local_names(&milan, NatCidr::None, NatCidr::None).unwrap();
    for n in 0..LAST {
        ipam.map_endpoint(&turin, endpoint(n), NOW).unwrap();
    }
    (ipam, turin, milan)
}
