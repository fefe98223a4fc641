//! That each cluster is to be joined, said while discovery runs.

use jiff::Timestamp;
use kube::{ResourceExt, api::PostParams};
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

    // Whom nothing but the settings has joined, and who never was, goes when it is seen no more; with
    // whom somebody wants a peering stays.
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
    assert!(rome.entry("turin").await.is_some(), "somebody wants a peering");

    // Who has asked for a peering before it was seen is joined as well.
    asks(rome, milan).await;
    let at_milan = milan.start();
    let is_joined = |entry: &ForeignCluster| {
        entry.spec.join && entry.labels()["discovery.liqo.io/discovery-type"] == "LAN"
    };
    rome.until::<ForeignCluster>("milan", is_joined).await;
    at_milan.stop();
    at_rome.stop();
}

/// What the controllers make of a request.
async fn asks(rome: &Side, milan: &Side) {
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
    rome.all::<ForeignCluster>().create(&params, &entry).await.expect("it is made");
}

/// The entry, once the cluster has been seen several times more.
async fn later(side: &Side, name: &str) -> ForeignCluster {
    let now = Timestamp::now();
    let is_later = |entry: &ForeignCluster| seen(entry).duration_since(now).as_secs() > 3;
    side.until::<ForeignCluster>(name, is_later).await
}
