//! Whether another cluster's API server is reachable: which clusters to probe, when a lost probe is
//! a failure, and when to report a change.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tombolo_api::discovery::condition::API_SERVER;

use crate::{
    condition::{find, now_is},
    view::Peer,
};

/// A single lost probe is no failure.
const FAILURE_THRESHOLD: u32 = 2;

/// Reason of the condition while the API server is not probed.
const NOT_AUTHENTICATED: &str = "NotAuthenticated";

/// What to do about the API server of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeAction {
    /// Probe it periodically.
    Probe,
    /// Report that it is not probed: the last condition may be outdated.
    ReportNotProbed,
    /// Nothing.
    Nothing,
}

/// Decides by the condition `Authenticated`: probes need an identity.
pub fn probe_action(peer: &Peer<'_>) -> ProbeAction {
    if peer.is_deleted {
        return ProbeAction::Nothing;
    }
    if peer.is_authenticated {
        return ProbeAction::Probe;
    }
    match peer.api_server {
        Some(reported) if reported.reason != NOT_AUTHENTICATED => ProbeAction::ReportNotProbed,
        _ => ProbeAction::Nothing,
    }
}

/// The probes of an API server so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeHistory {
    /// Consecutive failures.
    failures: u32,
    /// The state that was reported last.
    reported: Option<bool>,
}

impl ProbeHistory {
    /// Records a probe, and returns whether its outcome has to be reported.
    pub fn record(&mut self, answered: bool) -> bool {
        self.failures = if answered { 0 } else { self.failures.saturating_add(1) };
        let counts = answered || self.failures >= FAILURE_THRESHOLD;
        counts && self.reported != Some(answered)
    }

    /// Records a successful report.
    pub fn reported(&mut self, answered: bool) {
        self.reported = Some(answered);
    }
}

/// State of an API server, with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiServerState<'a> {
    /// It answers.
    Reachable(&'a str),
    /// It does not: the request and its error.
    Unreachable(&'a str),
    /// It is not probed.
    NotProbed,
}

impl ApiServerState<'_> {
    /// Whether it answers.
    pub fn is_reachable(&self) -> bool {
        matches!(self, Self::Reachable(_))
    }
}

/// The condition for this state, unless it is the current one.
pub fn condition(
    before: &[Condition],
    state: ApiServerState<'_>,
    now: Timestamp,
) -> Option<Condition> {
    let not_probed =
        "not probed without an identity in that cluster: see the condition Authenticated";
    let (reason, message) = match state {
        ApiServerState::Reachable(message) => ("Reachable", message),
        ApiServerState::Unreachable(message) => ("Unreachable", message),
        ApiServerState::NotProbed => (NOT_AUTHENTICATED, not_probed),
    };
    let condition = now_is(before, API_SERVER, state.is_reachable(), reason, message, now);
    (find(before, API_SERVER) != Some(&condition)).then_some(condition)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::discovery::{ForeignCluster, condition::AUTHENTICATED};

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

    fn probe_action(cluster: &ForeignCluster) -> ProbeAction {
        super::probe_action(&Peer::from_resource(cluster))
    }

    #[test]
    fn only_a_cluster_with_an_identity_is_probed() {
        assert_eq!(probe_action(&cluster(&[])), ProbeAction::Nothing);
        assert_eq!(
            probe_action(&cluster(&[(AUTHENTICATED, "True", "Accepted")])),
            ProbeAction::Probe
        );
    }

    #[test]
    fn the_condition_does_not_outlive_the_identity() {
        let refused = (AUTHENTICATED, "False", "Refused");
        for reported in [(API_SERVER, "True", "Reachable"), (API_SERVER, "False", "Unreachable")] {
            assert_eq!(probe_action(&cluster(&[refused, reported])), ProbeAction::ReportNotProbed);
        }
        let not_probed = (API_SERVER, "False", NOT_AUTHENTICATED);
        assert_eq!(probe_action(&cluster(&[refused, not_probed])), ProbeAction::Nothing);
    }

    #[test]
    fn one_lost_probe_is_no_failure() {
        let mut history = ProbeHistory::default();
        assert!(history.record(true), "it answers");
        history.reported(true);
        assert!(!history.record(true), "already reported");
        assert!(!history.record(false), "a single failure");
        assert!(!history.record(true));
        assert!(!history.record(false), "a single failure again");
        assert!(history.record(false), "twice in a row");
        history.reported(false);
        assert!(!history.record(false), "already reported");
        assert!(history.record(true), "one answer is enough");
    }

    #[test]
    fn a_failed_report_is_repeated() {
        let mut history = ProbeHistory::default();
        assert!(history.record(true));
        assert!(history.record(true));
        assert!(!history.record(false));
        assert!(history.record(true));
    }

    #[test]
    fn an_unchanged_condition_is_not_written_again() {
        let first: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let later: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
        let up = condition(&[], ApiServerState::Reachable("it answers"), first).unwrap();
        assert_eq!((&*up.status, &*up.reason), ("True", "Reachable"));
        let before = [up];
        assert_eq!(condition(&before, ApiServerState::Reachable("it answers"), later), None);
        let down = condition(&before, ApiServerState::Unreachable("no answer"), later).unwrap();
        assert_eq!((&*down.status, &*down.reason), ("False", "Unreachable"));
        assert_eq!(down.message, "no answer");
    }
}
