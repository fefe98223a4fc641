//! The peers of a gateway, from the TunnelEndpoints and NatMappings: which of them get a tunnel, and
//! which one owns a WireGuard public key.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kube::ResourceExt as _;
use tombolo_api::{
    ClusterId,
    names::GATEWAY_PORT,
    net::{BACKEND_PORT, BACKEND_PUBLIC_KEY, NatMapping, TunnelEndpoint},
};

use super::gateway::{Peer, PublicKey};
use crate::translate::{Mappings, Mismatch, Networks, TranslatedIp};

/// Why a TunnelEndpoint makes no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotYet {
    /// The networks are still being negotiated.
    #[error("the networks on both sides are not known yet")]
    Networks,
    /// The networks can't be right.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The other side's key is missing.
    #[error("spec.backend_config has no WireGuard public key")]
    PublicKey,
    /// The other side's port can't be read.
    #[error("spec.backend_config has a port that is no number from 1 to 65535")]
    Port,
    /// Another cluster had the key first, and keeps its tunnel.
    #[error("another cluster has the WireGuard public key of spec.backend_config already")]
    KeyTaken,
}

/// The peers that TunnelEndpoints are about, the oldest first. A key is the one's who had it first.
pub fn peers(
    mut endpoints: Vec<Arc<TunnelEndpoint>>,
    mappings: &[Arc<NatMapping>],
) -> Vec<(Arc<TunnelEndpoint>, Result<Peer, NotYet>)> {
    endpoints.retain(|endpoint| endpoint.metadata.deletion_timestamp.is_none());
    endpoints.sort_by_cached_key(|endpoint| {
        (endpoint.creation_timestamp(), endpoint.namespace(), endpoint.name_any())
    });
    let mut taken = BTreeSet::new();
    let with_peer = |endpoint: Arc<TunnelEndpoint>| {
        let peer = peer(&endpoint, mappings.iter().map(Arc::as_ref)).and_then(|peer| {
            if taken.insert(peer.public_key) { Ok(peer) } else { Err(NotYet::KeyTaken) }
        });
        (endpoint, peer)
    };
    endpoints.into_iter().map(with_peer).collect()
}

/// The peer that a TunnelEndpoint is about, with the mappings for it.
fn peer<'a>(
    endpoint: &TunnelEndpoint,
    mappings: impl IntoIterator<Item = &'a NatMapping>,
) -> Result<Peer, NotYet> {
    let networks = Networks::from_tunnel_endpoint(endpoint)?.ok_or(NotYet::Networks)?;
    let config = &endpoint.spec.backend_config;
    let key = config.get(BACKEND_PUBLIC_KEY).and_then(|key| BASE64_STANDARD.decode(key).ok());
    let key = key.and_then(|bytes| bytes.try_into().ok()).ok_or(NotYet::PublicKey)?;
    let port = match config.get(BACKEND_PORT) {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(NotYet::Port)?,
        None => GATEWAY_PORT,
    };
    Ok(Peer {
        networks,
        endpoint: SocketAddr::new(endpoint.spec.endpoint_ip, port),
        public_key: PublicKey(key),
        mappings: of_peer(&endpoint.spec.cluster_id, mappings),
    })
}

