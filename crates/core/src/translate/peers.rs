//! The networks of all peers, apart from those of which it is said what can't be right.

use std::collections::BTreeMap;

use tombolo_api::{ClusterId, net::TunnelEndpoint};

use super::{Mismatch, Networks};

/// The networks of all peers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerNetworks {
    /// Those that are known.
    pub known: BTreeMap<ClusterId, Networks>,
    /// Why the others can't be right. Those that are not known yet are in neither.
    pub wrong: BTreeMap<ClusterId, Mismatch>,
}

impl PeerNetworks {
    /// The networks that TunnelEndpoints are about.
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

    /// What was not wrong `before`, or for another reason, so that it is said once.
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

    fn with_name(id: &str, name: &str) -> TunnelEndpoint {
        endpoint(id, |status| status.remote_nat_pod_cidr = Some(name.parse().unwrap()))
    }

    fn ids<'a, T: 'a>(all: impl IntoIterator<Item = (&'a ClusterId, T)>) -> Vec<&'a str> {
        all.into_iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn a_peer_is_known_or_wrong_or_neither_yet() {
        let endpoints = [
            with_name("milan", "10.8.0.0/16"),
            with_name("turin", "10.8.0.0/15"),
            endpoint("genoa", |status| status.remote_nat_pod_cidr = None),
        ];
        let peers = PeerNetworks::from_tunnel_endpoints(&endpoints);
        assert_eq!(ids(&peers.known), ["milan"]);
        assert_eq!(ids(&peers.wrong), ["turin"]);
    }

    #[test]
    fn what_is_wrong_is_said_once_and_again_when_it_is_wrong_in_another_way() {
        let peers = |turin: &str| {
            let endpoints = [with_name("milan", "fd00::/16"), with_name("turin", turin)];
            PeerNetworks::from_tunnel_endpoints(&endpoints)
        };
        let first = peers("10.8.0.0/15");
        assert_eq!(ids(first.newly_wrong(&BTreeMap::new())), ["milan", "turin"]);
        assert_eq!(ids(first.newly_wrong(&first.wrong)), [""; 0]);
        assert_eq!(ids(peers("10.8.0.0/17").newly_wrong(&first.wrong)), ["turin"]);
    }
}
