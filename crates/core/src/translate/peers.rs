//! The networks of all peers, and the peers with invalid translations.

use std::collections::BTreeMap;

use tombolo_api::{ClusterId, net::TunnelEndpoint};

use super::{Mismatch, Networks};

/// The networks of all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerNetworks {
    /// Peers with known networks.
    pub known: BTreeMap<ClusterId, Networks>,
    /// Peers with an invalid translation. Peers whose networks are not known yet are in neither
    /// map.
    pub wrong: BTreeMap<ClusterId, Mismatch>,
}

impl PeerNetworks {
    /// Reads the networks of all TunnelEndpoints.
    pub fn from_tunnel_endpoints<'a>(
        endpoints: impl IntoIterator<Item = &'a TunnelEndpoint>,
    ) -> Self {
        let mut peers = Self::default();
        for endpoint in endpoints {
            let id = endpoint.spec.cluster_id.clone();
            match Networks::from_tunnel_endpoint(endpoint) {
                Ok(Some(networks)) => drop(peers.known.insert(id, networks)),
                Ok(None) => {}
                Err(mismatch) => drop(peers.wrong.insert(id, mismatch)),
            }
        }
        peers
    }

    /// Invalid translations that are not in `before`, so that each is logged once.
    pub fn newly_wrong(
        &self,
        before: &BTreeMap<ClusterId, Mismatch>,
    ) -> impl Iterator<Item = (&ClusterId, &Mismatch)> {
        self.wrong.iter().filter(|(id, mismatch)| before.get(id) != Some(mismatch))
    }
}

#[cfg(test)]
mod tests {
    use tombolo_api::net::TunnelEndpointStatus;

    use super::super::networks::tests::changed;
    use super::*;

    fn endpoint(id: &str, change: impl FnOnce(&mut TunnelEndpointStatus)) -> TunnelEndpoint {
        let mut endpoint = changed(change);
        endpoint.spec.cluster_id = id.parse().unwrap();
        endpoint
    }

    fn with_pod_nat(id: &str, nat: &str) -> TunnelEndpoint {
        endpoint(id, |status| status.remote_nat_pod_cidr = Some(nat.parse().unwrap()))
    }

    fn ids<'a, T: 'a>(all: impl IntoIterator<Item = (&'a ClusterId, T)>) -> Vec<&'a str> {
        all.into_iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn a_peer_is_known_or_wrong_or_neither_yet() {
        let endpoints = [
            with_pod_nat("milan", "10.8.0.0/16"),
            with_pod_nat("turin", "10.8.0.0/15"),
            endpoint("genoa", |status| status.remote_nat_pod_cidr = None),
        ];
        let peers = PeerNetworks::from_tunnel_endpoints(&endpoints);
        assert_eq!(ids(&peers.known), ["milan"]);
        assert_eq!(ids(&peers.wrong), ["turin"]);
    }

    #[test]
    fn an_invalid_translation_is_reported_once_and_again_when_it_changes() {
        let peers = |turin: &str| {
            let endpoints = [with_pod_nat("milan", "fd00::/16"), with_pod_nat("turin", turin)];
            PeerNetworks::from_tunnel_endpoints(&endpoints)
        };
        let first = peers("10.8.0.0/15");
        assert_eq!(ids(first.newly_wrong(&BTreeMap::new())), ["milan", "turin"]);
        assert_eq!(ids(first.newly_wrong(&first.wrong)), [""; 0]);
        assert_eq!(ids(peers("10.8.0.0/17").newly_wrong(&first.wrong)), ["turin"]);
    }
}
