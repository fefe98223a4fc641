//! Whether another cluster's API server answers: whom to ask, what counts as a failure, and what of
//! it is worth saying.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tombolo_api::discovery::{ForeignCluster, condition};

use crate::{
    condition::{find, now_is},
    peering::is_authenticated,
};

/// One lost answer is no failure.
const FAILURES: u32 = 2;

/// The word for programs when nobody asks.
const NOT_AUTHENTICATED: &str = "NotAuthenticated";

/// What to do about a cluster's API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// Ask it on and on.
    Ask,
    /// Don't ask, and say so: what was said last may not be true any more.
    SayUnasked,
    /// Nothing.
    Nothing,
}

/// What to do: only who has an identity there can ask.
pub fn care(cluster: &ForeignCluster) -> Care {
    let conditions = cluster.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
    if cluster.metadata.deletion_timestamp.is_some() {
        return Care::Nothing;
    }
    if is_authenticated(cluster) {
        return Care::Ask;
    }
    match find(conditions, condition::API_SERVER) {
        Some(said) if said.reason != NOT_AUTHENTICATED => Care::SayUnasked,
        _ => Care::Nothing,
    }
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

/// What there is to say of an API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// It answers, as is told here.
    Answers(&'a str),
    /// It does not: what was tried.
    Unreachable(&'a str),
    /// Nobody asks it.
    Unasked,
}

impl Verdict<'_> {
    /// Whether all is well.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Answers(_))
    }
}

/// The condition that says so, unless it is among those of before.
pub fn condition(before: &[Condition], verdict: Verdict<'_>, now: Timestamp) -> Option<Condition> {
    let unasked = "nobody asks it without an identity there: see Authenticated";
    let (reason, message) = match verdict {
        Verdict::Answers(message) => ("Answers", message),
        Verdict::Unreachable(message) => ("Unreachable", message),
        Verdict::Unasked => (NOT_AUTHENTICATED, unasked),
    };
    let says = now_is(before, condition::API_SERVER, verdict.is_good(), reason, message, now);
    (find(before, condition::API_SERVER) != Some(&says)).then_some(says)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use tombolo_api::discovery::condition::{API_SERVER, AUTHENTICATED};

    use super::*;

    fn cluster(conditions: &[(&str, &str, &str)]) -> ForeignCluster {
        let conditions = conditions.iter().map(|(type_, status, reason)| {
            json!({
                "type": type_, "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-05-01T12:00:00Z",
            })
        });
        serde_json::from_value(json!({
            "metadata": { "name": "milan" },
            "spec": { "authUrl": "https://milan" },
            "status": { "conditions": conditions.collect::<Vec<_>>() },
        }))
        .unwrap()
    }

    #[test]
    fn whoever_has_an_identity_asks() {
        assert_eq!(care(&cluster(&[])), Care::Nothing);
        assert_eq!(care(&cluster(&[(AUTHENTICATED, "True", "Accepted")])), Care::Ask);
    }

    #[test]
    fn an_old_word_does_not_outlive_the_identity() {
        let refused = (AUTHENTICATED, "False", "Refused");
        for said in [(API_SERVER, "True", "Answers"), (API_SERVER, "False", "Unreachable")] {
            assert_eq!(care(&cluster(&[refused, said])), Care::SayUnasked);
        }
        let unasked = (API_SERVER, "False", NOT_AUTHENTICATED);
        assert_eq!(care(&cluster(&[refused, unasked])), Care::Nothing);
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
        let up = condition(&[], Verdict::Answers("it answers"), first).unwrap();
        assert_eq!((&*up.status, &*up.reason), ("True", "Answers"));
        let before = [up];
        assert_eq!(condition(&before, Verdict::Answers("it answers"), later), None);
        let down = condition(&before, Verdict::Unreachable("no answer"), later).unwrap();
        assert_eq!((&*down.status, &*down.reason), ("False", "Unreachable"));
        assert_eq!(down.message, "no answer");
    }
}
