//! Whether another cluster's API server answers: whom to ask, what counts as a failure, and what of
//! it is worth saying.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tombolo_api::discovery::{ForeignCluster, condition};

use crate::condition::{find, is_true, now_is};

/// One lost answer is no failure.
const FAILURES: u32 = 2;

/// Whether a cluster's API server is to be asked: as long as there is an identity to ask by.
pub fn is_asked(cluster: &ForeignCluster) -> bool {
    let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
    is_true(conditions, condition::AUTHENTICATED) && cluster.metadata.deletion_timestamp.is_none()
}

/// What has been heard of an API server so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// How often in a row there was no answer.
    failures: u32,
    /// What was said last.
    said: Option<bool>,
}

impl Record {
    /// Notes whether there was an answer, and tells whether that has to be said.
    pub fn note(&mut self, answered: bool) -> bool {
        self.failures = if answered { 0 } else { self.failures.saturating_add(1) };
        let counts = answered || self.failures >= FAILURES;
        counts && self.said != Some(answered)
    }

    /// Notes that it was said.
    pub fn said(&mut self, answered: bool) {
        self.said = Some(answered);
    }
}

/// The condition that says so, unless it is among those of before. A good answer and a bad one
/// both are a text.
pub fn condition(
    before: &[Condition],
    verdict: Result<&str, &str>,
    now: Timestamp,
) -> Option<Condition> {
    let (reason, message) = match verdict {
        Ok(message) => ("Answers", message),
        Err(message) => ("Unreachable", message),
    };
    let says = now_is(before, condition::API_SERVER, verdict.is_ok(), reason, message, now);
    (find(before, condition::API_SERVER) != Some(&says)).then_some(says)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_who_has_given_an_identity_and_stays_is_asked() {
        let cluster = |authenticated: &str, deleted: Option<&str>| -> ForeignCluster {
            serde_json::from_value(json!({
                "apiVersion": "discovery.liqo.io/v1alpha1",
                "kind": "ForeignCluster",
                "metadata": { "name": "milan", "deletionTimestamp": deleted },
                "spec": { "authUrl": "https://192.0.2.1" },
                "status": { "conditions": [{
                    "type": "Authenticated", "status": authenticated, "reason": "Test",
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
                }] },
            }))
            .unwrap()
        };
        assert!(is_asked(&cluster("True", None)));
        assert!(!is_asked(&cluster("False", None)));
        assert!(!is_asked(&cluster("True", Some("2026-01-01T00:00:00Z"))));
        assert!(!is_asked(&ForeignCluster { status: None, ..cluster("True", None) }));
    }

    #[test]
    fn one_lost_answer_is_no_failure() {
        let mut record = Record::default();
        assert!(record.note(true), "it answers");
        record.said(true);
        assert!(!record.note(true), "that is known");
        assert!(!record.note(false), "once is never");
        assert!(!record.note(true));
        assert!(!record.note(false), "once again");
        assert!(record.note(false), "twice in a row");
        record.said(false);
        assert!(!record.note(false), "that is known");
        assert!(record.note(true), "one answer is enough");
    }

    #[test]
    fn what_could_not_be_said_is_said_again() {
        let mut record = Record::default();
        assert!(record.note(true));
        assert!(record.note(true));
        assert!(!record.note(false));
        assert!(record.note(true));
    }

    #[test]
    fn the_same_is_not_said_twice() {
        let first: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let up = condition(&[], Ok("it answers"), first).unwrap();
        assert_eq!((&*up.status, &*up.reason), ("True", "Answers"));
        let before = [up];
        assert_eq!(condition(&before, Ok("it answers"), later), None);
        let down = condition(&before, Err("no answer"), later).unwrap();
        assert_eq!((&*down.status, &*down.reason), ("False", "Unreachable"));
        assert_eq!(down.message, "no answer");
    }
}
