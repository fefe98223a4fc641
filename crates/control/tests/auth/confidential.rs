//! What only the two clusters know that it is between is in no log, no event and no condition.

use k8s_openapi::api::core::v1::{Event, Secret};
use tombolo_api::discovery::ForeignCluster;

use crate::{logs::Logs, side::Side};

/// The tokens, the nonces and the keys of nonces that clusters have now.
pub async fn of(sides: &[&Side]) -> Vec<String> {
    let mut found = Vec::new();
    for side in sides {
        let secrets = side.all::<Secret>().list(&Default::default()).await.expect("the Secrets");
        let data = secrets.items.into_iter().flat_map(|secret| secret.data.unwrap_or_default());
        let kept = data.filter(|(key, _)| ["key", "nonce", "token"].contains(&key.as_str()));
        let texts = kept.filter_map(|(_, bytes)| String::from_utf8(bytes.0).ok());
        // What people have put there in tests is shorter.
        found.extend(texts.filter(|text| text.len() >= 32));
    }
    found
}

pub async fn is_told_nobody(sides: &[&Side], secrets: &[String], logs: &Logs) {
    assert!(!secrets.is_empty(), "there is nothing to look for");
    for secret in secrets {
        logs.have_no(secret);
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
