//! Random requests over time, for both address families and for large and small ExternalCIDRs, with
//! the invariants that hold after each of them.

use std::net::Ipv4Addr;

use ipnet::IpNet;
use proptest::prelude::*;
use tombolo_api::NatCidr;

use super::{super::*, NOW, config, id, properties::answers};
use crate::translate::overlap;

/// Prefix of all networks and addresses of an IPv6 world.
const V6: u128 = 0xfd00 << 112;

/// Address family and size of the ExternalCIDR.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    is_v6: bool,
    external_prefix: Option<u8>,
}

pub(super) fn kind() -> impl Strategy<Value = Kind> {
    let prefixes = prop::sample::select(vec![None, Some(28)]);
    (any::<bool>(), prefixes).prop_map(|(is_v6, external_prefix)| Kind { is_v6, external_prefix })
}

/// The state, the clock and the history.
pub(super) struct World {
    pub(super) ipam: IpamState,
    pub(super) now: Timestamp,
    kind: Kind,
    /// CIDRs that peers have released, and when.
    freed: Vec<(ClusterId, Cidr, Timestamp)>,
}

/// A request, with IPv4 addresses in either family.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Reserve(u8, Cidr, Cidr),
    /// `Reserve`, and the peer reports its translated CIDRs.
    Join(u8, Cidr, Cidr),
    LocalNatCidrs(u8, NatCidr, NatCidr),
    Release(u8),
    Map(u8, Ipv4Addr),
    Unmap(u8, Ipv4Addr),
    Configure(Vec<Cidr>),
    Expire(usize),
    Wait(i64),
}

pub(super) fn act() -> impl Strategy<Value = Act> {
    let peer = 0_u8..4;
    let network = || {
        (0_u8..24, 12_u8..=24).prop_map(|(n, prefix)| {
            let net = IpNet::new([10, n, 0, 0].into(), prefix).unwrap();
            Cidr::try_from(net.trunc()).unwrap()
        })
    };
    let nat = || {
        (0_u8..=24, prop::sample::select(vec![16, 28])).prop_map(|(n, prefix)| match n {
            24 => NatCidr::None,
            n => format!("10.{n}.0.0/{prefix}").parse().unwrap(),
        })
    };
    let endpoint = || (0_u8..24, 0_u8..3).prop_map(|(n, host)| Ipv4Addr::from([10, n, 0, host]));
    prop_oneof![
        4 => (peer.clone(), network(), network()).prop_map(|(p, a, b)| Act::Reserve(p, a, b)),
        4 => (peer.clone(), network(), network()).prop_map(|(p, a, b)| Act::Join(p, a, b)),
        4 => (peer.clone(), nat(), nat()).prop_map(|(p, a, b)| Act::LocalNatCidrs(p, a, b)),
        2 => peer.clone().prop_map(Act::Release),
        24 => (peer.clone(), endpoint()).prop_map(|(p, ip)| Act::Map(p, ip)),
        4 => (peer, endpoint()).prop_map(|(p, ip)| Act::Unmap(p, ip)),
        2 => prop::collection::vec(network(), 0..3).prop_map(Act::Configure),
        1 => (0_usize..8).prop_map(Act::Expire),
        2 => (0_i64..200).prop_map(Act::Wait),
    ]
}

impl World {
    pub(super) fn new(kind: Kind) -> Self {
        let ipam = IpamState::load(kind.config(vec![]), &[], &[], NOW).unwrap();
        Self { ipam, now: NOW, kind, freed: Vec::new() }
    }

    /// Performs a request and checks the invariants.
    pub(super) fn perform(&mut self, act: &Act) {
        match act {
            Act::Wait(seconds) => self.now += jiff::SignedDuration::from_secs(*seconds),
            act => self.perform_now(act),
        }
    }

    /// The same, without any time passing.
    pub(super) fn perform_now(&mut self, act: &Act) {
        let before = self.cidrs();
        self.request(act);
        let after = self.cidrs();
        for (peer, cidr) in before.iter().filter(|it| !after.contains(it)) {
            self.freed.push((peer.clone(), *cidr, self.now));
        }
        for (peer, cidr) in after.iter().filter(|it| !before.contains(it)) {
            for (other, freed, when) in &self.freed {
                let is_quarantined = self.now.duration_since(*when) < QUARANTINE;
                let is_theirs = other != peer && is_quarantined && overlap(*freed, *cidr);
                assert!(!is_theirs, "{peer} has {cidr}; {other} has just released {freed}");
            }
        }
        let freed =
            self.freed.iter().filter(|(.., when)| self.now.duration_since(*when) < QUARANTINE);
        no_endpoint_in_freed_cidr(&self.ipam, &freed.map(|(_, cidr, _)| *cidr).collect::<Vec<_>>());
    }

