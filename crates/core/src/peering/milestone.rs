//! The milestones of an outgoing peering, in the order in which the CLI reports them.

use k8s_openapi::api::core::v1::Node;
use tombolo_api::discovery::RequestState;

use super::Outgoing;
use crate::{node::is_ready, view::Endpoint};

/// A milestone of an outgoing peering.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Milestone {
    /// The peer has issued an identity to this cluster.
    Identity,
    /// The peer has accepted the request.
    Acceptance,
    /// The peer has sent its offer.
    Offer,
    /// Both clusters have agreed on their networks.
    Networks,
    /// The tunnel is connected.
    Tunnel,
    /// The virtual node is ready.
    Node,
}

impl Milestone {
    /// All milestones, in order.
    pub const ALL: [Self; 6] =
        [Self::Identity, Self::Acceptance, Self::Offer, Self::Networks, Self::Tunnel, Self::Node];

    /// The first milestone that is missing. Later ones may be reached already.
    pub fn missing(
        there: &Outgoing<'_>,
        tunnel: Option<&Endpoint<'_>>,
        node: Option<&Node>,
    ) -> Option<Self> {
        let is_accepted = there.request.is_some_and(|it| it.state == RequestState::Accepted);
        let is_reached = |milestone: &Self| match milestone {
            Self::Identity => there.authenticated,
            Self::Acceptance => is_accepted || there.offer.is_some(),
            Self::Offer => there.offer.is_some(),
            Self::Networks => tunnel.is_some(),
            Self::Tunnel => tunnel.is_some_and(Endpoint::is_connected),
            Self::Node => node.is_some_and(is_ready),
        };
        Self::ALL.into_iter().find(|milestone| !is_reached(milestone))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{discovery::ResourceRequest, net::TunnelEndpoint, sharing::ResourceOffer};

    use super::*;
    use crate::view::{Offer, Request};

    #[test]
    fn milestones_are_reached_in_order() {
        let mut there = Outgoing { join: true, ..Outgoing::default() };
        assert_eq!(Milestone::missing(&there, None, None), Some(Milestone::Identity));
        there.authenticated = true;
        assert_eq!(Milestone::missing(&there, None, None), Some(Milestone::Acceptance));
        let pending: ResourceRequest = serde_json::from_value(json!({
            "metadata": { "name": "rome" },
            "spec": {
                "clusterIdentity": { "clusterID": "r", "clusterName": "rome" },
                "authUrl": "https://rome",
            },
        }))
        .unwrap();
        there.request = Some(Request::from_resource(&pending));
        assert_eq!(Milestone::missing(&there, None, None), Some(Milestone::Acceptance));
        let mut accepted = pending.clone();
        accepted.status.get_or_insert_default().state = RequestState::Accepted;
        there.request = Some(Request::from_resource(&accepted));
        assert_eq!(Milestone::missing(&there, None, None), Some(Milestone::Offer));
        let offer: ResourceOffer = serde_json::from_value(json!({
            "metadata": { "name": "milan" },
            "spec": { "clusterID": "m", "resourceQuota": { "hard": { "cpu": "1" } } },
        }))
        .unwrap();
        there.offer = Some(Offer::from_resource(&offer));
        assert_eq!(Milestone::missing(&there, None, None), Some(Milestone::Networks));
        let tunnel = |connection: &str| -> TunnelEndpoint {
            serde_json::from_value(json!({
                "metadata": { "name": "milan" },
                "spec": {
                    "clusterID": "m", "podCIDR": "10.244.0.0/16", "externalCIDR": "10.70.0.0/16",
                    "endpointIP": "172.30.1.1", "backendType": "wireguard", "backend_config": {},
                },
                "status": { "connection": { "status": connection } },
            }))
            .unwrap()
        };
        let (connecting, connected) = (tunnel("connecting"), tunnel("connected"));
        let missing = |tunnel: &TunnelEndpoint, node: Option<&_>| {
            Milestone::missing(&there, Some(&Endpoint::from_resource(tunnel)), node)
        };
        assert_eq!(missing(&connecting, None), Some(Milestone::Tunnel));
        assert_eq!(missing(&connected, None), Some(Milestone::Node));
        let node = |ready: &str| -> Node {
            let conditions = json!([{ "type": "Ready", "status": ready }]);
            serde_json::from_value(json!({ "status": { "conditions": conditions } })).unwrap()
        };
        assert_eq!(missing(&connected, Some(&node("False"))), Some(Milestone::Node));
        assert_eq!(missing(&connected, Some(&node("True"))), None);
    }
}
