//! The peers of a gateway, from TunnelEndpoints and NatMappings: which of them get a tunnel, and
//! which of them owns a WireGuard public key.

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

/// The reason why a TunnelEndpoint gets no tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoTunnel {
    /// The networks are still being negotiated.
    #[error("the networks of both clusters are not negotiated yet")]
    Networks,
    /// The translated CIDRs don't fit.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The public key of the peer is missing or invalid.
    #[error("spec.backend_config has no valid WireGuard public key")]
    PublicKey,
    /// The port of the peer is invalid.
    #[error("the port in spec.backend_config is not a number from 1 to 65535")]
    Port,
    /// An older TunnelEndpoint has the same public key, and keeps its tunnel.
    #[error("another cluster already uses the WireGuard public key in spec.backend_config")]
    KeyTaken,
}

/// The peers of TunnelEndpoints, oldest first. The oldest TunnelEndpoint with a key owns it.
pub fn peers(
    mut endpoints: Vec<Arc<TunnelEndpoint>>,
    mappings: &[Arc<NatMapping>],
) -> Vec<(Arc<TunnelEndpoint>, Result<Peer, NoTunnel>)> {
    endpoints.retain(|endpoint| endpoint.metadata.deletion_timestamp.is_none());
    endpoints.sort_by_cached_key(|endpoint| {
        (endpoint.creation_timestamp(), endpoint.namespace(), endpoint.name_any())
    });
    let mut taken = BTreeSet::new();
    let with_peer = |endpoint: Arc<TunnelEndpoint>| {
        let peer = peer(&endpoint, mappings.iter().map(Arc::as_ref)).and_then(|peer| {
            if taken.insert(peer.public_key) { Ok(peer) } else { Err(NoTunnel::KeyTaken) }
        });
        (endpoint, peer)
    };
    endpoints.into_iter().map(with_peer).collect()
}

/// The peer of a TunnelEndpoint, with its mappings.
fn peer<'a>(
    endpoint: &TunnelEndpoint,
    mappings: impl IntoIterator<Item = &'a NatMapping>,
) -> Result<Peer, NoTunnel> {
    let networks = Networks::from_tunnel_endpoint(endpoint)?.ok_or(NoTunnel::Networks)?;
    let config = &endpoint.spec.backend_config;
    let key = config.get(BACKEND_PUBLIC_KEY).and_then(|key| BASE64_STANDARD.decode(key).ok());
    let key = key.and_then(|bytes| bytes.try_into().ok()).ok_or(NoTunnel::PublicKey)?;
    let port = match config.get(BACKEND_PORT) {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or(NoTunnel::Port)?,
        None => GATEWAY_PORT,
    };
    Ok(Peer {
        networks,
        endpoint: SocketAddr::new(endpoint.spec.endpoint_ip, port),
        public_key: PublicKey(key),
        mappings: of_peer(&endpoint.spec.cluster_id, mappings),
    })
}

/// The mappings for a peer, by the translated address.
fn of_peer<'a>(id: &ClusterId, mappings: impl IntoIterator<Item = &'a NatMapping>) -> Mappings {
    let ours = mappings.into_iter().filter(|mapping| mapping.spec.cluster_id == *id);
    ours.flat_map(|mapping| &mapping.spec.cluster_mappings)
        .map(|(&own, &translated)| (TranslatedIp(translated), own))
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
    fn a_peer_has_only_its_own_mappings() {
        let key = BASE64_STANDARD.encode([7; 32]);
        let endpoint = endpoint(&json!({ "publicKey": key, "port": "1234" }));
        let peer = peer(&endpoint, [&mapping("milan"), &mapping("turin")]).unwrap();
        assert_eq!(peer.endpoint, SocketAddr::from(([172, 30, 1, 1], 1234)));
        assert_eq!(peer.public_key, PublicKey([7; 32]));
        let (translated, own) = peer.mappings.into_iter().next().unwrap();
        assert_eq!(
            (translated.to_string(), own.to_string()),
            ("10.71.0.9".into(), "203.0.113.7".into())
        );
    }

    #[test]
    fn the_oldest_tunnel_endpoint_with_a_key_owns_it() {
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
        let expected = [("milan", None), ("a-thief", Some(NoTunnel::KeyTaken)), ("turin", None)];
        assert_eq!(found, expected.map(|(name, error)| (name.to_owned(), error)));
    }

    #[test]
    fn networks_that_are_unknown_or_dont_fit_make_no_tunnel() {
        let full = endpoint(&json!({ "publicKey": BASE64_STANDARD.encode([7; 32]) }));
        let mut wrong = full.clone();
        wrong.status.as_mut().unwrap().remote_nat_pod_cidr = Some("10.60.0.0/15".parse().unwrap());
        assert_eq!(
            peer(&wrong, []).unwrap_err().to_string(),
            "10.244.0.0/16 can't be translated to 10.60.0.0/15: a prefix of 16 bits of IPv4 and a \
             prefix of 15 bits of IPv4 differ, so addresses would lose their host part"
        );
        let unknown = TunnelEndpoint { status: None, ..full };
        assert_eq!(peer(&unknown, []), Err(NoTunnel::Networks));
    }

    #[test]
    fn without_a_key_there_is_no_tunnel() {
        assert_eq!(peer(&endpoint(&json!({})), []), Err(NoTunnel::PublicKey));
        let short = json!({ "publicKey": BASE64_STANDARD.encode([7; 31]) });
        assert_eq!(peer(&endpoint(&short), []), Err(NoTunnel::PublicKey));
        let port = json!({ "publicKey": BASE64_STANDARD.encode([7; 32]), "port": "0" });
        assert_eq!(peer(&endpoint(&port), []), Err(NoTunnel::Port));
    }
}
