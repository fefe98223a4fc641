//! Where this cluster's gateway is, as it announces itself.

use std::{collections::BTreeMap, net::IpAddr};

use tombolo_api::{
    names::{GATEWAY_ENDPOINT_ANNOTATION, GATEWAY_PORT_ANNOTATION, GATEWAY_PUBLIC_KEY_ANNOTATION},
    net::{BACKEND_PORT, BACKEND_PUBLIC_KEY},
};

/// The gateway that other clusters reach.
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
    /// What the annotations of the gateway's Lease say, once they say everything.
    pub fn from_annotations(annotations: &BTreeMap<String, String>) -> Option<Self> {
        Some(Self {
            endpoint_ip: annotations.get(GATEWAY_ENDPOINT_ANNOTATION)?.parse().ok()?,
            port: annotations.get(GATEWAY_PORT_ANNOTATION)?.parse().ok()?,
            public_key: annotations.get(GATEWAY_PUBLIC_KEY_ANNOTATION)?.clone(),
        })
    }

    /// The same, for a NetworkConfig.
    pub(super) fn backend_config(&self) -> BTreeMap<String, String> {
        [
            (BACKEND_PUBLIC_KEY.to_owned(), self.public_key.clone()),
            (BACKEND_PORT.to_owned(), self.port.to_string()),
        ]
        .into()
    }
}
