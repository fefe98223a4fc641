//! The one rule by which addresses change between clusters: each cluster rewrites only its own. On
//! the wire the destination is the sender's name for the receiver, and the source the receiver's
//! name for the sender; the peer's rules are told by what this cluster calls it.

use std::{collections::BTreeMap, net::IpAddr};

use tombolo_api::Cidr;

use super::{NamedNetwork, Networks, RealIp, TranslatedIp};

/// Endpoints of this cluster that are no pods, by what the peer calls them.
pub type Mappings = BTreeMap<TranslatedIp, IpAddr>;

/// What this cluster does to the addresses of what it exchanges with one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrites {
    /// What this cluster calls the peer's networks. What has a destination there leaves for the
    /// peer; what has a source there arrives from it.
    pub peer: [Cidr; 2],
    /// What the peer calls this cluster's networks: sources of whatever leaves for it.
    pub own: [Cidr; 2],
    /// Sources of what leaves: the first that fits.
    pub leaving: [Source; 2],
    /// Destinations of what arrives: the first that fits. What fits none is rejected: the external
    /// network has no prefix, only mappings.
    pub arriving: [Destination; 3],
}

/// A source of what leaves for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A pod gets the prefix that the peer knows, and keeps its host part.
    Pod(NamedNetwork),
    /// Anything else becomes this cluster itself.
    Other(TranslatedIp),
}

/// A destination of what arrives from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An address with a mapping becomes the endpoint that it stands for.
    Mapped,
    /// This cluster itself is its gateway, which answers probes.
    Gateway(TranslatedIp),
    /// A pod gets its real prefix back, and keeps its host part.
    Pod(NamedNetwork),
}

/// The addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// From where.
    pub source: IpAddr,
    /// To where.
    pub destination: IpAddr,
}

/// What becomes of a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// It goes on like this.
    Passes(Packet),
    /// It is for the gateway.
    ForGateway,
}

impl Rewrites {
    /// The rewrites that this cluster makes for the peer with these networks.
    pub fn of(networks: &Networks) -> Self {
        let Networks { local_pods, local_external, remote_pods, remote_external } = networks;
        let itself = networks.their_name_for_self();
        Self {
            peer: [remote_pods.name(), remote_external.name()],
            own: [local_pods.name(), local_external.name()],
            leaving: [Source::Pod(*local_pods), Source::Other(itself)],
            arriving: [
                Destination::Mapped,
                Destination::Gateway(itself),
                Destination::Pod(*local_pods),
            ],
        }
    }

    /// Whether this cluster calls something of the peer so.
    pub fn is_of_peer(&self, ip: IpAddr) -> bool {
        self.peer.iter().any(|name| name.net().contains(&ip))
    }

    /// The packet as it leaves for the peer, if it is for it.
    pub fn leave(&self, packet: Packet) -> Option<Packet> {
        if !self.is_of_peer(packet.destination) {
            return None;
        }
        let source = self.leaving.iter().find_map(|rewrite| rewrite.apply(packet.source))?;
        Some(Packet { source, ..packet })
    }

    /// What becomes of a packet from the peer; nothing where it is rejected, or not from it.
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
            Self::Pod(pods) => pods.translate(RealIp(source)).ok().map(|name| name.0),
            Self::Other(itself) => Some(itself.0),
        }
    }
}

impl Destination {
    fn apply(self, packet: Packet, mappings: &Mappings) -> Option<Arrival> {
        let name = TranslatedIp(packet.destination);
        let destination = match self {
            Self::Mapped => *mappings.get(&name)?,
            Self::Gateway(itself) => return (name == itself).then_some(Arrival::ForGateway),
            Self::Pod(pods) => pods.back(name).ok()?.0,
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
        let mappings = mappings.map(|(name, own)| (TranslatedIp(ip(name)), ip(own)));
        Rewrites::of(&networks()).arrive(packet(source, destination), &mappings.into())
    }

    #[test]
    fn a_pod_leaves_by_the_peers_name_for_it() {
        let leave = |packet| Rewrites::of(&networks()).leave(packet);
        let pod = packet("10.0.7.7", "10.2.1.1");
        assert_eq!(leave(pod), Some(packet("10.80.7.7", "10.2.1.1")));
        let to_external = packet("10.0.7.7", "10.3.0.4");
        assert_eq!(leave(to_external), Some(packet("10.80.7.7", "10.3.0.4")));
    }

    #[test]
    fn what_is_no_pod_leaves_as_the_cluster_itself() {
        let leave = |packet| Rewrites::of(&networks()).leave(packet);
        for other in ["192.0.2.9", "10.1.0.4", "10.2.0.4", "241.0.0.7"] {
            assert_eq!(leave(packet(other, "10.2.1.1")), Some(packet("10.81.0.1", "10.2.1.1")));
        }
    }

    #[test]
    fn what_is_not_for_the_peer_does_not_leave() {
        let leave = |packet| Rewrites::of(&networks()).leave(packet);
        for elsewhere in ["10.0.1.1", "10.80.1.1", "192.0.2.9"] {
            assert_eq!(leave(packet("10.0.7.7", elsewhere)), None);
        }
    }

    #[test]
    fn a_pod_is_reached_by_the_peers_name_for_it() {
        let passes = Arrival::Passes(packet("10.2.1.1", "10.0.7.7"));
        assert_eq!(arrive("10.2.1.1", "10.80.7.7"), Some(passes));
    }

    #[test]
    fn mappings_come_before_prefixes() {
        let passes = Arrival::Passes(packet("10.2.1.1", "192.0.2.9"));
        assert_eq!(arrive("10.2.1.1", "10.81.0.4"), Some(passes));
        assert_eq!(arrive("10.2.1.1", "10.80.0.4"), Some(passes));
    }

    #[test]
    fn the_external_network_has_no_prefix() {
        assert_eq!(arrive("10.2.1.1", "10.81.0.5"), None);
        assert_eq!(arrive("10.2.1.1", "10.81.0.1"), Some(Arrival::ForGateway));
    }

    #[test]
    fn what_is_not_from_the_peer_does_not_arrive() {
        for elsewhere in ["10.0.1.1", "10.80.1.1", "192.0.2.9"] {
            assert_eq!(arrive(elsewhere, "10.80.7.7"), None);
        }
    }
}
