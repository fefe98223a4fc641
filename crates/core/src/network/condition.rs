//! The condition TunnelEndpoint: whether the tunnel to a peer is up, and if not, the reason.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tombolo_api::{
    ClusterName,
    discovery::{ForeignClusterStatus, condition::TUNNEL_ENDPOINT},
    net::{Connection, ConnectionStatus},
};

use crate::{condition::now_is, translate::Mismatch};

/// Progress of the network to a peer.
pub(super) struct State<'a> {
    pub(super) peer: &'a ClusterName,
    pub(super) wanted: bool,
    pub(super) accepted: bool,
    pub(super) gateway: bool,
    pub(super) sent: bool,
    pub(super) answered: bool,
    pub(super) received: bool,
    /// The error in the translated CIDRs of this cluster in the peer.
    pub(super) mismatch: Option<Mismatch>,
    /// Connection of the TunnelEndpoint, if it exists.
    pub(super) connection: Option<Option<&'a Connection>>,
}

pub(super) fn tunnel_condition(
    state: &State<'_>,
    before: &ForeignClusterStatus,
    now: Timestamp,
) -> Condition {
    let (is_up, reason, message) = explain(state);
    now_is(&before.conditions, TUNNEL_ENDPOINT, is_up, reason, &message, now)
}

fn explain(state: &State<'_>) -> (bool, &'static str, String) {
    let peer = state.peer;
    if let Some(mismatch) = state.mismatch {
        let message = format!("{peer} has answered with invalid translated CIDRs: {mismatch}");
        return (false, "InvalidCIDRs", message);
    }
    if let Some(connection) = state.connection {
        let reported = connection.and_then(|connection| connection.status_message.clone());
        return match connection.and_then(|connection| connection.status) {
            Some(ConnectionStatus::Connected) => (
                true,
                "Connected",
                reported.unwrap_or_else(|| format!("the tunnel to {peer} is up")),
            ),
            Some(ConnectionStatus::Connecting) => {
                let message = reported.unwrap_or_else(|| {
                    format!("{peer}'s gateway has not answered through the tunnel yet")
                });
                (false, "Connecting", message)
            }
            Some(ConnectionStatus::Error) => {
                let message =
                    reported.unwrap_or_else(|| format!("the tunnel to {peer} has failed"));
                (false, "Error", message)
            }
            None => {
                let message = format!(
                    "this cluster's gateway has not started the tunnel to {peer} yet: is the \
                     Deployment liqo-gateway running?"
                );
                (false, "WaitingForGateway", message)
            }
        };
    }
    let (reason, message) = if !state.wanted {
        ("NoPeering", format!("there is no peering with {peer} in either direction"))
    } else if !state.sent && !state.gateway {
        let message = "this cluster's gateway has not announced itself in the Lease \
                       liqo/liqo-gateway: is the Deployment liqo-gateway running?";
        ("WaitingForGateway", message.to_owned())
    } else if !state.sent && !state.accepted {
        let message = format!("{peer} has not accepted this cluster's request yet");
        ("WaitingForAcceptance", message)
    } else if !state.sent {
        let message = format!("{peer} has not issued an identity to this cluster yet");
        ("WaitingForIdentity", message)
    } else if !state.received {
        ("WaitingForPeer", format!("{peer} has not sent its NetworkConfig yet"))
    } else if !state.answered {
        ("WaitingForPeer", format!("{peer} has not answered this cluster's NetworkConfig yet"))
    } else {
        ("Negotiated", format!("the TunnelEndpoint of {peer} is about to be created"))
    };
    (false, reason, message)
}
