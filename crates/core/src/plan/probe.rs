//! The state of a tunnel: probes are sent through it continuously, and the time of the last answer
//! decides.

use std::time::Duration;

use jiff::Timestamp;
use tombolo_api::net::ConnectionStatus;

/// Time between two probes.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// Time without an answer after which a tunnel counts as disconnected.
pub const TIMEOUT: Duration = Duration::from_secs(2);

/// State of a tunnel whose last probe was answered at `answered`.
pub fn status(answered: Option<Timestamp>, now: Timestamp) -> ConnectionStatus {
    match answered {
        Some(at) if now.duration_since(at).unsigned_abs() <= TIMEOUT => ConnectionStatus::Connected,
        _ => ConnectionStatus::Connecting,
    }
}

/// Message for a state.
pub fn message(status: ConnectionStatus) -> &'static str {
    match status {
        ConnectionStatus::Connected => "the gateway of the peer answers",
        ConnectionStatus::Connecting => {
            "no answer from the gateway of the peer: check that its UDP port is reachable"
        }
        ConnectionStatus::Error => "the tunnel could not be set up: see the gateway's log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_is_connected_while_probes_are_answered() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(status(None, now), ConnectionStatus::Connecting);
        assert_eq!(status(Some(now), now + TIMEOUT), ConnectionStatus::Connected);
        let late = now + TIMEOUT + Duration::from_millis(1);
        assert_eq!(status(Some(now), late), ConnectionStatus::Connecting);
    }
}
