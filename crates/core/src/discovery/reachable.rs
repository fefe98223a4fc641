//! Selects the address at which an announced cluster is reached.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::interfaces::{is_host_address, is_link_local};

/// Whether an announced address is usable in a URL: a host address, and no link-local IPv6 address,
/// which needs a zone.
pub(super) fn is_usable(address: IpAddr) -> bool {
    is_host_address(address) && !(address.is_ipv6() && is_link_local(address))
}

/// The best of the announced addresses: one in a network of this node first, IPv4 before IPv6.
/// Addresses of this node itself are skipped.
pub fn best_address(announced: &BTreeSet<IpAddr>, ours: &[IpNet]) -> Option<IpAddr> {
    let is_own = |address: &IpAddr| ours.iter().any(|net| net.addr() == *address);
    let rank = |address: &IpAddr| {
        let is_far = !ours.iter().any(|net| net.contains(address));
        (is_far, is_link_local(*address), *address)
    };
    announced.iter().copied().filter(|it| is_usable(*it) && !is_own(it)).min_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_a_local_network_comes_first() {
        let ours = ["192.0.2.1/24", "198.51.100.1/24", "2001:db8::1/64"];
        let ours = ours.map(|text| text.parse().unwrap());
        for (announced, best) in [
            (&["10.0.0.5", "192.0.2.5"][..], Some("192.0.2.5")),
            (&["10.0.0.5", "2001:db8::5"], Some("2001:db8::5")),
            (&["2001:db8::5", "198.51.100.5", "192.0.2.5"], Some("192.0.2.5")),
            (&["2001:db8:1::5", "10.0.0.5"], Some("10.0.0.5")),
            (&["2001:db8:1::5"], Some("2001:db8:1::5")),
            (&["169.254.3.3", "10.0.0.5"], Some("10.0.0.5")),
            (&["169.254.3.3", "fe80::5"], Some("169.254.3.3")),
            (&["fe80::5"], None),
            (&["192.0.2.1", "10.0.0.5"], Some("10.0.0.5")),
            (&["192.0.2.1"], None),
            (&["127.0.0.1", "::1", "0.0.0.0", "::", "224.0.0.251", "255.255.255.255"], None),
        ] {
            let announced = announced.iter().map(|text| text.parse().unwrap()).collect();
            let best = best.map(|text| text.parse().unwrap());
            assert_eq!(best_address(&announced, &ours), best, "{announced:?}");
        }
    }
}
