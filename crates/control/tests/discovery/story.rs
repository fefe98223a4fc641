//! The life of an entry: discovery, refresh, expiry, groups and settings.

use std::time::Instant;

use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tombolo_api::discovery::ForeignCluster;
use tombolo_core::{discovery::PinnedBy, view::Entry};
use tombolo_testbed::eventually;

use crate::side::{Side, seen};

pub async fn runs(rome: &Side, milan: &Side, turin: &Side) {
    for side in [rome, milan, turin] {
        side.configure(json!({ "ttlSeconds": 3 })).await;
    }

    // They discover each other, and not themselves.
    let at_rome = rome.start();
    let start = Instant::now();
    let at_milan = milan.start();
    rome.finds("milan").await;
    println!("discovered {} ms after its start", start.elapsed().as_millis());
    milan.finds("rome").await;
    let entry = rome.entry("milan").await.expect("milan was discovered");
    let port = milan.port().await;
    assert_eq!(entry.spec.auth_url, format!("https://{}:{port}", milan.cluster.node(1).address()));
    assert_eq!(entry.spec.ttl, Some(3));
    assert_eq!(entry.spec.fingerprint.expect("a fingerprint").to_string(), "0f".repeat(32));
    assert!(!entry.spec.join);
    assert_eq!(entry.labels()["discovery.liqo.io/discovery-type"], "LAN");
    assert!(rome.entry("rome").await.is_none() && milan.entry("milan").await.is_none());

    // Milan announces another certificate.
    milan.has_certificate(&"1f".repeat(32)).await;
    let followed = |entry: &ForeignCluster| {
        let pin = entry.spec.fingerprint.map(|pin| pin.to_string());
        pin == Some("1f".repeat(32))
            && Entry::from_resource(entry).pinned_by() == Some(PinnedBy::Mdns)
    };
    rome.until::<ForeignCluster>("milan", followed).await;

    // An announced entry is refreshed; fields that users set in it stay.
    let (uid, first) = (entry.uid(), seen(&entry));
    rome.join("milan", true).await;
    let later = async || rome.entry("milan").await.map(|entry| seen(&entry));
    eventually("it is refreshed", later, |time| time.as_ref().is_some_and(|time| *time > first))
        .await;
    let entry = rome.entry("milan").await.expect("it is there");
    assert!(entry.uid() == uid && entry.spec.join);

    // Milan stops, and turin later: once turin has expired, milan would have, too. An entry with a
    // peering stays; without one it expires.
    let at_turin = turin.start();
    rome.finds("turin").await;
    at_milan.stop();
    let last_seen = async || {
        let (milan, turin) = (rome.entry("milan").await?, rome.entry("turin").await?);
        Some((seen(&milan), seen(&turin)))
    };
    let is_later = |times: &Option<(Timestamp, Timestamp)>| {
        times.is_some_and(|(milan, turin)| turin.duration_since(milan).as_millis() > 500)
    };
    eventually("turin is refreshed later than milan", last_seen, is_later).await;
    at_turin.stop();
    rome.forgets("turin").await;
    assert!(rome.entry("milan").await.is_some(), "there is a peering");
    rome.join("milan", false).await;
    rome.forgets("milan").await;
    for side in [milan, turin] {
        side.clear::<ForeignCluster>().await;
        side.none::<ForeignCluster>().await;
    }

    // Clusters of different groups ignore each other. Turin discovers milan, so milan is announced;
    // rome discovers turin later, so rome receives.
    milan.configure(json!({ "ttlSeconds": 3, "group": "campus" })).await;
    turin.configure(json!({ "ttlSeconds": 3, "group": "campus" })).await;
    let at_milan = milan.start();
    let at_turin = turin.start();
    turin.finds("milan").await;
    milan.finds("turin").await;
    turin.configure(json!({ "ttlSeconds": 3 })).await;
    rome.finds("turin").await;
    turin.finds("rome").await;
    assert!(rome.entry("milan").await.is_none() && milan.entry("rome").await.is_none());
    at_turin.stop();

    // Clusters of the same group discover each other.
    rome.configure(json!({ "ttlSeconds": 3, "group": "campus" })).await;
    rome.finds("milan").await;
    milan.finds("rome").await;

    // A new TTL is announced.
    milan.configure(json!({ "ttlSeconds": 4, "group": "campus" })).await;
    rome.until::<ForeignCluster>("milan", |entry| entry.spec.ttl == Some(4)).await;

    // Milan no longer announces itself.
    milan.configure(json!({ "ttlSeconds": 3, "group": "campus", "advertise": false })).await;
    rome.forgets("milan").await;
    assert!(milan.entry("rome").await.is_some());

    // With discovery disabled, milan forgets its entries although rome is still announced.
    milan.configure(json!({ "ttlSeconds": 3, "group": "campus", "enabled": false })).await;
    milan.forgets("rome").await;

    // Both are switched on again.
    milan.configure(json!({ "ttlSeconds": 3, "group": "campus" })).await;
    rome.finds("milan").await;
    milan.finds("rome").await;
    at_milan.stop();
    at_rome.stop();
}
