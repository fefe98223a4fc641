//! The gateway of this cluster, as announced in its Lease.

use std::{collections::BTreeMap, net::IpAddr};

use tombolo_api::{
    names::{GATEWAY_ENDPOINT_ANNOTATION, GATEWAY_PORT_ANNOTATION, GATEWAY_PUBLIC_KEY_ANNOTATION},
    net::{BACKEND_PORT, BACKEND_PUBLIC_KEY},
};

/// The endpoint of a gateway for other clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its public address.
    pub endpoint_ip: IpAddr,
    /// Its UDP port.
    pub port: u16,
    /// Its WireGuard public key, in base64.
    pub public_key: String,
}

impl Gateway {
    /// Reads the annotations of the gateway's Lease. `None` if one is missing or invalid.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        Some(Self {
            endpoint_ip: annotations.get(GATEWAY_ENDPOINT_ANNOTATION)?.parse().ok()?,
            port: annotations.get(GATEWAY_PORT_ANNOTATION)?.parse().ok()?,
            public_key: annotations.get(GATEWAY_PUBLIC_KEY_ANNOTATION)?.clone(),
        })
    }

    /// `backend_config` of a NetworkConfig.
    pub(super) fn backend_config(&self) -> BTreeMap<String, String> {
        [
            (BACKEND_PUBLIC_KEY.to_owned(), self.public_key.clone()),
            (BACKEND_PORT.to_owned(), self.port.to_string()),
        ]
        .into()
    }
}
