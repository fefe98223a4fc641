//! How many identities there are, and which ones make room for others.

use jiff::{SignedDuration, Timestamp};

use super::Stage;

/// How many identities there are: where it takes no token, anybody could fill the API server.
pub const MOST_IDENTITIES: usize = 1024;

/// As long as an identity counts, and a little longer: clocks may differ.
const UNUSED: SignedDuration = SignedDuration::from_hours(25);

/// Whether an identity is to end to make room for others: there is a peering with nobody by it, and
/// whoever got it has not come to renew it. While there is room none ends, for it may be renewed without
/// the auth service, and this cluster may have been switched off for long.
pub fn makes_room(
    stage: Stage,
    identities: usize,
    answered_at: Option<Timestamp>,
    now: Timestamp,
) -> bool {
    stage == Stage::Known
        && identities > MOST_IDENTITIES / 2
        && answered_at.is_some_and(|time| now.duration_since(time) > UNUSED)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn makes_room_at(stage: Stage, identities: usize, hours: i64) -> bool {
        let now: Timestamp = "2026-05-03T12:00:00Z".parse().unwrap();
        let answered_at = now - SignedDuration::from_hours(hours);
        makes_room(stage, identities, Some(answered_at), now)
    }

    #[test]
    fn who_does_not_come_again_makes_room_when_that_is_needed() {
        assert!(makes_room_at(Stage::Known, MOST_IDENTITIES / 2 + 1, 26));
    }

    #[test]
    fn nobody_does_while_there_is_room() {
        assert!(!makes_room_at(Stage::Known, MOST_IDENTITIES / 2, 1000));
    }

    #[test]
    fn nobody_does_whose_identity_may_count_still() {
        for hours in [0, 24, 25] {
            assert!(!makes_room_at(Stage::Known, MOST_IDENTITIES, hours));
        }
        assert!(!makes_room(Stage::Known, MOST_IDENTITIES, None, Timestamp::MAX), "not answered");
        assert!(!makes_room_at(Stage::Known, MOST_IDENTITIES, -1), "the clock was set back");
    }

    #[test]
    fn nobody_does_with_whom_there_is_a_peering() {
        for stage in [Stage::Peered, Stage::Hosted] {
            assert!(!makes_room_at(stage, MOST_IDENTITIES, 1000));
        }
    }
}
