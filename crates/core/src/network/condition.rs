//! Whether the tunnel to a peer is up, and if not, what it waits for.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tombolo_api::{
    ClusterName,
    discovery::{ForeignClusterStatus, condition::TUNNEL_ENDPOINT},
    net::{Connection, ConnectionStatus},
};

/// How far the network has come.
pub(super) struct State<'a> {
    pub(super) peer: &'a ClusterName,
    pub(super) wanted: bool,
    pub(super) gateway: bool,
    pub(super) sent: bool,
    pub(super) answered: bool,
    pub(super) received: bool,
    /// Of the TunnelEndpoint, if there is one.
    pub(super) connection: Option<Option<&'a Connection>>,
}

pub(super) fn tunnel_condition(
    state: &State<'_>,
    before: Option<&ForeignClusterStatus>,
    now: Timestamp,
) -> Condition {
    let (status, reason, message) = explain(state);
    let before = before
        .into_iter()
        .flat_map(|status| &status.conditions)
        .find(|it| it.type_ == TUNNEL_ENDPOINT);
    let since = before.filter(|before| before.status == status);
    Condition {
        type_: TUNNEL_ENDPOINT.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.map_or(Time(now), |before| before.last_transition_time.clone()),
        observed_generation: None,
    }
}

fn explain(state: &State<'_>) -> (&'static str, &'static str, String) {
    let peer = state.peer;
    if let Some(connection) = state.connection {
        let said = connection.and_then(|connection| connection.status_message.clone());
        return match connection.and_then(|connection| connection.status) {
            Some(ConnectionStatus::Connected) => {
                ("True", "Connected", said.unwrap_or_else(|| format!("the tunnel to {peer} is up")))
            }
            Some(ConnectionStatus::Connecting) => {
                let message = said.unwrap_or_else(|| {
                    format!("{peer}'s gateway has not answered through the tunnel yet")
                });
                ("False", "Connecting", message)
            }
            Some(ConnectionStatus::Error) => {
                let message = said.unwrap_or_else(|| format!("the tunnel to {peer} has failed"));
                ("False", "Error", message)
            }
            None => {
                let message = format!(
                    "this cluster's gateway has not started the tunnel to {peer} yet: is the \
                     Deployment liqo-gateway running?"
                );
                ("False", "WaitingForGateway", message)
            }
        };
    }
    let (reason, message) = if !state.wanted {
        ("NoPeering", format!("there is no peering with {peer} in either direction"))
    } else if !state.sent && !state.gateway {
        let message = "this cluster's gateway has not announced itself in the Lease \
                       liqo/liqo-gateway: is the Deployment liqo-gateway running?";
        ("WaitingForGateway", message.to_owned())
    } else if !state.sent {
        let message = format!("{peer} has not given this cluster an identity yet");
        ("WaitingForIdentity", message)
    } else if !state.received {
        ("WaitingForPeer", format!("{peer} has not sent its NetworkConfig yet"))
    } else if !state.answered {
        ("WaitingForPeer", format!("{peer} has not answered this cluster's NetworkConfig yet"))
    } else {
        ("Negotiated", format!("the tunnel to {peer} is about to be made"))
    };
    ("False", reason, message)
}
