//! What only the two clusters know that it is between is in no log, no event and no condition.

use k8s_openapi::api::core::v1::{Event, Secret};
use tombolo_api::discovery::ForeignCluster;

use crate::{logs::Logs, side::Side};

/// The nonces, and the tokens for one cluster, that a cluster has now.
pub async fn of(side: &Side) -> Vec<String> {
    let secrets = side.all::<Secret>().list(&Default::default()).await.expect("the Secrets");
    let texts = secrets.items.into_iter().flat_map(|secret| {
        let kept = |key: &String| ["nonce", "token"].contains(&key.as_str());
        let data = secret.data.unwrap_or_default();
        data.into_iter().filter(move |(key, _)| kept(key)).map(|(_, bytes)| bytes.0)
    });
    // What people have put there in tests is shorter.
    texts.filter_map(|text| String::from_utf8(text).ok()).filter(|text| text.len() >= 32).collect()
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
