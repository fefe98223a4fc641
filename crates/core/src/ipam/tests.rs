use std::collections::BTreeMap;

use proptest::prelude::*;
use tombolo_api::NatCidr;

use super::*;

#[test]
fn a_peer_with_other_networks_keeps_them() {
    let mut ipam = new();
    let subnets = ipam.reserve(&id("milan"), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).unwrap();
    assert_eq!(subnets.remote_nat_pod_cidr, NatCidr::None);
    assert_eq!(subnets.remote_nat_external_cidr, NatCidr::None);
    assert_eq!(subnets.local_nat_pod_cidr, None, "it has not said");
}

#[test]
fn peers_with_the_same_networks_get_names_of_their_own() {
    let mut ipam = new();
    let mut names = Vec::new();
    for peer in ["milan", "turin", "genoa"] {
        let pods = ipam.config().pod_cidr;
        let subnets = ipam.reserve(&id(peer), pods, ipam.external_cidr()).unwrap();
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
    let subnets = ipam.reserve(&id("milan"), cidr("10.0.0.0/16"), cidr("10.2.0.0/16")).unwrap();
    assert_eq!(subnets.our_name_for_pods(), Some(cidr("10.2.0.0/16")));
    assert_eq!(subnets.our_name_for_external(), Some(cidr("10.3.0.0/16")));
}

#[test]
fn the_same_networks_keep_their_names_and_others_get_new_ones() {
    let mut ipam = new();
    let (milan, pods, external) = (id("milan"), cidr("10.0.0.0/16"), cidr("10.1.0.0/16"));
    let first = ipam.reserve(&milan, pods, external).unwrap().clone();
    ipam.take_changes();
    assert_eq!(ipam.reserve(&milan, pods, external), Ok(&first));
    assert!(ipam.take_changes().is_empty());
    let other = ipam.reserve(&milan, cidr("10.30.0.0/16"), external).unwrap();
    assert_eq!(other.our_name_for_pods(), Some(cidr("10.30.0.0/16")));
}

#[test]
fn what_is_freed_can_be_had_again() {
    let mut ipam = new();
    let network = cidr("10.20.0.0/16");
    ipam.reserve(&id("milan"), network, cidr("10.21.0.0/16")).unwrap();
    let turin = ipam.reserve(&id("turin"), network, cidr("10.22.0.0/16")).unwrap();
    assert_ne!(turin.our_name_for_pods(), Some(network));
    ipam.release(&id("milan"));
    let genoa = ipam.reserve(&id("genoa"), network, cidr("10.23.0.0/16")).unwrap();
    assert_eq!(genoa.our_name_for_pods(), Some(network));
}

#[test]
fn a_pod_of_this_cluster_is_called_as_the_peer_calls_it() {
    let mut ipam = peered();
    assert_eq!(ipam.map_endpoint(&id("milan"), ip("10.0.0.5")), Ok(ip("10.80.0.5")));
    assert_eq!(ipam.map_endpoint(&id("turin"), ip("10.0.0.5")), Ok(ip("10.0.0.5")));
    assert_eq!(ipam.remote_pod_ip(&id("milan"), ip("10.0.0.5")), Ok(ip("10.80.0.5")));
    assert!(ipam.take_changes().is_empty(), "nothing to remember");
}

#[test]
fn a_pod_that_runs_over_there_has_its_real_address_there() {
    let mut ipam = peered();
    let here = ipam.home_pod_ip(&id("milan"), ip("10.0.7.7")).unwrap();
    assert_eq!(here, ip("10.2.7.7"));
    assert_eq!(ipam.map_endpoint(&id("milan"), here), Ok(ip("10.0.7.7")));
    assert_eq!(ipam.remote_pod_ip(&id("milan"), here), Ok(ip("10.0.7.7")));
}

#[test]
fn anything_else_gets_an_external_address_shared_by_all_clusters_and_freed_with_the_last() {
    let mut ipam = peered();
    let (milan, turin) = (id("milan"), id("turin"));
    let pod_in_milan = ip("10.2.7.7");
    let node = ip("192.0.2.10");
    assert_eq!(ipam.map_endpoint(&turin, pod_in_milan), Ok(ip("10.1.0.2")));
    assert_eq!(ipam.map_endpoint(&turin, node), Ok(ip("10.1.0.3")));
    assert_eq!(ipam.map_endpoint(&milan, node), Ok(ip("10.81.0.3")), "as milan calls it");
    assert_eq!(ipam.remote_pod_ip(&turin, pod_in_milan), Ok(ip("10.1.0.2")));
    assert_eq!(ipam.remote_pod_ip(&milan, ip("10.2.7.7")), Ok(ip("10.0.7.7")));

    ipam.unmap_endpoint(&turin, pod_in_milan);
    let gone = IpamError::NotMapped { ip: pod_in_milan, cluster: turin.clone() };
    assert_eq!(ipam.remote_pod_ip(&turin, pod_in_milan), Err(gone));
    ipam.unmap_endpoint(&turin, node);
    assert_eq!(ipam.remote_pod_ip(&milan, node), Ok(ip("10.81.0.3")), "milan still uses it");
    assert!(ipam.remote_pod_ip(&turin, node).is_err());
}

#[test]
fn an_address_that_was_freed_is_not_given_to_another_at_once() {
    let mut ipam = peered();
    let turin = id("turin");
    let first = ipam.map_endpoint(&turin, ip("192.0.2.10")).unwrap();
    ipam.unmap_endpoint(&turin, ip("192.0.2.10"));
    assert_ne!(ipam.map_endpoint(&turin, ip("192.0.2.11")), Ok(first));
}

#[test]
fn a_full_external_network_says_so_and_what_is_freed_is_used_again() {
    let mut config = config();
    config.pools = vec![cidr("10.1.0.0/24")];
    let mut ipam = Ipam::load(config, &[], &[]).unwrap();
    ipam.config.pools = pools(&[]);
    let turin = id("turin");
    ipam.reserve(&turin, cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).unwrap();
    ipam.set_local_names(&turin, NatCidr::None, NatCidr::None).unwrap();
    let endpoint = |n: u8| IpAddr::from([192, 0, 2, n]);
    for n in 0..253 {
        ipam.map_endpoint(&turin, endpoint(n)).unwrap();
    }
    let full = IpamError::ExternalFull(cidr("10.1.0.0/24"));
    assert_eq!(ipam.map_endpoint(&turin, endpoint(253)), Err(full));
    ipam.unmap_endpoint(&turin, endpoint(7));
    assert_eq!(ipam.map_endpoint(&turin, endpoint(253)), Ok(ip("10.1.0.9")));
}

#[test]
fn what_can_be_no_endpoint_is_refused() {
    let mut ipam = peered();
    for bad in ["0.0.0.0", "127.0.0.1", "224.0.0.1", "255.255.255.255", "fd00::1", "10.1.0.7"] {
        let error = ipam.map_endpoint(&id("turin"), ip(bad)).unwrap_err();
        assert!(error.to_string().starts_with(bad), "{error}");
    }
}

#[test]
fn before_the_peer_has_said_what_it_calls_us_nothing_is_answered() {
    let mut ipam = new();
    let milan = id("milan");
    let error = IpamError::UnknownCluster(milan.clone());
    assert_eq!(ipam.map_endpoint(&milan, ip("10.0.0.5")), Err(error));
    ipam.reserve(&milan, cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).unwrap();
    let error = IpamError::NameUnknown(milan.clone());
    assert_eq!(ipam.map_endpoint(&milan, ip("10.0.0.5")), Err(error));
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
    ipam.map_endpoint(&milan, ip("192.0.2.10")).unwrap();
    ipam.take_changes();
    let name = "10.99.0.0/16".parse().unwrap();
    ipam.set_local_names(&milan, NatCidr::None, name).unwrap();
    let shard = MappingShard { cluster: milan, number: 0 };
    assert_eq!(ipam.take_changes().mappings, [shard.clone()].into());
    let mapping = ipam.nat_mapping(&shard).unwrap();
    assert_eq!(mapping.cluster_mappings, [(ip("192.0.2.10"), ip("10.99.0.2"))].into());
}

#[test]
fn names_of_objects_are_read_as_they_are_written() {
    for shard in [StorageShard::Networks, StorageShard::Endpoints(511)] {
        assert_eq!(shard.to_string().parse(), Ok(shard));
    }
    let shard = MappingShard { cluster: id("a-b-7"), number: 12 };
    assert_eq!(shard.to_string().parse(), Ok(shard));
    assert!("natmapping-1".parse::<MappingShard>().is_err());
}

#[test]
fn an_edited_storage_is_put_right() {
    let mut ipam = peered();
    let mut disk = Disk::default();
    ipam.changes = ipam.differences(&[], &[]);
    disk.write(&mut ipam);
    let networks = disk.storages.get_mut("liqo-networks").unwrap();
    let milan = networks.spec.cluster_subnets.get_mut(&id("milan")).unwrap();
    milan.remote_nat_pod_cidr = NatCidr::Remapped(cidr("10.20.0.0/16"));
    let ipam = disk.load();
    let overlapping = [ipam.subnets(&id("milan")), ipam.subnets(&id("turin"))];
    assert_eq!(overlapping.iter().flatten().count(), 1);
    no_overlap(&ipam);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn nothing_ever_overlaps_and_what_is_stored_is_what_is_known(
        acts in prop::collection::vec(act(), 1..60)
    ) {
        let mut ipam = new();
        let mut disk = Disk::default();
        for act in acts {
            perform(&mut ipam, &act);
            no_overlap(&ipam);
            disk.write(&mut ipam);
            let mut loaded = disk.load();
            prop_assert!(loaded.take_changes().is_empty(), "{act:?} is not stored in full");
            loaded.endpoints.last = ipam.endpoints.last;
            prop_assert_eq!(&loaded, &ipam);
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
        (peer.clone(), network(), network()).prop_map(|(p, a, b)| Act::Reserve(p, a, b)),
        (peer.clone(), name(), name()).prop_map(|(p, a, b)| Act::LocalNames(p, a, b)),
        peer.clone().prop_map(Act::Release),
        (peer.clone(), endpoint()).prop_map(|(p, ip)| Act::Map(p, ip)),
        (peer, endpoint()).prop_map(|(p, ip)| Act::Unmap(p, ip)),
    ]
}

fn perform(ipam: &mut Ipam, act: &Act) {
    let peer = |n: &u8| id(&format!("peer-{n}"));
    match act {
        Act::Reserve(n, pods, external) => {
            if let Ok(subnets) = ipam.reserve(&peer(n), *pods, *external) {
                assert_eq!(subnets.remote_pod_cidr, Some(*pods));
            }
        }
        Act::LocalNames(n, pods, external) => {
            let _ = ipam.set_local_names(&peer(n), *pods, *external);
        }
        Act::Release(n) => ipam.release(&peer(n)),
        Act::Map(n, ip) => {
            if let Ok(name) = ipam.map_endpoint(&peer(n), *ip) {
                assert_eq!(ipam.remote_pod_ip(&peer(n), *ip), Ok(name));
            }
        }
        Act::Unmap(n, ip) => ipam.unmap_endpoint(&peer(n), *ip),
    }
}

fn no_overlap(ipam: &Ipam) {
    let own = [ipam.config.pod_cidr, ipam.config.service_cidr, ipam.external_cidr];
    let names = ipam.clusters.values().flat_map(|subnets| {
        [subnets.our_name_for_pods().unwrap(), subnets.our_name_for_external().unwrap()]
    });
    let all: Vec<_> = own.into_iter().chain(names).collect();
    for (n, one) in all.iter().enumerate() {
        for other in &all[n + 1..] {
            assert!(!overlap(*one, *other), "{one} overlaps {other}");
        }
    }
    let externals: BTreeSet<_> = ipam.endpoints.all().map(|endpoint| endpoint.external).collect();
    assert_eq!(externals.len(), ipam.endpoints.all().count());
    assert!(!externals.contains(&crate::translate::first_host(ipam.external_cidr)));
}

/// The objects as the API server has them.
#[derive(Default)]
struct Disk {
    storages: BTreeMap<String, IpamStorage>,
    mappings: BTreeMap<String, NatMapping>,
}

impl Disk {
    fn write(&mut self, ipam: &mut Ipam) {
        let changes = ipam.take_changes();
        for shard in changes.storage {
            let name = shard.to_string();
            match ipam.storage(shard) {
                Some(spec) => self.storages.insert(name.clone(), IpamStorage::new(&name, spec)),
                None => self.storages.remove(&name),
            };
        }
        for shard in changes.mappings {
            let name = shard.to_string();
            match ipam.nat_mapping(&shard) {
                Some(spec) => self.mappings.insert(name.clone(), NatMapping::new(&name, spec)),
                None => self.mappings.remove(&name),
            };
        }
    }

    fn load(&self) -> Ipam {
        let storages: Vec<_> = self.storages.values().cloned().collect();
        let mappings: Vec<_> = self.mappings.values().cloned().collect();
        Ipam::load(config(), &storages, &mappings).unwrap()
    }
}

/// Peered with milan, which has the same networks, and turin, which has others.
fn peered() -> Ipam {
    let mut ipam = new();
    let (milan, turin) = (id("milan"), id("turin"));
    ipam.reserve(&milan, cidr("10.0.0.0/16"), cidr("10.1.0.0/16")).unwrap();
    ipam.reserve(&turin, cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).unwrap();
    let (pods, external) = ("10.80.0.0/16".parse().unwrap(), "10.81.0.0/16".parse().unwrap());
    ipam.set_local_names(&milan, pods, external).unwrap();
    ipam.set_local_names(&turin, NatCidr::None, NatCidr::None).unwrap();
    ipam.take_changes();
    ipam
}

fn new() -> Ipam {
    Ipam::load(config(), &[], &[]).unwrap()
}

fn config() -> Config {
    Config {
        pod_cidr: cidr("10.0.0.0/16"),
        service_cidr: cidr("10.96.0.0/12"),
        pools: pools(&[]),
        reserved: vec![],
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
