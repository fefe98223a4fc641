//! Addresses, by who calls them so.

use std::{fmt, net::IpAddr};

/// An address as the cluster that it belongs to calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealIp(pub IpAddr);

/// An address as the cluster on the other side calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TranslatedIp(pub IpAddr);

/// An address of this cluster's own external network, which stands for an endpoint that is no pod
/// of it. Only other clusters use it, by their name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExternalIp(pub IpAddr);

impl ExternalIp {
    /// The same address, as one of this cluster's.
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
