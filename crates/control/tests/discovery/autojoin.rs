//! `autojoin` switched on and off while discovery runs.

use jiff::Timestamp;
use kube::{ResourceExt, api::PostParams};
use serde_json::json;
use tombolo_api::discovery::ForeignCluster;

use crate::side::{Side, seen};

pub async fn can_be_switched(rome: &Side, milan: &Side, turin: &Side) {
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
    assert!(!rome.entry("milan").await.expect("milan was discovered").spec.join);

    // Switched on: clusters discovered earlier are joined, except those that a user has left.
    rome.join("turin", true).await;
    rome.join("turin", false).await;
    rome.configure(json!({ "ttlSeconds": 3, "autojoin": true })).await;
    rome.until::<ForeignCluster>("milan", |entry| entry.spec.join).await;
    assert!(!later(rome, "turin").await.spec.join);

    // A cluster that was joined so, and then left by a user, is not joined again.
    rome.join("milan", false).await;
    assert!(!later(rome, "milan").await.spec.join);

    // Switched off: joined clusters stay joined.
    rome.join("milan", true).await;
    rome.configure(json!({ "ttlSeconds": 3 })).await;
    assert!(later(rome, "milan").await.spec.join);

    // An entry that only `autojoin` has joined, without a peering so far, expires; one with which a
    // user wants a peering stays.
    rome.configure(json!({ "ttlSeconds": 3, "autojoin": true })).await;
    rome.clear::<ForeignCluster>().await;
    rome.until::<ForeignCluster>("milan", |entry| entry.spec.join).await;
    rome.until::<ForeignCluster>("turin", |entry| entry.spec.join).await;
    rome.join("turin", false).await;
    rome.join("turin", true).await;
    at_turin.stop();
    assert!(later(rome, "milan").await.spec.join);
    at_milan.stop();
    rome.forgets("milan").await;
    assert!(rome.entry("turin").await.is_some(), "a user wants a peering");

    // A cluster that has requested a peering before its first announcement is joined as well.
    creates_incoming_entry(rome, milan).await;
    let at_milan = milan.start();
    let is_joined = |entry: &ForeignCluster| {
        entry.spec.join && entry.labels()["discovery.liqo.io/discovery-type"] == "LAN"
    };
    rome.until::<ForeignCluster>("milan", is_joined).await;
    at_milan.stop();
    at_rome.stop();
}

/// The entry that the controllers make for a request.
async fn creates_incoming_entry(rome: &Side, milan: &Side) {
    let entry = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": {
            "name": "milan", "labels": { "discovery.liqo.io/discovery-type": "IncomingPeering" },
        },
        "spec": {
            "authUrl": "https://192.0.2.9:443", "join": false,
            "clusterIdentity": milan.settings.cluster(),
        },
    });
    let entry = serde_json::from_value(entry).expect("an entry");
    let manager = Some("liqo-control/foreign_cluster".to_owned());
    let params = PostParams { field_manager: manager, ..PostParams::default() };
    rome.all::<ForeignCluster>().create(&params, &entry).await.expect("the entry is created");
}

/// The entry after several more announcements.
async fn later(side: &Side, name: &str) -> ForeignCluster {
    let now = Timestamp::now();
    let is_later = |entry: &ForeignCluster| seen(entry).duration_since(now).as_secs() > 3;
    side.until::<ForeignCluster>(name, is_later).await
}
