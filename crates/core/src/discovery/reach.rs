//! At which of its addresses a cluster that was heard is reached.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;

use super::interfaces::{is_of_a_host, is_of_link};

/// Whether an announced address can be used: it is of another host, and means the same in a URL.
/// An IPv6 address of the link does not, as it needs the name of an interface beside it.
pub(super) fn is_usable(address: IpAddr) -> bool {
    is_of_a_host(address) && !(address.is_ipv6() && is_of_link(address))
}

/// The address to reach a cluster at, of those that it announces: one in a network that we are in
/// before others, IPv4 before IPv6. One that we have ourselves leads to us.
pub fn best_address(announced: &BTreeSet<IpAddr>, ours: &[IpNet]) -> Option<IpAddr> {
    let leads_to_us = |address: &IpAddr| ours.iter().any(|net| net.addr() == *address);
    let rank = |address: &IpAddr| {
        let is_far = !ours.iter().any(|net| net.contains(address));
        (is_far, is_of_link(*address), *address)
    };
    announced.iter().copied().filter(|it| is_usable(*it) && !leads_to_us(it)).min_by_key(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_in_a_network_of_ours_comes_first() {
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
