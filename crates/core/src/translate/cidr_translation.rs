//! The translation of a CIDR to another one of the same prefix length and address family: an
//! address keeps its host part.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use tombolo_api::{Cidr, NatCidr};

use super::{RealIp, TranslatedIp};

/// The CIDR of a network in its own cluster, and its translated CIDR in the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CidrTranslation {
    real: Cidr,
    translated: Cidr,
}

/// Two CIDRs of different prefix lengths or address families.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{real} can't be translated to {translated}: {} and {} differ, so addresses would lose their \
     host part",
    Prefix(*real),
    Prefix(*translated)
)]
pub struct Mismatch {
    /// The CIDR in its own cluster.
    pub real: Cidr,
    /// The CIDR in the other cluster.
    pub translated: Cidr,
}

/// An address outside of the network to map it from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{ip} is not in the network {from}, so it can't be mapped to {to}")]
pub struct NotInNetwork {
    /// The address.
    pub ip: IpAddr,
    /// The network to map it from.
    pub from: Cidr,
    /// The network to map it to.
    pub to: Cidr,
}

/// An address that can't be mapped from one network to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// The networks differ in prefix length or family.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The address is in another network.
    #[error(transparent)]
    NotInNetwork(#[from] NotInNetwork),
}

impl CidrTranslation {
    /// Fails if prefix lengths or address families differ.
    pub fn new(real: Cidr, translated: Cidr) -> Result<Self, Mismatch> {
        match same_size(real, translated) {
            true => Ok(Self { real, translated }),
            false => Err(Mismatch { real, translated }),
        }
    }

    /// The translation of a CIDR by the NAT field of a status.
    pub fn from_nat(real: Cidr, nat: NatCidr) -> Result<Self, Mismatch> {
        Self::new(real, nat.or(real))
    }

    /// The CIDR in its own cluster.
    pub fn real(self) -> Cidr {
        self.real
    }

    /// The CIDR in the other cluster.
    pub fn translated(self) -> Cidr {
        self.translated
    }

    /// Whether the two are different.
    pub fn is_translated(self) -> bool {
        self.real != self.translated
    }

    /// The address in the other cluster.
    pub fn translate(self, ip: RealIp) -> Result<TranslatedIp, NotInNetwork> {
        map(ip.0, self.real, self.translated).map(TranslatedIp)
    }

    /// The address in its own cluster.
    pub fn reverse(self, ip: TranslatedIp) -> Result<RealIp, NotInNetwork> {
        map(ip.0, self.translated, self.real).map(RealIp)
    }
}

/// The address with the host part of `ip`, which is in `from`, in the network `to`.
pub fn map_ip_to_network(ip: IpAddr, from: Cidr, to: Cidr) -> Result<IpAddr, TranslateError> {
    Ok(CidrTranslation::new(from, to)?.translate(RealIp(ip))?.0)
}

/// The first host address of a network. The network address itself, in IPv6 the subnet-router
/// anycast address (RFC 4291), is none, except in networks of one or two addresses (RFC 3021, RFC
/// 6164).
pub fn first_host(network: Cidr) -> IpAddr {
    let net = network.net();
    let first = if net.max_prefix_len() - net.prefix_len() > 1 { 1 } else { 0 };
    match net.network() {
        IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip) + first).into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) + u128::from(first)).into(),
    }
}

/// Whether two networks overlap.
pub fn overlap(one: Cidr, other: Cidr) -> bool {
    one.net().contains(&other.net()) || other.net().contains(&one.net())
}

/// Whether two networks have the same size and family.
pub fn same_size(one: Cidr, other: Cidr) -> bool {
    one.net().max_prefix_len() == other.net().max_prefix_len()
        && one.net().prefix_len() == other.net().prefix_len()
}

/// The NAT field of a status for the translation of `real` to `translated`.
pub fn nat(real: Cidr, translated: Cidr) -> NatCidr {
    if real == translated { NatCidr::None } else { NatCidr::Remapped(translated) }
}

/// Maps between two networks of the same size.
fn map(ip: IpAddr, from: Cidr, to: Cidr) -> Result<IpAddr, NotInNetwork> {
    match (ip, from.net(), to.net()) {
        (IpAddr::V4(ip), IpNet::V4(net), IpNet::V4(other)) if net.contains(&ip) => {
            let host = u32::from(ip) & u32::from(net.hostmask());
            Ok(Ipv4Addr::from(u32::from(other.network()) | host).into())
        }
        (IpAddr::V6(ip), IpNet::V6(net), IpNet::V6(other)) if net.contains(&ip) => {
            let host = u128::from(ip) & u128::from(net.hostmask());
            Ok(Ipv6Addr::from(u128::from(other.network()) | host).into())
        }
        _ => Err(NotInNetwork { ip, from, to }),
    }
}

