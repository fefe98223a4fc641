//! A network and what the other side calls it: the two have the same size and family, so that each
//! address of the one has exactly one in the other, with the same host part.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use tombolo_api::{Cidr, NatCidr};

use super::{RealIp, TranslatedIp};

/// A network, and what the cluster on the other side calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedNetwork {
    real: Cidr,
    name: Cidr,
}

/// Two networks of different sizes or families: an address of the one has none in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{real} can't be called {name}: a prefix of {} is no prefix of {}, and addresses would lose \
     their host part",
    Prefix(*real),
    Prefix(*name)
)]
pub struct Mismatch {
    /// The network.
    pub real: Cidr,
    /// What it should be called.
    pub name: Cidr,
}

/// An address that is not in the network to map it from.
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
    /// The networks don't fit.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The address is elsewhere.
    #[error(transparent)]
    NotInNetwork(#[from] NotInNetwork),
}

impl NamedNetwork {
    /// A network and its name, if every address of the one has exactly one in the other.
    pub fn new(real: Cidr, name: Cidr) -> Result<Self, Mismatch> {
        if same_size(real, name) { Ok(Self { real, name }) } else { Err(Mismatch { real, name }) }
    }

    /// A network and the name that a status has for it.
    pub fn from_nat(real: Cidr, nat: NatCidr) -> Result<Self, Mismatch> {
        Self::new(real, nat.or(real))
    }

    /// The network as its own cluster calls it.
    pub fn real(self) -> Cidr {
        self.real
    }

    /// The network as the other cluster calls it.
    pub fn name(self) -> Cidr {
        self.name
    }

    /// Whether the two are different.
    pub fn is_renamed(self) -> bool {
        self.real != self.name
    }

    /// What the other cluster calls an address of this network.
    pub fn translate(self, ip: RealIp) -> Result<TranslatedIp, NotInNetwork> {
        map(ip.0, self.real, self.name).map(TranslatedIp)
    }

    /// The address that the other cluster calls `ip`.
    pub fn back(self, ip: TranslatedIp) -> Result<RealIp, NotInNetwork> {
        map(ip.0, self.name, self.real).map(RealIp)
    }
}

/// The address with the host part of `ip`, which is in `from`, in the network `to`.
pub fn map_ip_to_network(ip: IpAddr, from: Cidr, to: Cidr) -> Result<IpAddr, TranslateError> {
    Ok(NamedNetwork::new(from, to)?.translate(RealIp(ip))?.0)
}

/// The first address of a network that a host can have: not that of the network itself, which in
/// IPv6 is any router's. Networks of one or two addresses have none but hosts'.
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

/// How a status says that `real` is called `name`.
pub fn nat(real: Cidr, name: Cidr) -> NatCidr {
    if real == name { NatCidr::None } else { NatCidr::Remapped(name) }
}

