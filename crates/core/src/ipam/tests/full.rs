//! An ExternalCIDR without free addresses.

use super::*;

#[test]
fn expired_quarantines_are_stored_even_if_the_request_fails() {
    let (mut ipam, turin, milan) = full();
    ipam.unmap_endpoint(&turin, endpoint(7), NOW);
    ipam.map_endpoint(&milan, endpoint(7), NOW).unwrap();
    let mut disk = Disk::of(&ipam);
    ipam.take_changes();

    let later = NOW + QUARANTINE * 2;
    let full = ipam.map_endpoint(&turin, endpoint(LAST), later).unwrap_err();
    assert!(full.to_string().contains("0 addresses are quarantined"), "all are in use: {full}");
    let changed = ipam.take_changes().shards;
    assert_eq!(changed, [StorageShard::Endpoints(turin, 0)].into(), "one quarantine has expired");
    let spec = ipam.storage(changed.first().unwrap()).map(Box::new);
    disk.perform(disk::Write::Storage(changed.first().unwrap().storage(), spec));
    let mut loaded = disk.load_at(ipam.config.clone(), later);
    assert!(loaded.take_changes().is_empty(), "the stored state is complete");
    assert_eq!(loaded.external, ipam.external);
}

#[test]
fn addresses_in_use_again_do_not_count_as_quarantined() {
    let (mut ipam, turin, milan) = full();
    for n in 0..5 {
        ipam.unmap_endpoint(&turin, endpoint(n), NOW + QUARANTINE * i32::from(n) / 10);
    }
    let asked_at = NOW + QUARANTINE / 2;
    ipam.map_endpoint(&milan, endpoint(0), asked_at).unwrap();
    ipam.map_endpoint(&turin, endpoint(1), asked_at).unwrap();
    let loaded = Disk::of(&ipam).load_at(ipam.config.clone(), asked_at);
    for mut ipam in [ipam, loaded] {
        let full = ipam.map_endpoint(&turin, endpoint(LAST), asked_at).unwrap_err();
        let first = (QUARANTINE / 5 + QUARANTINE / 2).as_secs() + 1;
        assert_eq!(
            full,
            IpamError::ExternalFull { network: cidr("10.1.0.0/28"), quarantined: 3, first }
        );
    }
}

#[test]
fn one_request_ends_a_limited_number_of_quarantines() {
    let config = Config { external_prefix: Some(24), ..config() };
    let mut ipam = IpamState::load(config, &[], &[], NOW).unwrap();
    let turin = id("turin");
    ipam.reserve(&turin, cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    ipam.set_local_nat_cidrs(&turin, NatCidr::None, NatCidr::None).unwrap();
    let all = 256 - 3;
    let far = |n: usize| IpAddr::from([198, 51, (n / 256) as u8, (n % 256) as u8]);
    for n in 0..all {
        ipam.map_endpoint(&turin, far(n), NOW).unwrap();
        ipam.unmap_endpoint(&turin, far(n), NOW);
    }
    let later = NOW + QUARANTINE * 2;
    let few = SHARD_SIZE as usize;
    ipam.map_endpoint(&turin, far(all), later).unwrap();
    assert_eq!(ipam.external.all().count(), all - few + 1);
    for n in all + 1..2 * all {
        ipam.map_endpoint(&turin, far(n), later).unwrap();
    }
    ipam.map_endpoint(&turin, far(2 * all), later).unwrap_err();
    assert_eq!(ipam.external.all().count(), all, "all were allocated again in the end");
}

/// All addresses are mapped for turin; milan is a peer, too.
fn full() -> (IpamState, ClusterId, ClusterId) {
    let mut ipam = small();
    let (turin, milan) = (id("turin"), id("milan"));
    ipam.reserve(&milan, cidr("10.30.0.0/16"), cidr("10.31.0.0/16"), NOW).unwrap();
    ipam.set_local_nat_cidrs(&milan, NatCidr::None, NatCidr::None).unwrap();
    for n in 0..LAST {
        ipam.map_endpoint(&turin, endpoint(n), NOW).unwrap();
    }
    (ipam, turin, milan)
}
