//! A cluster that was discovered before a user adds it.

use jiff::Timestamp;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tombolo_api::discovery::{ForeignCluster, ResourceRequest, SearchDomain};

use crate::{side::Side, story::delete_and_wait};

const KIND: &str = "discovery.liqo.io/discovery-type";
const LAST_UPDATE: &str = "discovery.liqo.io/last-update-time";
const RECORD: &str = "discovery.liqo.io/record";

pub async fn a_discovered_cluster_becomes_manual_when_a_user_adds_it(rome: &Side, milan: &Side) {
    let domain = json!({ "spec": { "domain": "example.com." } });
    rome.put::<SearchDomain>("company", domain).await;
    let company = rome.get::<SearchDomain>("company").await.expect("the SearchDomain");
    let owner = json!([{
        "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "SearchDomain",
        "name": "company", "uid": company.uid(),
    }]);
    for (kind, owners) in [("LAN", json!([])), ("WAN", owner)] {
        delete_and_wait(rome, "milan").await;
        let found = json!({
            "metadata": {
                "labels": { KIND: kind },
                "annotations": { LAST_UPDATE: Timestamp::now().to_string(), RECORD: "a." },
                "ownerReferences": owners,
            },
            "spec": { "authUrl": milan.url, "ttl": 600, "clusterIdentity": milan.cluster() },
        });
        rome.put::<ForeignCluster>("milan", found).await;
        rome.wait_for_reason("milan", "Accepted").await;
        let uid = rome.entry("milan").await.uid();

        rome.add_foreign_cluster("mine", &milan.url).await;
        let message = rome.wait_for_reason("mine", "Duplicate").await;
        assert!(message.contains("ForeignCluster milan"), "{message}");
        let stays = rome.until::<ForeignCluster>("milan", |it| it.labels()[KIND] == "Manual").await;
        assert!(stays.owner_references().is_empty() && stays.spec.ttl.is_none(), "{kind}");
        for key in [LAST_UPDATE, RECORD] {
            assert!(!stays.annotations().contains_key(key), "{kind}: {key}");
        }
        let mine = rome.entry("mine").await;
        assert_eq!(
            (mine.spec.cluster_identity, stays.uid()),
            (None, uid),
            "the ForeignCluster was duplicated or replaced"
        );
        delete_and_wait(rome, "mine").await;
        rome.wait_for_reason("milan", "Accepted").await;
    }
    rome.delete::<SearchDomain>("company").await;
}

/// Milan is an incoming peering, and a search domain lists its URL without a cluster id.
pub async fn a_discovered_duplicate_does_not_make_it_manual(rome: &Side, milan: &Side) {
    let request = json!({ "spec": { "clusterIdentity": milan.cluster(), "authUrl": milan.url } });
    rome.put_in::<ResourceRequest>("liqo-tenant-milan", "milan", request).await;
    set_discovery_type(rome, "IncomingPeering").await;
    let nameless = json!({
        "metadata": { "labels": { KIND: "WAN" } },
        "spec": { "authUrl": milan.url, "ttl": 600 },
    });
    rome.put::<ForeignCluster>("campus", nameless).await;
    rome.wait_for_reason("campus", "Duplicate").await;
    assert_eq!(rome.entry("milan").await.labels()[KIND], "IncomingPeering");
    delete_and_wait(rome, "campus").await;
    set_discovery_type(rome, "Manual").await;
    rome.delete_in::<ResourceRequest>("liqo-tenant-milan", "milan").await;
}

pub async fn an_unreachable_cluster_has_its_discovery_type(rome: &Side) {
    rome.add_foreign_cluster("nobody", "https://127.0.0.1:1").await;
    rome.wait_for_reason("nobody", "AuthUnreachable").await;
    assert_eq!(rome.entry("nobody").await.labels()[KIND], "Manual");
    delete_and_wait(rome, "nobody").await;
}

async fn set_discovery_type(rome: &Side, kind: &str) {
    let labels: Value = json!({ "metadata": { "labels": { KIND: kind } } });
    let clusters = rome.all::<ForeignCluster>();
    let done = clusters.patch("milan", &PatchParams::default(), &Patch::Merge(labels)).await;
    done.expect("patched");
}
