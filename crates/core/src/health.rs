//! Whether another cluster's API server is to be asked if it is well.

use tombolo_api::discovery::{
    ForeignCluster,
    condition::{API_SERVER, AUTHENTICATED},
};

use crate::condition::{find, is_true};

/// The word for programs when nobody asks.
pub const NOT_AUTHENTICATED: &str = "NotAuthenticated";

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
    if is_true(conditions, AUTHENTICATED) {
        return Care::Ask;
    }
    match find(conditions, API_SERVER) {
        Some(said) if said.reason != NOT_AUTHENTICATED => Care::SayUnasked,
        _ => Care::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
}
