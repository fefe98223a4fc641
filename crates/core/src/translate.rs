//! Address translation between two peered clusters. Each cluster chooses translated CIDRs for the
//! networks of the other; the host part of an address is kept. Types keep real, translated and
//! external addresses apart.

mod address;
mod cidr_translation;
mod location;
mod networks;
mod peers;
mod rewrite;

pub use self::{
    address::{ExternalIp, RealIp, TranslatedIp},
    cidr_translation::{
        CidrTranslation, Mismatch, NotInNetwork, TranslateError, first_host, map_ip_to_network,
        nat, overlap, same_size,
    },
    location::{Location, Pod},
    networks::Networks,
    peers::PeerNetworks,
    rewrite::{Arrival, Destination, Mappings, Packet, Rewrites, Source},
};

#[cfg(test)]
mod strategies;
#[cfg(test)]
mod walks;