struct Prefix(Cidr);

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.0.net().network().is_ipv4() { "IPv4" } else { "IPv6" };
        write!(f, "a prefix of {} bits of {family}", self.0.net().prefix_len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::strategies::{cidr, host_bits, in_network, ip, network, with_same_size};
    use super::*;

    #[test]
    fn a_cidr_can_stay_the_same() {
        let network = CidrTranslation::new(cidr("10.0.0.0/16"), cidr("10.0.0.0/16")).unwrap();
        assert!(!network.is_translated());
        assert_eq!(network.translate(RealIp(ip("10.0.3.7"))), Ok(TranslatedIp(ip("10.0.3.7"))));
        assert_eq!(nat(network.real(), network.translated()), NatCidr::None);
    }

    #[test]
    fn a_cidr_is_translated() {
        let network = CidrTranslation::new(cidr("10.0.0.0/16"), cidr("10.8.0.0/16")).unwrap();
        assert!(network.is_translated());
        assert_eq!(network.translate(RealIp(ip("10.0.3.7"))), Ok(TranslatedIp(ip("10.8.3.7"))));
        assert_eq!(network.reverse(TranslatedIp(ip("10.8.3.7"))), Ok(RealIp(ip("10.0.3.7"))));
        assert_eq!(nat(network.real(), network.translated()), "10.8.0.0/16".parse().unwrap());
    }

    #[test]
    fn a_different_prefix_length_is_an_error() {
        let error = CidrTranslation::new(cidr("10.0.0.0/16"), cidr("10.8.0.0/15")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.0.0.0/16 can't be translated to 10.8.0.0/15: a prefix of 16 bits of IPv4 and a \
             prefix of 15 bits of IPv4 differ, so addresses would lose their host part"
        );
    }

    #[test]
    fn a_different_address_family_is_an_error() {
        let error = CidrTranslation::new(cidr("10.0.0.0/16"), cidr("fd00::/16")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.0.0.0/16 can't be translated to fd00::/16: a prefix of 16 bits of IPv4 and a \
             prefix of 16 bits of IPv6 differ, so addresses would lose their host part"
        );
    }

    #[test]
    fn an_address_outside_of_the_network_is_an_error() {
        let network = CidrTranslation::new(cidr("10.0.0.0/16"), cidr("10.8.0.0/16")).unwrap();
        assert_eq!(
            network.translate(RealIp(ip("10.8.0.1"))).unwrap_err().to_string(),
            "10.8.0.1 is not in the network 10.0.0.0/16, so it can't be mapped to 10.8.0.0/16"
        );
        assert_eq!(
            network.reverse(TranslatedIp(ip("fd00::1"))).unwrap_err().to_string(),
            "fd00::1 is not in the network 10.8.0.0/16, so it can't be mapped to 10.0.0.0/16"
        );
    }

    #[test]
    fn mapping_to_a_network_fails_for_either_reason() {
        let map = |from: &str, to: &str| {
            map_ip_to_network(ip("10.0.0.5"), cidr(from), cidr(to)).map_err(|it| it.to_string())
        };
        assert_eq!(map("10.0.0.0/24", "10.1.2.0/24"), Ok(ip("10.1.2.5")));
        let error = Mismatch { real: cidr("10.0.0.0/16"), translated: cidr("10.1.0.0/17") };
        assert_eq!(map("10.0.0.0/16", "10.1.0.0/17"), Err(error.to_string()));
        let (from, to) = (cidr("10.1.0.0/16"), cidr("10.2.0.0/16"));
        let error = NotInNetwork { ip: ip("10.0.0.5"), from, to };
        assert_eq!(map("10.1.0.0/16", "10.2.0.0/16"), Err(error.to_string()));
    }

    #[test]
    fn the_first_host_is_the_network_address_only_in_the_smallest_networks() {
        for (network, first) in
            [("10.0.0.0/16", "10.0.0.1"), ("10.0.0.4/31", "10.0.0.4"), ("10.0.0.5/32", "10.0.0.5")]
        {
            assert_eq!(first_host(cidr(network)), ip(first));
        }
    }

    proptest! {
        #[test]
        fn translation_keeps_the_host_part_and_is_reversible(
            (real, translated, host) in network().prop_flat_map(|real| {
                (Just(real), with_same_size(real), any::<u128>())
            }),
        ) {
            let network = CidrTranslation::new(real, translated).unwrap();
            let address = RealIp(in_network(real, host));
            let there = network.translate(address).unwrap();
            prop_assert!(translated.net().contains(&there.0));
            prop_assert_eq!(host_bits(translated, there.0), host_bits(real, address.0));
            prop_assert_eq!(network.reverse(there), Ok(address));
            prop_assert_eq!(map_ip_to_network(address.0, real, translated), Ok(there.0));
        }

        #[test]
        fn different_sizes_or_families_are_refused(real in network(), translated in network()) {
            let same = real.net().prefix_len() == translated.net().prefix_len()
                && real.net().network().is_ipv4() == translated.net().network().is_ipv4();
            match CidrTranslation::new(real, translated) {
                Ok(_) => prop_assert!(same),
                Err(error) => {
                    prop_assert!(!same);
                    let text = error.to_string();
                    for part in [real.to_string(), translated.to_string()] {
                        prop_assert!(text.contains(&part));
                    }
                    for length in [real.net().prefix_len(), translated.net().prefix_len()] {
                        let part = format!("{length} bits");
                        prop_assert!(text.contains(&part));
                    }
                }
            }
        }

        #[test]
        fn only_addresses_of_the_network_are_translated(
            real in network(),
            other in network(),
            host: u128,
        ) {
            let address = in_network(other, host);
            let network = CidrTranslation::new(real, real).unwrap();
            prop_assert_eq!(
                network.translate(RealIp(address)).is_ok(),
                real.net().contains(&address)
            );
        }
    }
}