/// By the address that the peer uses.
fn of_peer<'a>(id: &ClusterId, mappings: impl IntoIterator<Item = &'a NatMapping>) -> Mappings {
    let ours = mappings.into_iter().filter(|mapping| mapping.spec.cluster_id == *id);
    ours.flat_map(|mapping| &mapping.spec.cluster_mappings)
        .map(|(&own, &name)| (TranslatedIp(name), own))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoint(config: &serde_json::Value) -> TunnelEndpoint {
        serde_json::from_value(json!({
            "apiVersion": "net.liqo.io/v1alpha1",
            "kind": "TunnelEndpoint",
            "metadata": { "name": "milan" },
            "spec": {
                "clusterID": "milan", "podCIDR": "10.244.0.0/16", "externalCIDR": "10.70.0.0/16",
                "endpointIP": "172.30.1.1", "backendType": "wireguard", "backend_config": config,
            },
            "status": {
                "localPodCIDR": "10.244.0.0/16", "localNATPodCIDR": "10.61.0.0/16",
                "remoteNATPodCIDR": "10.60.0.0/16", "localExternalCIDR": "10.70.0.0/16",
                "localNATExternalCIDR": "10.71.0.0/16", "remoteNATExternalCIDR": "10.81.0.0/16",
            },
        }))
        .unwrap()
    }

    fn mapping(cluster: &str) -> NatMapping {
        serde_json::from_value(json!({
            "apiVersion": "net.liqo.io/v1alpha1",
            "kind": "NatMapping",
            "metadata": { "name": cluster },
            "spec": { "clusterID": cluster, "clusterMappings": { "203.0.113.7": "10.71.0.9" } },
        }))
        .unwrap()
    }

    #[test]
    fn a_peer_has_the_mappings_that_are_for_it() {
        let key = BASE64_STANDARD.encode([7; 32]);
        let endpoint = endpoint(&json!({ "publicKey": key, "port": "1234" }));
        let peer = peer(&endpoint, [&mapping("milan"), &mapping("turin")]).unwrap();
        assert_eq!(peer.endpoint, SocketAddr::from(([172, 30, 1, 1], 1234)));
        assert_eq!(peer.public_key, PublicKey([7; 32]));
        let (name, own) = peer.mappings.into_iter().next().unwrap();
        assert_eq!((name.to_string(), own.to_string()), ("10.71.0.9".into(), "203.0.113.7".into()));
    }

    #[test]
    fn a_key_is_the_ones_who_had_it_first() {
        let key = |byte| json!({ "publicKey": BASE64_STANDARD.encode([byte; 32]) });
        let made = |cluster: &str, day: u8, config| {
            let mut made = endpoint(&config);
            made.metadata.name = Some(cluster.into());
            let time = format!("2026-01-{day:02}T00:00:00Z");
            made.metadata.creation_timestamp = serde_json::from_value(json!(time)).unwrap();
            made.spec.cluster_id = cluster.parse().unwrap();
            Arc::new(made)
        };
        let endpoints =
            vec![made("a-thief", 2, key(7)), made("milan", 1, key(7)), made("turin", 3, key(8))];
        let found: Vec<_> = peers(endpoints, &[])
            .into_iter()
            .map(|(endpoint, peer)| (endpoint.name_any(), peer.err()))
            .collect();
        let expected = [("milan", None), ("a-thief", Some(NotYet::KeyTaken)), ("turin", None)];
        assert_eq!(found, expected.map(|(name, error)| (name.to_owned(), error)));
    }

    #[test]
    fn networks_that_are_not_known_yet_or_cant_be_right_make_no_tunnel() {
        let full = endpoint(&json!({ "publicKey": BASE64_STANDARD.encode([7; 32]) }));
        let mut wrong = full.clone();
        wrong.status.as_mut().unwrap().remote_nat_pod_cidr = Some("10.60.0.0/15".parse().unwrap());
        assert_eq!(
            peer(&wrong, []).unwrap_err().to_string(),
            "10.244.0.0/16 can't be called 10.60.0.0/15: a prefix of 16 bits of IPv4 is no prefix \
             of 15 bits of IPv4, and addresses would lose their host part"
        );
        let unknown = TunnelEndpoint { status: None, ..full };
        assert_eq!(peer(&unknown, []), Err(NotYet::Networks));
    }

    #[test]
    fn without_a_key_there_is_no_tunnel() {
        assert_eq!(peer(&endpoint(&json!({})), []), Err(NotYet::PublicKey));
        let short = json!({ "publicKey": BASE64_STANDARD.encode([7; 31]) });
        assert_eq!(peer(&endpoint(&short), []), Err(NotYet::PublicKey));
        let port = json!({ "publicKey": BASE64_STANDARD.encode([7; 32]), "port": "0" });
        assert_eq!(peer(&endpoint(&port), []), Err(NotYet::Port));
    }
}
