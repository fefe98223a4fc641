//! Conditions of a status.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Whether the condition of this type exists and is True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// The condition of this type.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// The new condition of this type. It keeps `lastTransitionTime` of the one in `before` if the
/// status is the same.
pub fn now_is(
    before: &[Condition],
    type_: &str,
    status: bool,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Condition {
    let status = if status { "True" } else { "False" };
    let since = find(before, type_)
        .filter(|condition| condition.status == status)
        .map_or(Time(now), |condition| condition.last_transition_time.clone());
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned(),
        last_transition_time: since,
        observed_generation: None,
    }
}

/// The limit of Kubernetes for a message. Some messages contain text from another cluster.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let (first, later): (Timestamp, Timestamp) =
            ("2026-01-01T00:00:00Z".parse().unwrap(), "2026-01-01T00:01:00Z".parse().unwrap());
        let up = now_is(&[], "APIServer", true, "Reachable", "", first);
        let still =
            now_is(std::slice::from_ref(&up), "APIServer", true, "Reachable", "well", later);
        assert_eq!(still.last_transition_time, Time(first));
        assert_eq!(still.message, "well");
        let down = now_is(&[still], "APIServer", false, "Silent", "", later);
        assert_eq!(down.last_transition_time, Time(later));
        assert!(is_true(&[up], "APIServer"));
        assert!(!is_true(&[down], "APIServer"));
    }

    #[test]
    fn a_message_is_cut_to_the_limit_of_kubernetes() {
        let long = "é".repeat(20_000) + "e";
        let said = now_is(&[], "APIServer", false, "Silent", &long, Timestamp::UNIX_EPOCH);
        assert_eq!(said.message, "é".repeat(16 * 1024));
    }
}
