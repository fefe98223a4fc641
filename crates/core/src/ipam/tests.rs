mod disk;
mod full;
mod names;
mod properties;
mod world;

use std::net::Ipv6Addr;

use tombolo_api::NatCidr;

use self::disk::Disk;
use super::*;
use crate::translate::overlap;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

/// By clients that give no name.
impl Ipam {
    fn map_endpoint(
        &mut self,
        cluster: &ClusterId,
        ip: IpAddr,
        now: Timestamp,
    ) -> Result<IpAddr, IpamError> {
        self.map_endpoint_for(&MappingOwner::default(), cluster, ip, now)
    }

    fn unmap_endpoint(&mut self, cluster: &ClusterId, ip: IpAddr, now: Timestamp) {
        self.unmap_endpoint_for(&MappingOwner::default(), cluster, ip, now);
    }
}

#[test]
fn a_peer_with_other_networks_keeps_them() {
    let mut ipam = new();
    let subnets =
        ipam.reserve(&id("milan"), cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    assert_eq!(subnets.remote_nat_pod_cidr, NatCidr::None);
    assert_eq!(subnets.remote_nat_external_cidr, NatCidr::None);
    assert_eq!(subnets.local_nat_pod_cidr, None, "it has not said");
}

#[test]
fn an_address_of_another_family_than_a_peers_networks_is_refused() {
    let mut ipam = new();
    let (four, six) = (IpAddr::from([203, 0, 113, 7]), IpAddr::from(Ipv6Addr::LOCALHOST));
    assert_eq!(ipam.check_family(&id("milan"), four), Err(IpamError::UnknownCluster(id("milan"))));
    ipam.reserve(&id("milan"), cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    assert_eq!(ipam.check_family(&id("milan"), four), Ok(()));
    let refused = ipam.check_family(&id("milan"), six);
    assert!(matches!(refused, Err(IpamError::NotAnEndpoint { ip, .. }) if ip == six));
}

#[test]
fn peers_with_the_same_networks_get_names_of_their_own() {
    let mut ipam = new();
    let mut names = Vec::new();
    for peer in ["milan", "turin", "genoa"] {
        let pods = ipam.config().pod_cidr;
        let subnets = ipam.reserve(&id(peer), pods, ipam.external_cidr(), NOW).unwrap();
        names.extend([
            subnets.our_name_for_pods().unwrap(),
            subnets.our_name_for_external().unwrap(),
        ]);
    }
    let expected = ["10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16", "10.5.0.0/16", "10.6.0.0/16"];
    assert_eq!(names[..5], expected.map(cidr));
}

#[test]
fn a_peer_whose_two_networks_would_share_a_name_does_not() {
    let mut ipam = new();
    let subnets =
        ipam.reserve(&id("milan"), cidr("10.0.0.0/16"), cidr("10.2.0.0/16"), NOW).unwrap();
    assert_eq!(subnets.our_name_for_pods(), Some(cidr("10.2.0.0/16")));
    assert_eq!(subnets.our_name_for_external(), Some(cidr("10.3.0.0/16")));
}

#[test]
fn the_same_networks_keep_their_names_and_others_get_new_ones() {
    let mut ipam = new();
    let (milan, pods, external) = (id("milan"), cidr("10.0.0.0/16"), cidr("10.1.0.0/16"));
    let first = ipam.reserve(&milan, pods, external, NOW).unwrap().clone();
    ipam.take_changes();
    assert_eq!(ipam.reserve(&milan, pods, external, NOW), Ok(&first));
    assert!(ipam.take_changes().is_empty());
    let other = ipam.reserve(&milan, cidr("10.30.0.0/16"), external, NOW).unwrap();
    assert_eq!(other.our_name_for_pods(), Some(cidr("10.30.0.0/16")));
}

#[test]
fn what_is_freed_can_be_had_again() {
    let mut ipam = new();
    let network = cidr("10.20.0.0/16");
    ipam.reserve(&id("milan"), network, cidr("10.21.0.0/16"), NOW).unwrap();
    let turin = ipam.reserve(&id("turin"), network, cidr("10.22.0.0/16"), NOW).unwrap();
    assert_ne!(turin.our_name_for_pods(), Some(network));
    ipam.release(&id("milan"), NOW);
    ipam.take_changes();
    let genoa = ipam.reserve(&id("genoa"), network, cidr("10.23.0.0/16"), NOW + REST * 2).unwrap();
    assert_eq!(genoa.our_name_for_pods(), Some(network));
}

#[test]
fn a_pod_of_this_cluster_is_called_as_the_peer_calls_it() {
    let mut ipam = peered();
    assert_eq!(ipam.map_endpoint(&id("milan"), ip("10.0.0.5"), NOW), Ok(ip("10.80.0.5")));
    assert_eq!(ipam.map_endpoint(&id("turin"), ip("10.0.0.5"), NOW), Ok(ip("10.0.0.5")));
    assert_eq!(ipam.remote_pod_ip(&id("milan"), ip("10.0.0.5")), Ok(ip("10.80.0.5")));
    assert!(ipam.take_changes().is_empty(), "nothing to remember");
}

#[test]
fn a_pod_that_runs_over_there_has_its_real_address_there() {
    let mut ipam = peered();
    let here = ipam.home_pod_ip(&id("milan"), ip("10.0.7.7")).unwrap();
    assert_eq!(here, ip("10.2.7.7"));
    assert_eq!(ipam.map_endpoint(&id("milan"), here, NOW), Ok(ip("10.0.7.7")));
    assert_eq!(ipam.remote_pod_ip(&id("milan"), here), Ok(ip("10.0.7.7")));
}

#[test]
fn anything_else_gets_an_external_address_shared_by_all_clusters_and_freed_with_the_last() {
    let mut ipam = peered();
    let (milan, turin) = (id("milan"), id("turin"));
    let pod_in_milan = ip("10.2.7.7");
    let node = ip("192.0.2.10");
    assert_eq!(ipam.map_endpoint(&turin, pod_in_milan, NOW), Ok(ip("10.1.0.2")));
    assert_eq!(ipam.map_endpoint(&turin, node, NOW), Ok(ip("10.1.0.3")));
    assert_eq!(ipam.map_endpoint(&milan, node, NOW), Ok(ip("10.81.0.3")), "as milan calls it");
    assert_eq!(ipam.remote_pod_ip(&turin, pod_in_milan), Ok(ip("10.1.0.2")));
    assert_eq!(ipam.remote_pod_ip(&milan, ip("10.2.7.7")), Ok(ip("10.0.7.7")));

    ipam.unmap_endpoint(&turin, pod_in_milan, NOW);
    let gone = IpamError::NotMapped { ip: pod_in_milan, cluster: turin.clone() };
    assert_eq!(ipam.remote_pod_ip(&turin, pod_in_milan), Err(gone));
    ipam.unmap_endpoint(&turin, node, NOW);
    assert_eq!(ipam.remote_pod_ip(&milan, node), Ok(ip("10.81.0.3")), "milan still uses it");
    assert!(ipam.remote_pod_ip(&turin, node).is_err());
}

#[test]
fn an_address_that_was_freed_rests_before_another_endpoint_gets_it() {
    let mut ipam = small();
    let turin = id("turin");
    for n in 0..LAST {
        ipam.map_endpoint(&turin, endpoint(n), NOW).unwrap();
    }
    let full = ipam.map_endpoint(&turin, endpoint(LAST), NOW).unwrap_err();
    assert!(full.to_string().contains("10.1.0.0/28 is full"), "{full}");
    let freed = ipam.map_endpoint(&turin, endpoint(7), NOW).unwrap();
    ipam.unmap_endpoint(&turin, endpoint(7), NOW);
    let rests = ipam.map_endpoint(&turin, endpoint(LAST), NOW).unwrap_err();
    assert!(rests.to_string().contains("1 of its addresses rest"), "{rests}");
    assert!(rests.to_string().contains("for 181 s more"), "{rests}");

    let later = NOW + REST + jiff::SignedDuration::from_secs(1);
    assert_eq!(ipam.map_endpoint(&turin, endpoint(LAST), later), Ok(freed));
    assert!(ipam.remote_pod_ip(&turin, endpoint(7)).is_err());
}

#[test]
fn an_endpoint_gets_the_address_back_that_rests_after_it() {
    let mut ipam = peered();
    let (milan, turin) = (id("milan"), id("turin"));
    let first = ipam.map_endpoint(&turin, ip("192.0.2.10"), NOW).unwrap();
    ipam.unmap_endpoint(&turin, ip("192.0.2.10"), NOW);
    assert_ne!(ipam.map_endpoint(&turin, ip("192.0.2.11"), NOW), Ok(first));
    ipam.take_changes();
    ipam.map_endpoint(&milan, ip("192.0.2.10"), NOW).unwrap();
    let changed = ipam.take_changes();
    assert_eq!(ipam.map_endpoint(&turin, ip("192.0.2.10"), NOW), Ok(first));
    let part = Part::Endpoints(milan.clone(), 0);
    assert_eq!(changed.parts, [part].into(), "what rests is stored until it has");
    ipam.wake(NOW + REST * 2, 10);
    assert_eq!(ipam.next_to_wake(), None);
    assert_eq!(ipam.map_endpoint(&turin, ip("192.0.2.10"), NOW), Ok(first), "it is in use");
}

#[test]
fn what_was_freed_twice_in_one_second_is_free_again_in_the_end() {
    let mut ipam = peered();
    for peer in ["milan", "turin"] {
        ipam.map_endpoint(&id(peer), ip("192.0.2.10"), NOW).unwrap();
        ipam.unmap_endpoint(&id(peer), ip("192.0.2.10"), NOW);
    }
    let until = ipam.next_to_wake().expect("it rests");
    ipam.wake(until, 10);
    assert!(Disk::of(&ipam).storages.values().all(|storage| storage.spec.resting.is_empty()));
}

#[test]
fn what_rests_does_so_after_a_restart_and_is_forgotten_when_it_has() {
    let mut ipam = small();
    let turin = id("turin");
    let mut disk = Disk::of(&ipam);
    for n in 0..LAST {
        ipam.map_endpoint(&turin, endpoint(n), NOW).unwrap();
    }
    ipam.unmap_endpoint(&turin, endpoint(3), NOW);
    disk.write(&mut ipam);
    let mut ipam = disk.load(ipam.config.clone());
    assert!(ipam.map_endpoint(&turin, endpoint(LAST), NOW).is_err());

    ipam.release(&turin, NOW);
    disk.write(&mut ipam);
    let mut ipam = disk.load(ipam.config.clone());
    let kept: Vec<_> = disk.storages.keys().map(String::as_str).collect();
    assert_eq!(kept, ["liqo-endpoints-turin-0", NETWORKS, "liqo-networks-turin"], "what rests");
    assert_eq!(disk.mappings.len(), 0);
    let until = ipam.next_to_wake().unwrap();
    ipam.wake(until, 100);
    disk.write(&mut ipam);
    assert_eq!(disk.storages.keys().collect::<Vec<_>>(), [NETWORKS]);
    assert_eq!(ipam.next_to_wake(), None);
}

#[test]
fn many_that_are_asked_for_together_are_in_one_part_and_what_that_leaves_out_is_given_later() {
    let mut ipam = new();
    let config = Config { external_prefix: Some(24), ..ipam.config().clone() };
    ipam.configure(config).unwrap();
    let milan = id("milan");
    ipam.reserve(&milan, cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    ipam.set_local_names(&milan, NatCidr::None, NatCidr::None).unwrap();
    let mut endpoints = (0..=255).map(endpoint);
    for _ in 0..4 {
        ipam.take_changes();
        ipam.expect(50);
        for endpoint in endpoints.by_ref().take(50) {
            ipam.map_endpoint(&milan, endpoint, NOW).unwrap();
        }
        assert_eq!(ipam.take_changes().parts.len(), 1);
    }
    let rest: Vec<_> =
        endpoints.map(|endpoint| ipam.map_endpoint(&milan, endpoint, NOW).is_ok()).collect();
    let free = 256 - 3 - 200;
    assert_eq!(rest.iter().position(|given| !given), Some(free), "all that there are");
}

#[test]
fn neither_the_network_nor_the_broadcast_address_nor_that_of_this_cluster_is_given() {
    let mut ipam = small();
    let all: Vec<_> =
        (0..LAST).map(|n| ipam.map_endpoint(&id("turin"), endpoint(n), NOW).unwrap()).collect();
    let expected: Vec<_> = (2..=14).map(|n| IpAddr::from([10, 1, 0, n])).collect();
    assert_eq!(all, expected);
}

#[test]
fn a_peer_for_whose_other_networks_there_is_no_room_keeps_what_it_had() {
    let mut ipam = peered();
    let milan = id("milan");
    let mapped = ipam.map_endpoint(&milan, ip("192.0.2.10"), NOW).unwrap();
    let before = ipam.clone();
    let too_large = cidr("10.0.0.0/7");
    let error = ipam.reserve(&milan, too_large, cidr("10.1.0.0/16"), NOW).unwrap_err();
    assert!(error.to_string().contains("10.0.0.0/7"), "{error}");
    let error = ipam.reserve(&milan, cidr("10.44.0.0/16"), too_large, NOW).unwrap_err();
    assert!(error.to_string().contains("additionalPools"), "{error}");
    assert_eq!(ipam, before);
    ipam.reserve(&milan, cidr("10.44.0.0/16"), cidr("10.1.0.0/16"), NOW).unwrap();
    assert_eq!(ipam.map_endpoint(&milan, ip("192.0.2.10"), NOW), Ok(mapped), "it is the same peer");
}

#[test]
fn a_name_that_is_reserved_later_is_changed_when_it_is_asked_for_again() {
    let mut ipam = peered();
    let turin = id("turin");
    let networks = (cidr("10.20.0.0/16"), cidr("10.21.0.0/16"));
    let reserved = vec![cidr("10.20.7.0/24")];
    ipam.configure(Config { reserved, ..config() }).unwrap();
    let subnets = ipam.reserve(&turin, networks.0, networks.1, NOW).unwrap().clone();
    assert!(!overlap(subnets.our_name_for_pods().unwrap(), cidr("10.20.7.0/24")));
    assert_eq!(subnets.our_name_for_external(), Some(networks.1));
    assert_eq!(subnets.local_nat_pod_cidr, Some(NatCidr::None), "what it calls us is the same");
    assert_eq!(ipam.take_changes().parts, [Part::Networks(turin)].into());
}

#[test]
fn the_external_network_has_the_size_that_was_asked_for_unless_it_is_in_use() {
    let told = |prefix| Config { external_prefix: Some(prefix), ..config() };
    let mut ipam = Ipam::load(told(20), &[], &[], NOW).unwrap();
    assert_eq!(ipam.external_cidr(), cidr("10.1.0.0/20"));
    ipam.configure(told(12)).unwrap();
    assert_eq!(ipam.external_cidr(), cidr("10.16.0.0/12"));
    assert!(ipam.take_changes().networks);
    ipam.reserve(&id("turin"), cidr("10.200.0.0/16"), cidr("10.201.0.0/16"), NOW).unwrap();
    ipam.configure(told(20)).unwrap();
    assert_eq!(ipam.external_cidr(), cidr("10.16.0.0/12"), "turin knows it");
    let disk = Disk::of(&ipam);
    assert_eq!(disk.load(told(20)).external_cidr(), cidr("10.16.0.0/12"));
    ipam.release(&id("turin"), NOW);
    assert_eq!(ipam.external_cidr(), cidr("10.1.0.0/20"));
}

#[test]
fn clusters_with_ipv6_have_an_external_network_of_ipv6() {
    let mut ipam = with_ipv6();
    assert_eq!(ipam.external_cidr(), cidr("fd00::/112"));
    let turin = id("turin");
    let mut map = |text| ipam.map_endpoint(&turin, ip(text), NOW);
    assert_eq!(map("2001:db8::1"), Ok(ip("fd00::2")));
    assert_eq!(map("fd00:10::5"), Ok(ip("fd99::5")));
    assert!(map("192.0.2.1").unwrap_err().to_string().contains("another family"));
}

#[test]
fn no_object_is_large_however_long_ids_are_and_however_many_clusters_there_are() {
    let mut ipam = new();
    let peers: Vec<_> = (10..40).map(|n| id(&format!("{n}{}", "x".repeat(61)))).collect();
    for (n, peer) in peers.iter().enumerate() {
        let external = cidr(&format!("10.{}.0.0/16", 150 + n));
        ipam.reserve(peer, cidr("10.0.0.0/16"), external, NOW).unwrap();
        ipam.set_local_names(peer, NatCidr::None, NatCidr::None).unwrap();
        for n in 0..200_u8 {
            let long = IpAddr::from([198, 168, 100 + n / 100, 100 + n % 100]);
            ipam.map_endpoint(peer, long, NOW).unwrap();
        }
    }
    let disk = Disk::of(&ipam);
    let largest = disk.storages.values().map(|storage| size(&storage.spec)).max().unwrap();
    assert!(largest < 16 * 1024, "{largest}");
    assert_eq!(disk.mappings.len(), 30);
}

#[test]
fn what_gateways_are_told_is_in_objects_of_some_size() {
    let config =
        Config { pod_cidr: cidr("fd00:10::/56"), service_cidr: cidr("fd00:20::/112"), ..config() };
    let mut ipam = Ipam::load(config, &[], &[], NOW).unwrap();
    let peer = id(&"x".repeat(63));
    ipam.reserve(&peer, cidr("fd00:40::/56"), cidr("fd00:30::/112"), NOW).unwrap();
    ipam.set_local_names(&peer, NatCidr::None, NatCidr::None).unwrap();
    for n in 0..1024_u16 {
        let long = Ipv6Addr::new(0x2001, 0xdb8, 0x1111, 0x1111, 0x1111, 0x1111, 0x1111, 0x1000 + n);
        ipam.map_endpoint(&peer, long.into(), NOW).unwrap();
    }
    let disk = Disk::of(&ipam);
    assert_eq!(disk.mappings.len(), 3);
    let largest = disk.mappings.values().map(|mapping| size(&mapping.spec)).max().unwrap();
    assert!(largest < 64 * 1024, "{largest}");
}

fn size(spec: &impl serde::Serialize) -> usize {
    serde_json::to_vec(spec).unwrap().len()
}

#[test]
fn what_can_be_no_endpoint_is_refused() {
    let mut ipam = peered();
    let wrong = ["fd00::1", "10.1.0.7", "0.0.0.0", "0.1.2.3", "127.0.0.1", "127.9.9.9"];
    let nowhere = ["169.254.169.254", "224.0.0.1", "240.0.0.1", "241.7.7.7", "255.255.255.255"];
    for bad in wrong.into_iter().chain(nowhere) {
        let error = ipam.map_endpoint(&id("turin"), ip(bad), NOW).unwrap_err();
        assert!(matches!(error, IpamError::NotAnEndpoint { .. }), "{error}");
        assert!(error.to_string().starts_with(bad), "{error}");
    }
    for good in ["192.168.7.7", "100.64.0.7", "8.8.8.8", "1.0.0.0", "223.255.255.255"] {
        ipam.map_endpoint(&id("turin"), ip(good), NOW).unwrap();
    }

    let mut ipam = with_ipv6();
    for bad in ["::", "::1", "fe80::1", "febf::1", "ff02::1", "192.0.2.1", "fd00::7"] {
        let error = ipam.map_endpoint(&id("turin"), ip(bad), NOW).unwrap_err();
        assert!(matches!(error, IpamError::NotAnEndpoint { .. }), "{error}");
        assert!(error.to_string().starts_with(bad), "{error}");
    }
    for good in ["::2", "2001:db8::1", "fd12::1", "fec0::1"] {
        ipam.map_endpoint(&id("turin"), ip(good), NOW).unwrap();
    }
}

#[test]
fn what_can_be_no_endpoint_is_not_taken_over_either() {
    let mut ipam = peered();
    ipam.map_endpoint(&id("turin"), ip("192.0.2.10"), NOW).unwrap();
    let mut disk = Disk::of(&ipam);
    let part = disk.storages.get_mut(&Part::Endpoints(id("turin"), 0).storage()).unwrap();
    let mapping = part.spec.endpoint_mappings.remove(&ip("192.0.2.10")).unwrap();
    part.spec.endpoint_mappings.insert(ip("169.254.169.254"), mapping);
    let mut ipam = disk.load(config());
    disk.write(&mut ipam);
    assert_eq!(disk.mappings.len(), 0, "no gateway leads there");
}

#[test]
fn before_the_peer_has_said_what_it_calls_us_nothing_is_answered() {
    let mut ipam = new();
    let milan = id("milan");
    let error = IpamError::UnknownCluster(milan.clone());
    assert_eq!(ipam.map_endpoint(&milan, ip("10.0.0.5"), NOW), Err(error));
    ipam.reserve(&milan, cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    let error = IpamError::NameUnknown(milan.clone());
    assert_eq!(ipam.map_endpoint(&milan, ip("10.0.0.5"), NOW), Err(error));
    assert_eq!(ipam.home_pod_ip(&milan, ip("10.20.0.5")), Ok(ip("10.20.0.5")));
    assert!(matches!(
        ipam.home_pod_ip(&milan, ip("10.99.0.5")),
        Err(IpamError::NotAPodThere { .. })
    ));
}

#[test]
fn a_peer_that_changes_its_name_for_us_changes_its_nat_mappings() {
    let mut ipam = peered();
    let milan = id("milan");
    ipam.map_endpoint(&milan, ip("192.0.2.10"), NOW).unwrap();
    ipam.take_changes();
    let name = "10.99.0.0/16".parse().unwrap();
    ipam.set_local_names(&milan, NatCidr::None, name).unwrap();
    let (networks, part) = (Part::Networks(milan.clone()), Part::Endpoints(milan, 0));
    let parts = [networks, part.clone()].into();
    let told = part.told().unwrap();
    assert_eq!(
        ipam.take_changes(),
        Changes { networks: false, parts, told: [told.clone()].into() }
    );
    let mapping = ipam.nat_mapping(&told).unwrap();
    assert_eq!(mapping.cluster_mappings, [(ip("192.0.2.10"), ip("10.99.0.2"))].into());
}

#[test]
fn names_of_objects_are_read_as_they_are_written() {
    let part = Part::Endpoints(id("a-b-7"), 12);
    let told = part.told().unwrap();
    assert_eq!(Told::from_name(&told.name()), Some(told.clone()));
    assert_eq!(told.first().told(), Some(told));
    for part in [part, Part::Networks(id("a-b-7"))] {
        assert_eq!(Part::from_storage(&part.storage()), Some(part.clone()));
        assert_eq!(part.to_string().parse(), Ok(part));
    }
    assert_eq!(Told::from_name("natmapping-1"), None);
    assert_eq!(Part::from_storage(NETWORKS), None);
    assert_eq!(Part::from_storage(WRITER), None);
}

#[test]
fn an_edited_storage_is_put_right() {
    let mut disk = Disk::of(&peered());
    let networks = disk.storages.get_mut(&Part::Networks(id("milan")).storage()).unwrap();
    let milan = networks.spec.cluster_subnets.get_mut(&id("milan")).unwrap();
    milan.remote_nat_pod_cidr = NatCidr::Remapped(cidr("10.20.0.0/16"));
    let ipam = disk.load(config());
    let overlapping = [ipam.subnets(&id("milan")), ipam.subnets(&id("turin"))];
    assert_eq!(overlapping.iter().flatten().count(), 1);
    properties::no_overlap(&ipam);
}

#[test]
fn networks_that_are_still_in_one_object_are_taken_over() {
    let peered = peered();
    let mut disk = Disk::of(&peered);
    disk.storages.retain(|name, _| name == NETWORKS);
    let networks = disk.storages.get_mut(NETWORKS).unwrap();
    networks.spec.cluster_subnets = peered.clusters.clone();
    let mut ipam = disk.load(config());
    assert_eq!(ipam.clusters, peered.clusters);
    disk.write(&mut ipam);
    assert_eq!(disk.storages[NETWORKS].spec.cluster_subnets.len(), 0);
    assert_eq!(disk.load(config()).clusters, peered.clusters);
}

#[test]
fn what_a_peer_calls_other_networks_than_ours_is_forgotten() {
    let disk = Disk::of(&peered());
    let said = |config: Config| {
        let ipam = disk.load(config);
        let subnets = ipam.subnets(&id("turin")).unwrap();
        (subnets.local_nat_pod_cidr, subnets.local_nat_external_cidr)
    };
    assert_eq!(said(config()), (Some(NatCidr::None), Some(NatCidr::None)));
    let other_pods = Config { pod_cidr: cidr("10.60.0.0/16"), ..config() };
    assert_eq!(said(other_pods), (None, None), "the same size, and another network");
    // 10.1.0.0/16, which it said that of, is no external network any more.
    let other_external = Config { service_cidr: cidr("10.1.0.0/16"), ..config() };
    assert_eq!(said(other_external), (None, None));
}

/// Peered with turin, and with room for few endpoints.
fn small() -> Ipam {
    let config = Config { external_prefix: Some(28), ..config() };
    let mut ipam = Ipam::load(config, &[], &[], NOW).unwrap();
    let turin = id("turin");
    ipam.reserve(&turin, cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    ipam.set_local_names(&turin, NatCidr::None, NatCidr::None).unwrap();
    ipam
}

/// Peered with turin, which has the same networks.
fn with_ipv6() -> Ipam {
    let config =
        Config { pod_cidr: cidr("fd00:10::/56"), service_cidr: cidr("fd00:20::/112"), ..config() };
    let mut ipam = Ipam::load(config, &[], &[], NOW).unwrap();
    let turin = id("turin");
    ipam.reserve(&turin, cidr("fd00:10::/56"), cidr("fd00:30::/112"), NOW).unwrap();
    ipam.set_local_names(&turin, "fd99::/56".parse().unwrap(), NatCidr::None).unwrap();
    ipam
}

/// How many endpoints the small one has room for.
const LAST: u8 = 13;

fn endpoint(n: u8) -> IpAddr {
    IpAddr::from([192, 0, 2, n])
}

/// Peered with milan, which has the same networks, and turin, which has others.
fn peered() -> Ipam {
    let mut ipam = new();
    let (milan, turin) = (id("milan"), id("turin"));
    ipam.reserve(&milan, cidr("10.0.0.0/16"), cidr("10.1.0.0/16"), NOW).unwrap();
    ipam.reserve(&turin, cidr("10.20.0.0/16"), cidr("10.21.0.0/16"), NOW).unwrap();
    let (pods, external) = ("10.80.0.0/16".parse().unwrap(), "10.81.0.0/16".parse().unwrap());
    ipam.set_local_names(&milan, pods, external).unwrap();
    ipam.set_local_names(&turin, NatCidr::None, NatCidr::None).unwrap();
    ipam.take_changes();
    ipam
}

fn new() -> Ipam {
    Ipam::load(config(), &[], &[], NOW).unwrap()
}

fn config() -> Config {
    Config {
        pod_cidr: cidr("10.0.0.0/16"),
        service_cidr: cidr("10.96.0.0/12"),
        pools: pools(&[]),
        reserved: vec![],
        external_prefix: None,
    }
}

fn id(text: &str) -> ClusterId {
    text.parse().unwrap()
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn an_external_network_for_which_there_is_no_room_is_not_asked_for_at_every_start() {
    let disk = Disk::of(&new());
    let too_large = Config { external_prefix: Some(8), ..config() };
    assert_eq!(disk.load(too_large.clone()).external_cidr(), cidr("10.1.0.0/16"));
    let mut ipam = disk.load(config());
    assert!(ipam.configure(too_large).is_err());
    assert_eq!(ipam.external_cidr(), cidr("10.1.0.0/16"));
}

#[test]
fn while_there_are_no_peers_the_external_network_avoids_what_is_reserved() {
    let mut ipam = new();
    let reserved = vec![cidr("10.1.7.0/24")];
    ipam.configure(Config { reserved, ..config() }).unwrap();
    assert_eq!(ipam.external_cidr(), cidr("10.2.0.0/16"));
}

#[test]
fn nobody_frees_what_another_has_asked_for() {
    let (mut ipam, turin, node) = (peered(), id("turin"), ip("192.0.2.10"));
    let [kubelet, other]: [MappingOwner; 2] = ["kubelet", "other"].map(|it| it.parse().unwrap());
    let mapped = ipam.map_endpoint_for(&kubelet, &turin, node, NOW).unwrap();
    assert_eq!(ipam.map_endpoint_for(&other, &turin, node, NOW), Ok(mapped));
    assert_eq!(ipam.map_endpoint(&turin, ip("192.0.2.11"), NOW), Ok(ip("10.1.0.3")));

    ipam.unmap_endpoint_for(&kubelet, &turin, ip("192.0.2.11"), NOW);
    assert!(ipam.remote_pod_ip(&turin, ip("192.0.2.11")).is_ok(), "it has no name, but an owner");
    ipam.unmap_endpoint(&turin, node, NOW);
    ipam.unmap_endpoint_for(&kubelet, &turin, node, NOW);
    assert_eq!(ipam.remote_pod_ip(&turin, node), Ok(mapped), "the other one still uses it");
    ipam.take_changes();
    ipam.unmap_endpoint_for(&kubelet, &turin, node, NOW);
    assert!(ipam.take_changes().is_empty(), "it has given it back already");
    ipam.unmap_endpoint_for(&other, &turin, node, NOW);
    assert!(ipam.remote_pod_ip(&turin, node).is_err());
}

#[test]
fn owners_are_stored_with_the_mapping() {
    let (mut ipam, turin) = (peered(), id("turin"));
    let kubelet: MappingOwner = "kubelet".parse().unwrap();
    ipam.map_endpoint_for(&kubelet, &turin, ip("192.0.2.10"), NOW).unwrap();
    ipam.map_endpoint(&turin, ip("192.0.2.10"), NOW).unwrap();
    ipam.map_endpoint(&turin, ip("192.0.2.11"), NOW).unwrap();
    let (mut disk, config) = (Disk::of(&ipam), ipam.config().clone());
    let mut again = disk.load(config.clone());
    assert_eq!(again.endpoints_of(&kubelet, &turin, None, 9), [ip("192.0.2.10")]);
    again.unmap_endpoint_for(&kubelet, &turin, ip("192.0.2.10"), NOW);
    assert!(again.remote_pod_ip(&turin, ip("192.0.2.10")).is_ok());
    disk.write(&mut again);
    let again = disk.load(config);
    assert!(again.endpoints_of(&kubelet, &turin, None, 9).is_empty());
    let unnamed = again.endpoints_of(&MappingOwner::default(), &turin, None, 9);
    assert_eq!(unnamed, [ip("192.0.2.10"), ip("192.0.2.11")]);
}

#[test]
fn what_an_owner_has_is_listed_in_pages() {
    let (mut ipam, turin) = (peered(), id("turin"));
    let kubelet: MappingOwner = "kubelet".parse().unwrap();
    for n in 0..5 {
        ipam.map_endpoint_for(&kubelet, &turin, IpAddr::from([192, 0, 2, n]), NOW).unwrap();
        ipam.map_endpoint(&turin, IpAddr::from([198, 51, 100, n]), NOW).unwrap();
    }
    let page = |after, most| ipam.endpoints_of(&kubelet, &turin, after, most);
    assert_eq!(page(None, 2), [ip("192.0.2.0"), ip("192.0.2.1")]);
    assert_eq!(page(Some(ip("192.0.2.1")), 2), [ip("192.0.2.2"), ip("192.0.2.3")]);
    assert_eq!(page(Some(ip("192.0.2.3")), 2), [ip("192.0.2.4")]);
    assert!(ipam.endpoints_of(&kubelet, &id("milan"), None, 9).is_empty());
}
