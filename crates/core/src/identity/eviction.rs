//! The limit of identities, and which ones are evicted for others.

use jiff::{SignedDuration, Timestamp};

use super::Stage;

/// Limit of identities: where no token is required, anybody could fill the API server.
pub const MAX_IDENTITIES: usize = 1024;

/// Lifetime of an identity, with a margin for clocks that differ.
const EVICTABLE_AFTER: SignedDuration = SignedDuration::from_hours(25);

/// Whether to evict an identity: it has no peering and was not renewed in time. Only above half of
/// the limit, because an identity may be renewed without the auth service, and this cluster may
/// have been switched off for long.
pub fn is_evictable(
    stage: Stage,
    identities: usize,
    answered_at: Option<Timestamp>,
    now: Timestamp,
) -> bool {
    stage == Stage::Known
        && identities > MAX_IDENTITIES / 2
        && answered_at.is_some_and(|time| now.duration_since(time) > EVICTABLE_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evictable_at(stage: Stage, identities: usize, hours: i64) -> bool {
        let now: Timestamp = "2026-05-03T12:00:00Z".parse().unwrap();
        let answered_at = now - SignedDuration::from_hours(hours);
        is_evictable(stage, identities, Some(answered_at), now)
    }

    #[test]
    fn an_unrenewed_identity_is_evicted_when_room_is_needed() {
        assert!(is_evictable_at(Stage::Known, MAX_IDENTITIES / 2 + 1, 26));
    }

    #[test]
    fn no_identity_is_evicted_while_there_is_room() {
        assert!(!is_evictable_at(Stage::Known, MAX_IDENTITIES / 2, 1000));
    }

    #[test]
    fn an_identity_that_may_be_valid_is_not_evicted() {
        for hours in [0, 24, 25] {
            assert!(!is_evictable_at(Stage::Known, MAX_IDENTITIES, hours));
        }
        assert!(!is_evictable(Stage::Known, MAX_IDENTITIES, None, Timestamp::MAX), "not answered");
        assert!(!is_evictable_at(Stage::Known, MAX_IDENTITIES, -1), "the clock was set back");
    }

    #[test]
    fn an_identity_with_a_peering_is_not_evicted() {
        for stage in [Stage::Peered, Stage::Hosted] {
            assert!(!is_evictable_at(stage, MAX_IDENTITIES, 1000));
        }
    }
}
