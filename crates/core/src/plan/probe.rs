//! Whether a tunnel works: a probe goes through it all the time, and what counts is when one was
//! answered last.

use std::time::Duration;

use jiff::Timestamp;
use tombolo_api::net::ConnectionStatus;

/// Time between two probes.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// Time without an answer after which a tunnel is taken to be cut.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// State of the tunnel through which a probe was answered last at `answered`.
pub fn status(answered: Option<Timestamp>, now: Timestamp) -> ConnectionStatus {
    match answered {
        Some(at) if now.duration_since(at).unsigned_abs() <= PATIENCE => {
            ConnectionStatus::Connected
        }
        _ => ConnectionStatus::Connecting,
    }
}

/// What the state means, for people.
pub fn message(status: ConnectionStatus) -> &'static str {
    match status {
        ConnectionStatus::Connected => "the gateway on the other side answers",
        ConnectionStatus::Connecting => {
            "no answer from the gateway on the other side: check that its UDP port can be reached"
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
        assert_eq!(status(Some(now), now + PATIENCE), ConnectionStatus::Connected);
        let late = now + PATIENCE + Duration::from_millis(1);
        assert_eq!(status(Some(now), late), ConnectionStatus::Connecting);
    }
}
