//! The desired state of the data plane: plans of whole network namespaces. Drivers compare them
//! with the actual state; nothing here touches the kernel.

pub mod agent;
pub mod gateway;
pub mod network;
pub mod nft;
pub mod overlay;
pub mod peers;
pub mod probe;

pub use network::{Address, Fdb, Link, LinkKind, Mac, Namespace, Neighbour, Owned, Route, Rule};

/// Interface of the overlay, on every node.
pub const OVERLAY: &str = "liqo.vxlan";

/// Interface to the gateway, on the gateway's node.
pub const HOST: &str = "liqo.host";

/// Interface to the node, in the gateway's network namespace.
pub const GATEWAY: &str = "liqo.gateway";

/// Interface of the tunnels, in the gateway's network namespace.
pub const TUNNEL: &str = "liqo.tunnel";

/// Prefix of the names of all interfaces of the product.
pub const PREFIX: &str = "liqo.";

/// Network namespace of the gateway.
pub const GATEWAY_NETNS: &str = "liqo-gateway";

/// The nftables table, on the node and in the gateway's network namespace.
pub const NFT_TABLE: &str = "liqo";

/// UDP port of the overlay.
pub const VXLAN_PORT: u16 = 6472;

/// VXLAN network identifier of the overlay.
pub const VNI: u32 = 18952;

/// Routing table with the routes to peers; also the priority of the rules that select it.
pub const TO_PEERS: u32 = 18952;

/// Routing table for packets from the tunnels; also the priority of its rule.
pub const FROM_TUNNEL: u32 = 18953;

/// UDP port at which a gateway answers probes.
pub const PROBE_PORT: u16 = 18952;

const MAIN_TABLE: u32 = 254;

/// Bytes that VXLAN over IPv4 adds to a packet.
const VXLAN_OVERHEAD: u32 = 50;

/// Bytes that WireGuard over IPv6 adds to a packet; over IPv4 it is 20 less.
const TUNNEL_OVERHEAD: u32 = 80;

/// Upper limit of the MTU of tunnels, whatever the MTU of the node.
const MAX_TUNNEL_MTU: u32 = 4000;

/// MTU of the tunnels of a gateway on a node with this MTU.
pub fn tunnel_mtu(node_mtu: u32) -> u32 {
    node_mtu.saturating_sub(TUNNEL_OVERHEAD).min(MAX_TUNNEL_MTU)
}

fn v4(cidr: tombolo_api::Cidr) -> Option<ipnet::Ipv4Net> {
    match cidr.net() {
        ipnet::IpNet::V4(net) => Some(net),
        ipnet::IpNet::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use tombolo_api::{Cidr, ClusterId};

    use crate::translate::{CidrTranslation, Networks};

    /// Networks from `[real, translated]` PodCIDRs of this cluster and of the peer.
    pub(super) fn networks(local: [&str; 2], remote: [&str; 2]) -> Networks {
        let cidr = |text: &str| text.parse::<Cidr>().unwrap();
        let translation = |[real, translated]: [&str; 2]| {
            CidrTranslation::new(cidr(real), cidr(translated)).unwrap()
        };
        Networks {
            local_pods: translation(local),
            local_external: translation(["10.70.0.0/16", "10.71.0.0/16"]),
            remote_pods: translation(remote),
            remote_external: translation(["10.70.0.0/16", "10.81.0.0/16"]),
        }
    }

    /// A peer with the same PodCIDR.
    pub(super) fn milan() -> (ClusterId, Networks) {
        let pods = "10.244.0.0/16";
        ("milan".parse().unwrap(), networks([pods, "10.61.0.0/16"], [pods, "10.60.0.0/16"]))
    }
}
