//! The rule of address translation: each cluster rewrites only its own addresses. In the tunnel,
//! the destination is translated as in the sending cluster, and the source as in the receiving
//! cluster. The rules for a peer match its translated CIDRs in this cluster.

use std::{collections::BTreeMap, net::IpAddr};

use tombolo_api::Cidr;

use super::{CidrTranslation, Networks, RealIp, TranslatedIp};

/// Endpoints of this cluster that are not pods, by their address in the peer.
pub type Mappings = BTreeMap<TranslatedIp, IpAddr>;

/// How this cluster rewrites the addresses of packets to and from one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrites {
    /// The peer's translated CIDRs in this cluster: destinations of packets to the peer, sources of
    /// packets from it.
    pub peer: [Cidr; 2],
    /// This cluster's translated CIDRs in the peer: sources of packets to it.
    pub own: [Cidr; 2],
    /// Rules for the source of outgoing packets. The first match applies.
    pub leaving: [Source; 2],
    /// Rules for the destination of incoming packets. The first match applies. Packets without a
    /// match are rejected: in the ExternalCIDR only mapped addresses are reachable.
    pub arriving: [Destination; 3],
}

/// The rule for a source of packets to the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A pod's address is translated to its CIDR in the peer.
    Pod(CidrTranslation),
    /// Any other address becomes the gateway's address in the peer.
    Other(TranslatedIp),
}

/// The rule for a destination of packets from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A mapped address becomes the address of its endpoint.
    Mapped,
    /// The gateway's own address, where it answers probes.
    Gateway(TranslatedIp),
    /// A pod's translated address becomes its real address.
    Pod(CidrTranslation),
}

/// The addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source.
    pub source: IpAddr,
    /// The destination.
    pub destination: IpAddr,
}

/// How an incoming packet is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It is forwarded with these addresses.
    Passes(Packet),
    /// It is for the gateway itself.
    ForGateway,
}

impl Rewrites {
    /// The rewrites for the peer with these networks.
    pub fn of(networks: &Networks) -> Self {
        let Networks { local_pods, local_external, remote_pods, remote_external } = networks;
        let gateway = networks.local_gateway_ip_at_peer();
        Self {
            peer: [remote_pods.translated(), remote_external.translated()],
            own: [local_pods.translated(), local_external.translated()],
            leaving: [Source::Pod(*local_pods), Source::Other(gateway)],
            arriving: [
                Destination::Mapped,
                Destination::Gateway(gateway),
                Destination::Pod(*local_pods),
            ],
        }
    }

    /// Whether an address is in one of the peer's translated CIDRs.
    pub fn is_of_peer(&self, ip: IpAddr) -> bool {
        self.peer.iter().any(|cidr| cidr.net().contains(&ip))
    }

    /// Rewrites a packet to the peer. `None` if its destination is not in the peer.
    pub fn leave(&self, packet: Packet) -> Option<Packet> {
        if !self.is_of_peer(packet.destination) {
            return None;
        }
        let source = self.leaving.iter().find_map(|rewrite| rewrite.apply(packet.source))?;
        Some(Packet { source, ..packet })
    }

    /// Rewrites a packet from the peer. `None` if it is rejected, or its source is not in the peer.
    pub fn arrive(&self, packet: Packet, mappings: &Mappings) -> Option<Arrival> {
        if !self.is_of_peer(packet.source) {
            return None;
        }
        self.arriving.iter().find_map(|rewrite| rewrite.apply(packet, mappings))
    }
}

impl Source {
    fn apply(self, source: IpAddr) -> Option<IpAddr> {
        match self {
            Self::Pod(pods) => pods.translate(RealIp(source)).ok().map(|translated| translated.0),
            Self::Other(gateway) => Some(gateway.0),
        }
    }
}

impl Destination {
    fn apply(self, packet: Packet, mappings: &Mappings) -> Option<Arrival> {
        let translated = TranslatedIp(packet.destination);
        let destination = match self {
            Self::Mapped => *mappings.get(&translated)?,
            Self::Gateway(gateway) => {
                return (translated == gateway).then_some(Arrival::ForGateway);
            }
            Self::Pod(pods) => pods.reverse(translated).ok()?.0,
        };
        Some(Arrival::Passes(Packet { destination, ..packet }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::strategies::{ip, networks};
    use super::*;

    fn packet(source: &str, destination: &str) -> Packet {
        Packet { source: ip(source), destination: ip(destination) }
    }

    fn arrive(source: &str, destination: &str) -> Option<Arrival> {
        let mappings = [("10.81.0.4", "192.0.2.9"), ("10.80.0.4", "192.0.2.9")];
        let mappings = mappings.map(|(mapped, own)| (TranslatedIp(ip(mapped)), ip(own)));
        Rewrites::of(&networks()).arrive(packet(source, destination), &mappings.into())
    }

    #[test]
    fn the_source_of_a_pod_is_translated() {
        let leave = |packet| Rewrites::of(&networks()).leave(packet);
        let pod = packet("10.0.7.7", "10.2.1.1");
        assert_eq!(leave(pod), Some(packet("10.80.7.7", "10.2.1.1")));
        let to_external = packet("10.0.7.7", "10.3.0.4");
        assert_eq!(leave(to_external), Some(packet("10.80.7.7", "10.3.0.4")));
    }

    #[test]
    fn other_sources_become_the_gateway() {
        let leave = |packet| Rewrites::of(&networks()).leave(packet);
        for other in ["192.0.2.9", "10.1.0.4", "10.2.0.4", "241.0.0.7"] {
            assert_eq!(leave(packet(other, "10.2.1.1")), Some(packet("10.81.0.1", "10.2.1.1")));
        }
    }

    #[test]
    fn packets_to_other_destinations_do_not_leave() {
        let leave = |packet| Rewrites::of(&networks()).leave(packet);
        for elsewhere in ["10.0.1.1", "10.80.1.1", "192.0.2.9"] {
            assert_eq!(leave(packet("10.0.7.7", elsewhere)), None);
        }
    }

    #[test]
    fn the_translated_destination_of_a_pod_is_reversed() {
        let passes = Arrival::Passes(packet("10.2.1.1", "10.0.7.7"));
        assert_eq!(arrive("10.2.1.1", "10.80.7.7"), Some(passes));
    }

    #[test]
    fn mappings_come_before_cidrs() {
        let passes = Arrival::Passes(packet("10.2.1.1", "192.0.2.9"));
        assert_eq!(arrive("10.2.1.1", "10.81.0.4"), Some(passes));
        assert_eq!(arrive("10.2.1.1", "10.80.0.4"), Some(passes));
    }

    #[test]
    fn only_mapped_addresses_of_the_external_cidr_are_reachable() {
        assert_eq!(arrive("10.2.1.1", "10.81.0.5"), None);
        assert_eq!(arrive("10.2.1.1", "10.81.0.1"), Some(Arrival::ForGateway));
    }

    #[test]
    fn packets_from_other_sources_do_not_arrive() {
        for elsewhere in ["10.0.1.1", "10.80.1.1", "192.0.2.9"] {
            assert_eq!(arrive(elsewhere, "10.80.7.7"), None);
        }
    }
}
