//! What an address is called on either side of a peering. Each cluster has a name for the other's
//! networks; the host part is kept. Types keep real, translated and external addresses apart.

mod address;
mod location;
mod named_network;
mod networks;
mod peers;
mod rewrite;

pub use self::{
    address::{ExternalIp, RealIp, TranslatedIp},
    location::{Location, Pod},
    named_network::{
        Mismatch, NamedNetwork, NotInNetwork, TranslateError, first_host, map_ip_to_network, nat,
        overlap, same_size,
    },
    networks::Networks,
    peers::PeerNetworks,
    rewrite::{Arrival, Destination, Mappings, Packet, Rewrites, Source},
};

#[cfg(test)]
mod strategies;
#[cfg(test)]
mod walks;
