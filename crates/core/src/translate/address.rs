//! Real, translated and external addresses.

use std::{fmt, net::IpAddr};

/// An address as used in its own cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealIp(pub IpAddr);

/// An address as used in the other cluster of a peering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TranslatedIp(pub IpAddr);

/// An address of this cluster's ExternalCIDR, allocated to an endpoint that is not one of its pods.
/// Only other clusters use it, translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExternalIp(pub IpAddr);

impl ExternalIp {
    /// The same address, as a real address of this cluster.
    pub fn real(self) -> RealIp {
        RealIp(self.0)
    }
}

impl fmt::Display for RealIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for TranslatedIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