/// The two networks have the same size.
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
        write!(f, "{} bits of {family}", self.0.net().prefix_len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::strategies::{cidr, host_bits, in_network, ip, network, with_same_size};
    use super::*;

    #[test]
    fn a_network_keeps_its_own_name() {
        let network = NamedNetwork::new(cidr("10.0.0.0/16"), cidr("10.0.0.0/16")).unwrap();
        assert!(!network.is_renamed());
        assert_eq!(network.translate(RealIp(ip("10.0.3.7"))), Ok(TranslatedIp(ip("10.0.3.7"))));
        assert_eq!(nat(network.real(), network.name()), NatCidr::None);
    }

    #[test]
    fn a_network_has_another_name() {
        let network = NamedNetwork::new(cidr("10.0.0.0/16"), cidr("10.8.0.0/16")).unwrap();
        assert!(network.is_renamed());
        assert_eq!(network.translate(RealIp(ip("10.0.3.7"))), Ok(TranslatedIp(ip("10.8.3.7"))));
        assert_eq!(network.back(TranslatedIp(ip("10.8.3.7"))), Ok(RealIp(ip("10.0.3.7"))));
        assert_eq!(nat(network.real(), network.name()), "10.8.0.0/16".parse().unwrap());
    }

    #[test]
    fn a_name_of_another_size_is_an_error_that_says_so() {
        let error = NamedNetwork::new(cidr("10.0.0.0/16"), cidr("10.8.0.0/15")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.0.0.0/16 can't be called 10.8.0.0/15: a prefix of 16 bits of IPv4 is no prefix of \
             15 bits of IPv4, and addresses would lose their host part"
        );
    }

    #[test]
    fn a_name_of_another_family_is_an_error_that_says_so() {
        let error = NamedNetwork::new(cidr("10.0.0.0/16"), cidr("fd00::/16")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "10.0.0.0/16 can't be called fd00::/16: a prefix of 16 bits of IPv4 is no prefix of \
             16 bits of IPv6, and addresses would lose their host part"
        );
    }

    #[test]
    fn an_address_of_elsewhere_is_an_error_that_names_it() {
        let network = NamedNetwork::new(cidr("10.0.0.0/16"), cidr("10.8.0.0/16")).unwrap();
        assert_eq!(
            network.translate(RealIp(ip("10.8.0.1"))).unwrap_err().to_string(),
            "10.8.0.1 is not in the network 10.0.0.0/16, so it can't be mapped to 10.8.0.0/16"
        );
        assert_eq!(
            network.back(TranslatedIp(ip("fd00::1"))).unwrap_err().to_string(),
            "fd00::1 is not in the network 10.8.0.0/16, so it can't be mapped to 10.0.0.0/16"
        );
    }

    #[test]
    fn mapping_to_a_network_fails_for_either_reason() {
        let map = |from: &str, to: &str| {
            map_ip_to_network(ip("10.0.0.5"), cidr(from), cidr(to)).map_err(|it| it.to_string())
        };
        assert_eq!(map("10.0.0.0/24", "10.1.2.0/24"), Ok(ip("10.1.2.5")));
        let error = Mismatch { real: cidr("10.0.0.0/16"), name: cidr("10.1.0.0/17") };
        assert_eq!(map("10.0.0.0/16", "10.1.0.0/17"), Err(error.to_string()));
        let (from, to) = (cidr("10.1.0.0/16"), cidr("10.2.0.0/16"));
        let error = NotInNetwork { ip: ip("10.0.0.5"), from, to };
        assert_eq!(map("10.1.0.0/16", "10.2.0.0/16"), Err(error.to_string()));
    }

    #[test]
    fn the_first_host_is_not_the_network_itself_where_there_are_others() {
        for (network, first) in
            [("10.0.0.0/16", "10.0.0.1"), ("10.0.0.4/31", "10.0.0.4"), ("10.0.0.5/32", "10.0.0.5")]
        {
            assert_eq!(first_host(cidr(network)), ip(first));
        }
    }

    proptest! {
        #[test]
        fn an_address_comes_back_with_its_host_part(
            (real, name, host) in network().prop_flat_map(|real| {
                (Just(real), with_same_size(real), any::<u128>())
            }),
        ) {
            let network = NamedNetwork::new(real, name).unwrap();
            let address = RealIp(in_network(real, host));
            let there = network.translate(address).unwrap();
            prop_assert!(name.net().contains(&there.0));
            prop_assert_eq!(host_bits(name, there.0), host_bits(real, address.0));
            prop_assert_eq!(network.back(there), Ok(address));
            prop_assert_eq!(map_ip_to_network(address.0, real, name), Ok(there.0));
        }

        #[test]
        fn different_sizes_or_families_never_pass(real in network(), name in network()) {
            let same = real.net().prefix_len() == name.net().prefix_len()
                && real.net().network().is_ipv4() == name.net().network().is_ipv4();
            match NamedNetwork::new(real, name) {
                Ok(_) => prop_assert!(same),
                Err(error) => {
                    prop_assert!(!same);
                    let text = error.to_string();
                    for part in [real.to_string(), name.to_string()] {
                        prop_assert!(text.contains(&part));
                    }
                    for length in [real.net().prefix_len(), name.net().prefix_len()] {
                        let part = format!("{length} bits");
                        prop_assert!(text.contains(&part));
                    }
                }
            }
        }

        #[test]
        fn only_addresses_of_the_network_are_translated(real in network(), name in network(), host: u128) {
            let address = in_network(name, host);
            let network = NamedNetwork::new(real, real).unwrap();
            prop_assert_eq!(
                network.translate(RealIp(address)).is_ok(),
                real.net().contains(&address)
            );
        }
    }
}
