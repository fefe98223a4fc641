//! That each cluster is to be joined, said while discovery runs.

use jiff::Timestamp;
use serde_json::json;
use tombolo_api::discovery::ForeignCluster;

use crate::side::{Side, seen};

pub async fn is_switched(rome: &Side, milan: &Side, turin: &Side) {
    for side in [rome, milan, turin] {
        side.clear::<ForeignCluster>().await;
        side.none::<ForeignCluster>().await;
        side.configure(json!({ "ttlSeconds": 3 })).await;
    }
    let at_rome = rome.start();
    let at_milan = milan.start();
    let at_turin = turin.start();
    rome.finds("milan").await;
    rome.finds("turin").await;
    assert!(!rome.entry("milan").await.expect("it was found").spec.join);

    // It is switched on: who was found before is joined, but not whom somebody has left.
    rome.join("turin", true).await;
    rome.join("turin", false).await;
    rome.configure(json!({ "ttlSeconds": 3, "autojoin": true })).await;
    rome.until::<ForeignCluster>("milan", |entry| entry.spec.join).await;
    assert!(!later(rome, "turin").await.spec.join);

    // Nor is who was joined so, and is left then.
    rome.join("milan", false).await;
    assert!(!later(rome, "milan").await.spec.join);

    // It is switched off: who is joined stays so.
    rome.join("milan", true).await;
    rome.configure(json!({ "ttlSeconds": 3 })).await;
    assert!(later(rome, "milan").await.spec.join);
    at_turin.stop();
    at_milan.stop();
    at_rome.stop();
}

/// The entry, once the cluster has been seen several times more.
async fn later(side: &Side, name: &str) -> ForeignCluster {
    let now = Timestamp::now();
    let is_later = |entry: &ForeignCluster| seen(entry).duration_since(now).as_secs() > 3;
    side.until::<ForeignCluster>(name, is_later).await
}
