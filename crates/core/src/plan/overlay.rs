//! Addresses in the overlay between a cluster's nodes. They are derived from the nodes' addresses,
//! so that none have to be allocated.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::Mac;

/// All addresses of the overlay.
pub const NETWORK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(240, 0, 0, 0), 8);

/// Network between the gateway and its node.
pub const GATEWAY_LINK: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(241, 0, 0, 0), 30);

/// The node's end of the [`GATEWAY_LINK`].
pub const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(241, 0, 0, 1);

/// The gateway's end of the [`GATEWAY_LINK`].
pub const GATEWAY_ADDRESS: Ipv4Addr = Ipv4Addr::new(241, 0, 0, 2);

/// Overlay address of the node with this address.
pub fn address(node: Ipv4Addr) -> Ipv4Addr {
    let [_, b, c, d] = node.octets();
    Ipv4Addr::new(240, b, c, d)
}

/// Overlay MAC address of the node with this address.
pub fn mac(node: Ipv4Addr) -> Mac {
    let [a, b, c, d] = node.octets();
    Mac([0x0a, 0x6c, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_addresses_follow_from_the_address_of_the_node() {
        let node = Ipv4Addr::new(172, 30, 4, 7);
        assert_eq!(address(node), Ipv4Addr::new(240, 30, 4, 7));
        assert_eq!(mac(node).to_string(), "0a:6c:ac:1e:04:07");
    }

    #[test]
    fn macs_are_local_and_unicast() {
        assert_eq!(mac(Ipv4Addr::BROADCAST).0[0] & 0b11, 0b10);
    }
}
