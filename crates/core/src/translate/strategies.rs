//! Random networks and addresses of both families and all sizes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::prelude::*;
use tombolo_api::Cidr;

use super::{CidrTranslation, Networks};

/// The networks of two clusters as each of them sees them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peering {
    pub(super) here: Networks,
    pub(super) there: Networks,
}

/// The clusters that translate the CIDRs of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TranslatedBy {
    Neither,
    Here,
    There,
    Both,
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

/// This cluster and its peer have the same CIDRs, and translate them differently.
pub(super) fn networks() -> Networks {
    let translation =
        |real: &str, translated: &str| CidrTranslation::new(cidr(real), cidr(translated)).unwrap();
    Networks {
        local_pods: translation("10.0.0.0/16", "10.80.0.0/16"),
        local_external: translation("10.1.0.0/16", "10.81.0.0/16"),
        remote_pods: translation("10.0.0.0/16", "10.2.0.0/16"),
        remote_external: translation("10.1.0.0/16", "10.3.0.0/16"),
    }
}

/// Any network.
pub(super) fn network() -> impl Strategy<Value = Cidr> {
    (any::<bool>(), any::<u128>(), 0_u8..=128).prop_map(|(v6, bits, length)| {
        let length = if v6 { length } else { length % 33 };
        of(v6, bits, length)
    })
}

/// Any network of the size and family of another.
pub(super) fn with_same_size(other: Cidr) -> impl Strategy<Value = Cidr> {
    any::<u128>().prop_map(move |bits| of(is_v6(other), bits, other.net().prefix_len()))
}

/// The address of a network with the host part of `bits`.
pub(super) fn in_network(network: Cidr, bits: u128) -> IpAddr {
    match network.net() {
        IpNet::V4(net) => {
            let host = bits as u32 & u32::from(net.hostmask());
            Ipv4Addr::from(u32::from(net.network()) | host).into()
        }
        IpNet::V6(net) => {
            let host = bits & u128::from(net.hostmask());
            Ipv6Addr::from(u128::from(net.network()) | host).into()
        }
    }
}

/// The host part of an address.
pub(super) fn host_bits(network: Cidr, ip: IpAddr) -> u128 {
    match (network.net(), ip) {
        (IpNet::V4(net), IpAddr::V4(ip)) => (u32::from(ip) & u32::from(net.hostmask())).into(),
        (IpNet::V6(net), IpAddr::V6(ip)) => u128::from(ip) & u128::from(net.hostmask()),
        _ => panic!("{ip} is of another family than {network}"),
    }
}

/// Any peering, whichever cluster translates.
pub(super) fn peering() -> impl Strategy<Value = Peering> {
    let by = [TranslatedBy::Neither, TranslatedBy::Here, TranslatedBy::There, TranslatedBy::Both];
    proptest::sample::select(by.to_vec()).prop_flat_map(peering_with)
}

/// Any peering in which these clusters translate. In each cluster, its own CIDRs and the translated
/// CIDRs of the other one do not overlap.
pub(super) fn peering_with(by: TranslatedBy) -> impl Strategy<Value = Peering> {
    let quarters = || Just([0, 1, 2, 3]).prop_shuffle();
    let lengths = [2_u8..=128, 2..=128, 2..=128, 2..=128];
    (any::<bool>(), lengths, [quarters(), quarters()], any::<[u128; 8]>()).prop_map(
        move |(v6, lengths, [quarters, others], bits)| {
            // One of four quarters of all addresses for each network of a cluster.
            let net = |quarter: u8, bits: u128, length: u8| {
                let length = if v6 { length } else { 2 + length % 31 };
                of(v6, (bits >> 2) | (u128::from(quarter) << 126), length)
            };
            let [a, b, c, d] = quarters;
            // Where both translate, the real CIDRs of the two are independent.
            let [e, f, g, h] = if by == TranslatedBy::Both { others } else { [c, d, a, b] };
            let [pods, external, their_pods, their_external] = lengths;
            let real = [
                net(a, bits[0], pods),
                net(b, bits[1], external),
                net(e, bits[2], their_pods),
                net(f, bits[3], their_external),
            ];
            let mut translated = real;
            if matches!(by, TranslatedBy::Here | TranslatedBy::Both) {
                translated[2] = net(c, bits[4], their_pods);
                translated[3] = net(d, bits[5], their_external);
            }
            if matches!(by, TranslatedBy::There | TranslatedBy::Both) {
                translated[0] = net(g, bits[6], pods);
                translated[1] = net(h, bits[7], external);
            }
            let [pods, external, their_pods, their_external] =
                [0, 1, 2, 3].map(|n| CidrTranslation::new(real[n], translated[n]).unwrap());
            peering_of([pods, external], [their_pods, their_external])
        },
    )
}

/// The peering of two clusters with these pods' and external networks.
pub(super) fn peering_of(here: [CidrTranslation; 2], there: [CidrTranslation; 2]) -> Peering {
    let seen = |local: [CidrTranslation; 2], remote: [CidrTranslation; 2]| Networks {
        local_pods: local[0],
        local_external: local[1],
        remote_pods: remote[0],
        remote_external: remote[1],
    };
    Peering { here: seen(here, there), there: seen(there, here) }
}

fn of(v6: bool, bits: u128, length: u8) -> Cidr {
    let address = if v6 {
        IpAddr::from(Ipv6Addr::from(bits))
    } else {
        IpAddr::from(Ipv4Addr::from((bits >> 96) as u32))
    };
    Cidr::try_from(IpNet::new(address, length).unwrap().trunc()).unwrap()
}

fn is_v6(network: Cidr) -> bool {
    network.net().network().is_ipv6()
}