    fn request(&mut self, act: &Act) {
        let (kind, now, ipam) = (self.kind, self.now, &mut self.ipam);
        match act {
            Act::Reserve(n, pods, external) => {
                let before = ipam.clone();
                let (pods, external) = (kind.network(*pods), kind.network(*external));
                match ipam.reserve(&peer(*n), pods, external, now) {
                    Ok(subnets) => {
                        assert_eq!(subnets.remote_pod_cidr, Some(pods));
                        self.is_not_reserved(&peer(*n));
                    }
                    Err(_) => assert_eq!(*ipam, before, "an error changes nothing"),
                }
            }
            Act::Join(n, pods, external) => {
                self.request(&Act::Reserve(*n, *pods, *external));
                let _ = self.ipam.set_local_nat_cidrs(&peer(*n), NatCidr::None, NatCidr::None);
            }
            Act::LocalNatCidrs(n, pods, external) => {
                let _ = ipam.set_local_nat_cidrs(&peer(*n), kind.nat(*pods), kind.nat(*external));
            }
            Act::Release(n) => ipam.release(&peer(*n), now),
            Act::Map(n, ip) => {
                let (peer, ip) = (peer(*n), kind.ip(*ip));
                if let Ok(mapped) = ipam.map_endpoint(&peer, ip, now) {
                    assert_eq!(ipam.remote_pod_ip(&peer, ip), Ok(mapped));
                }
            }
            Act::Unmap(n, ip) => ipam.unmap_endpoint(&peer(*n), kind.ip(*ip), now),
            Act::Configure(reserved) => {
                let _ = ipam.configure(kind.config(reserved.clone()));
                // As the controller does for every peer.
                for (cluster, subnets) in ipam.clusters.clone() {
                    let (pods, external) = (subnets.remote_pod_cidr, subnets.remote_external_cidr);
                    if self.ipam.reserve(&cluster, pods.unwrap(), external.unwrap(), now).is_ok() {
                        self.is_not_reserved(&cluster);
                    }
                }
            }
            Act::Expire(most) => ipam.expire(now, *most),
            Act::Wait(_) => {}
        }
    }

    fn is_not_reserved(&self, peer: &ClusterId) {
        for (_, cidr) in self.cidrs().iter().filter(|(of, _)| of == peer) {
            for reserved in &self.ipam.config.reserved {
                assert!(!overlap(*cidr, *reserved), "{peer} has {cidr}, in {reserved}");
            }
        }
    }

    /// The translated CIDRs of all peers.
    fn cidrs(&self) -> Vec<(ClusterId, Cidr)> {
        let mut cidrs = Vec::new();
        for (cluster, subnets) in &self.ipam.clusters {
            cidrs.extend(subnets.translated_pod_cidr().map(|cidr| (cluster.clone(), cidr)));
            cidrs.extend(subnets.translated_external_cidr().map(|cidr| (cluster.clone(), cidr)));
        }
        cidrs
    }
}

/// No mapped endpoint is in a released CIDR, unless it is in the CIDR of a current peer.
pub(super) fn no_endpoint_in_freed_cidr(ipam: &IpamState, freed: &[Cidr]) {
    for (of, _) in answers(ipam) {
        let is_freed = freed.iter().any(|cidr| cidr.net().contains(&of.1));
        assert!(!is_freed || ipam.is_of_peer(of.1), "{of:?} of a former peer is mapped");
    }
}

impl Kind {
    fn config(self, reserved: Vec<Cidr>) -> Config {
        let all = |networks: Vec<Cidr>| networks.into_iter().map(|it| self.network(it)).collect();
        let config = config();
        Config {
            pod_cidr: self.network(config.pod_cidr),
            service_cidr: self.network(config.service_cidr),
            pools: all(config.pools.into_iter().filter(|it| it.net().addr().is_ipv4()).collect()),
            reserved: all(reserved),
            external_prefix: self.external_prefix,
        }
    }

    fn nat(self, nat: NatCidr) -> NatCidr {
        match nat {
            NatCidr::None => NatCidr::None,
            NatCidr::Remapped(network) => NatCidr::Remapped(self.network(network)),
        }
    }

    fn network(self, network: Cidr) -> Cidr {
        let IpNet::V4(net) = network.net() else { panic!("{network}") };
        let prefix = if self.is_v6 { net.prefix_len() + 96 } else { net.prefix_len() };
        IpNet::new(self.ip(net.network()), prefix).unwrap().try_into().unwrap()
    }

    fn ip(self, ip: Ipv4Addr) -> IpAddr {
        match self.is_v6 {
            true => std::net::Ipv6Addr::from(V6 | u128::from(u32::from(ip))).into(),
            false => ip.into(),
        }
    }
}

fn peer(n: u8) -> ClusterId {
    id(&format!("peer-{n}"))
}
