//! A cluster that was found in another way before somebody names it.

use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tombolo_api::discovery::{ForeignCluster, ResourceRequest, SearchDomain};

use crate::{side::Side, story::forget};

const KIND: &str = "discovery.liqo.io/discovery-type";
const LAST_UPDATE: &str = "discovery.liqo.io/last-update-time";
const RECORD: &str = "discovery.liqo.io/record";

pub async fn what_was_found_stays_once_somebody_names_it(rome: &Side, milan: &Side) {
    let domain = json!({ "spec": { "domain": "example.com." } });
    rome.put::<SearchDomain>("company", domain).await;
    let company = rome.get::<SearchDomain>("company").await.expect("it is there");
    let owner = json!([{
        "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "SearchDomain",
        "name": "company", "uid": company.uid(),
    }]);
    for (kind, owners) in [("LAN", json!([])), ("WAN", owner)] {
        forget(rome, "milan").await;
        let found = json!({
            "metadata": {
                "labels": { KIND: kind },
                "annotations": { LAST_UPDATE: Timestamp::now().to_string(), RECORD: "a." },
                "ownerReferences": owners,
            },
            "spec": { "authUrl": milan.url, "ttl": 600, "clusterIdentity": milan.cluster() },
        });
        rome.put::<ForeignCluster>("milan", found).await;
        rome.says("milan", "Accepted").await;
        let uid = rome.entry("milan").await.uid();

        rome.meets("mine", &milan.url).await;
        let message = rome.says("mine", "Duplicate").await;
        assert!(message.contains("ForeignCluster milan"), "{message}");
        let stays = rome.until::<ForeignCluster>("milan", |it| it.labels()[KIND] == "Manual").await;
        assert!(stays.owner_references().is_empty() && stays.spec.ttl.is_none(), "{kind}");
        for key in [LAST_UPDATE, RECORD] {
            assert!(!stays.annotations().contains_key(key), "{kind}: {key}");
        }
        let mine = rome.entry("mine").await;
        assert_eq!((mine.spec.cluster_identity, stays.uid()), (None, uid), "it is known once");
        forget(rome, "mine").await;
        rome.says("milan", "Accepted").await;
    }
    rome.delete::<SearchDomain>("company").await;
}

/// Milan is known because it has asked for a peering, and a domain lists it without saying who it is.
pub async fn what_was_only_found_names_nobody(rome: &Side, milan: &Side) {
    let request = json!({ "spec": { "clusterIdentity": milan.cluster(), "authUrl": milan.url } });
    rome.put_in::<ResourceRequest>("liqo-tenant-milan", "milan", request).await;
    is_of_kind(rome, "IncomingPeering").await;
    let nameless = json!({
        "metadata": { "labels": { KIND: "WAN" } },
        "spec": { "authUrl": milan.url, "ttl": 600 },
    });
    rome.put::<ForeignCluster>("campus", nameless).await;
    rome.says("campus", "Duplicate").await;
    assert_eq!(rome.entry("milan").await.labels()[KIND], "IncomingPeering");
    forget(rome, "campus").await;
    is_of_kind(rome, "Manual").await;
    rome.delete_in::<ResourceRequest>("liqo-tenant-milan", "milan").await;
}

pub async fn what_can_not_be_reached_says_who_made_it(rome: &Side) {
    rome.meets("nobody", "https://127.0.0.1:1").await;
    rome.says("nobody", "AuthUnreachable").await;
    assert_eq!(rome.entry("nobody").await.labels()[KIND], "Manual");
    forget(rome, "nobody").await;
}

async fn is_of_kind(rome: &Side, kind: &str) {
    let labels: Value = json!({ "metadata": { "labels": { KIND: kind } } });
    let clusters = rome.all::<ForeignCluster>();
    let done = clusters.patch("milan", &PatchParams::default(), &Patch::Merge(labels)).await;
    done.expect("it is changed");
}
