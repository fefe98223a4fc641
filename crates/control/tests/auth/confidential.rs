//! Secrets between two clusters must not appear in logs, events or conditions.

use k8s_openapi::api::core::v1::{Event, Secret};
use tombolo_api::discovery::ForeignCluster;

use crate::{logs::Logs, side::Side};

/// Current tokens, nonces and nonce keys of the clusters.
pub async fn secrets(sides: &[&Side]) -> Vec<String> {
    let mut found = Vec::new();
    for side in sides {
        let secrets = side.all::<Secret>().list(&Default::default()).await.expect("the Secrets");
        let data = secrets.items.into_iter().flat_map(|secret| secret.data.unwrap_or_default());
        let kept = data.filter(|(key, _)| ["key", "nonce", "token"].contains(&key.as_str()));
        let texts = kept.filter_map(|(_, bytes)| String::from_utf8(bytes.0).ok());
        // Values that the tests set themselves are shorter.
        found.extend(texts.filter(|text| text.len() >= 32));
    }
    found
}

pub async fn assert_not_leaked(sides: &[&Side], secrets: &[String], logs: &Logs) {
    assert!(!secrets.is_empty(), "no secrets to look for");
    for secret in secrets {
        logs.assert_absent(secret);
    }
    for side in sides {
        let events = side.all::<Event>().list(&Default::default()).await.expect("events");
        let entries = side.all::<ForeignCluster>().list(&Default::default()).await;
        let entries = entries.expect("the ForeignClusters");
        let told = serde_json::to_string(&(events.items, entries.items)).expect("JSON");
        for secret in secrets {
            assert!(!told.contains(secret), "a secret is in an event or in a ForeignCluster");
        }
    }
}
