//! Anything that may be asked for, in either family, in a large network or a small one, as time goes
//! by; and what must be so after each.

use std::net::Ipv4Addr;

use ipnet::IpNet;
use proptest::prelude::*;
use tombolo_api::NatCidr;

use super::{super::*, NOW, config, id, properties::answers};
use crate::translate::overlap;

/// An IPv6 world has the same networks and addresses, after this prefix.
const V6: u128 = 0xfd00 << 112;

/// Which world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    is_v6: bool,
    external_prefix: Option<u8>,
}

pub(super) fn kind() -> impl Strategy<Value = Kind> {
    let prefixes = prop::sample::select(vec![None, Some(28)]);
    (any::<bool>(), prefixes).prop_map(|(is_v6, external_prefix)| Kind { is_v6, external_prefix })
}

/// What is known, when, and what has been.
pub(super) struct World {
    pub(super) ipam: IpamState,
    pub(super) now: Timestamp,
    kind: Kind,
    /// When a peer lost a name.
    freed: Vec<(ClusterId, Cidr, Timestamp)>,
}

/// In numbers of IPv4, whatever the world.
#[derive(Clone, Debug)]
pub(super) enum Act {
    Reserve(u8, Cidr, Cidr),
    /// Also its answer is there.
    Join(u8, Cidr, Cidr),
    LocalNames(u8, NatCidr, NatCidr),
    Release(u8),
    Map(u8, Ipv4Addr),
    Unmap(u8, Ipv4Addr),
    Configure(Vec<Cidr>),
    Wake(usize),
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
    let name = || {
        (0_u8..=24, prop::sample::select(vec![16, 28])).prop_map(|(n, prefix)| match n {
            24 => NatCidr::None,
            n => format!("10.{n}.0.0/{prefix}").parse().unwrap(),
        })
    };
    let endpoint = || (0_u8..24, 0_u8..3).prop_map(|(n, host)| Ipv4Addr::from([10, n, 0, host]));
    prop_oneof![
        4 => (peer.clone(), network(), network()).prop_map(|(p, a, b)| Act::Reserve(p, a, b)),
        4 => (peer.clone(), network(), network()).prop_map(|(p, a, b)| Act::Join(p, a, b)),
        4 => (peer.clone(), name(), name()).prop_map(|(p, a, b)| Act::LocalNames(p, a, b)),
        2 => peer.clone().prop_map(Act::Release),
        24 => (peer.clone(), endpoint()).prop_map(|(p, ip)| Act::Map(p, ip)),
        4 => (peer, endpoint()).prop_map(|(p, ip)| Act::Unmap(p, ip)),
        2 => prop::collection::vec(network(), 0..3).prop_map(Act::Configure),
        1 => (0_usize..8).prop_map(Act::Wake),
        2 => (0_i64..200).prop_map(Act::Wait),
    ]
}

impl World {
    pub(super) fn new(kind: Kind) -> Self {
        let ipam = IpamState::load(kind.config(vec![]), &[], &[], NOW).unwrap();
        Self { ipam, now: NOW, kind, freed: Vec::new() }
    }

    /// Does it, and looks whether all is as it must be.
    pub(super) fn perform(&mut self, act: &Act) {
        match act {
            Act::Wait(seconds) => self.now += jiff::SignedDuration::from_secs(*seconds),
            act => self.perform_now(act),
        }
    }

    /// The same, in no time.
    pub(super) fn perform_now(&mut self, act: &Act) {
        let before = self.names();
        self.ask(act);
        let after = self.names();
        for (peer, name) in before.iter().filter(|named| !after.contains(named)) {
            self.freed.push((peer.clone(), *name, self.now));
        }
        for (peer, name) in after.iter().filter(|named| !before.contains(named)) {
            for (other, freed, when) in &self.freed {
                let rests = self.now.duration_since(*when) < REST;
                let is_theirs = other != peer && rests && overlap(*freed, *name);
                assert!(!is_theirs, "{peer} is called {name}; {other} was called {freed}");
            }
        }
        let freed = self.freed.iter().filter(|(.., when)| self.now.duration_since(*when) < REST);
        lead_to_nobody_who_is_gone(
            &self.ipam,
            &freed.map(|(_, name, _)| *name).collect::<Vec<_>>(),
        );
    }

    fn ask(&mut self, act: &Act) {
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
                    Err(_) => assert_eq!(*ipam, before, "exhaustion loses nothing"),
                }
            }
            Act::Join(n, pods, external) => {
                self.ask(&Act::Reserve(*n, *pods, *external));
                let _ = self.ipam.set_local_names(&peer(*n), NatCidr::None, NatCidr::None);
            }
            Act::LocalNames(n, pods, external) => {
                let _ = ipam.set_local_names(&peer(*n), kind.name(*pods), kind.name(*external));
            }
            Act::Release(n) => ipam.release(&peer(*n), now),
            Act::Map(n, ip) => {
                let (peer, ip) = (peer(*n), kind.ip(*ip));
                if let Ok(name) = ipam.map_endpoint(&peer, ip, now) {
                    assert_eq!(ipam.remote_pod_ip(&peer, ip), Ok(name));
                }
            }
            Act::Unmap(n, ip) => ipam.unmap_endpoint(&peer(*n), kind.ip(*ip), now),
            Act::Configure(reserved) => {
                let _ = ipam.configure(kind.config(reserved.clone()));
                // As the controller does for every peer that there is.
                for (cluster, subnets) in ipam.clusters.clone() {
                    let (pods, external) = (subnets.remote_pod_cidr, subnets.remote_external_cidr);
                    if self.ipam.reserve(&cluster, pods.unwrap(), external.unwrap(), now).is_ok() {
                        self.is_not_reserved(&cluster);
                    }
                }
            }
            Act::Wake(most) => ipam.wake(now, *most),
            Act::Wait(_) => {}
        }
    }

    fn is_not_reserved(&self, peer: &ClusterId) {
        for (_, name) in self.names().iter().filter(|(of, _)| of == peer) {
            for reserved in &self.ipam.config.reserved {
                assert!(!overlap(*name, *reserved), "{peer} is called {name}, in {reserved}");
            }
        }
    }

    /// What each peer's networks are called.
    fn names(&self) -> Vec<(ClusterId, Cidr)> {
        let mut names = Vec::new();
        for (cluster, subnets) in &self.ipam.clusters {
            names.extend(subnets.translated_pod_cidr().map(|name| (cluster.clone(), name)));
            names.extend(subnets.translated_external_cidr().map(|name| (cluster.clone(), name)));
        }
        names
    }
}

/// No endpoint is in a name that was freed, unless a peer has it.
pub(super) fn lead_to_nobody_who_is_gone(ipam: &IpamState, freed: &[Cidr]) {
    for (of, _) in answers(ipam) {
        let is_freed = freed.iter().any(|name| name.net().contains(&of.1));
        assert!(!is_freed || ipam.is_of_peer(of.1), "{of:?} is mapped, and of a peer that is gone");
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

    fn name(self, name: NatCidr) -> NatCidr {
        match name {
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
