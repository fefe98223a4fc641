//! A cluster whose announcements stop for a while reuses its identity when they resume.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{ResourceExt, api::Patch};
use serde_json::{Value, json};
use tombolo_api::discovery::ForeignCluster;
use tombolo_runtime::metrics;

use crate::{side::Side, story::delete_and_wait};

const TENANT: &str = "liqo-tenant-milan";

/// Rome discovers milan in the LAN.
pub async fn a_cluster_that_returns_in_time_reuses_its_identity(rome: &Side, milan: &Side) {
    delete_and_wait(rome, "milan").await;
    discover(rome, milan).await;
    let given = rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
    let asked = milan.secret("liqo-auth", "identity-id-of-rome", "request").await;

    // The announcement has expired.
    rome.delete::<ForeignCluster>("milan").await;
    rome.until_gone::<ForeignCluster>("milan").await;
    rome.until::<Namespace>(TENANT, |it| it.annotations().contains_key(KEPT_UNTIL)).await;
    a_kept_identity_survives_the_release_by_the_peer(rome, milan).await;
    let count = reused_identities();
    discover(rome, milan).await;
    assert!(
        rome.secret(TENANT, "liqo-identity", "kubeconfig").await == given,
        "the identity was replaced"
    );
    let again = milan.secret("liqo-auth", "identity-id-of-rome", "request").await;
    assert_eq!(again, asked, "the identity was requested again");
    assert_eq!(reused_identities(), count + 1.0);

    // The identity expires before milan is discovered again.
    let end = Timestamp::now().as_second() + 3;
    set_expiry(rome, end).await;
    rome.delete::<ForeignCluster>("milan").await;
    rome.until_gone::<ForeignCluster>("milan").await;
    rome.until_gone_in::<Secret>(TENANT, "liqo-identity").await;
    assert!(Timestamp::now().as_second() >= end, "the identity was deleted before it expired");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-rome").await;

    let is_over = |it: &Namespace| !it.annotations().contains_key(KEPT_UNTIL);
    rome.until::<Namespace>(TENANT, is_over).await;

    // Deleting a cluster that is still announced deletes its identity at once.
    discover(rome, milan).await;
    let now = Timestamp::now().to_string();
    let seen = json!({
        "metadata": { "annotations": { LAST_UPDATE: now } }, "spec": { "ttl": 600 },
    });
    let clusters = rome.all::<ForeignCluster>();
    clusters.patch("milan", &Default::default(), &Patch::Merge(seen)).await.expect("changed");
    delete_and_wait(rome, "milan").await;
    assert!(rome.get_in::<Secret>(TENANT, "liqo-identity").await.is_none());
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-rome").await;
    rome.add_foreign_cluster("milan", &milan.url).await;
    rome.wait_for_reason("milan", "Accepted").await;
}

/// Milan releases its identity in rome. Rome keeps its own identity in milan.
async fn a_kept_identity_survives_the_release_by_the_peer(rome: &Side, milan: &Side) {
    delete_and_wait(milan, "rome").await;
    rome.until_gone_in::<Secret>("liqo-auth", "identity-id-of-milan").await;
    let namespace = rome.get::<Namespace>(TENANT).await.expect("the namespace");
    assert!(namespace.metadata.deletion_timestamp.is_none(), "the namespace is being deleted");
    assert!(
        rome.get_in::<Secret>(TENANT, "liqo-identity").await.is_some(),
        "the identity was deleted"
    );
    milan.add_foreign_cluster("rome", &rome.url).await;
    milan.wait_for_reason("rome", "Accepted").await;
}

/// Replaces the certificate of rome's identity with a token that expires at `end`.
async fn set_expiry(rome: &Side, end: i64) {
    let text = rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
    let mut kubeconfig: Value = serde_json::from_str(&text).expect("JSON");
    let claims = json!({ "iat": end - 3600, "exp": end, "sub": "liqo-cluster" }).to_string();
    let token = format!("head.{}.tail", URL_SAFE_NO_PAD.encode(claims));
    kubeconfig["users"][0]["user"] = json!({ "token": token });
    let data = Patch::Merge(json!({ "stringData": { "kubeconfig": kubeconfig.to_string() } }));
    let secrets = rome.within::<Secret>(TENANT);
    secrets.patch("liqo-identity", &Default::default(), &data).await.expect("changed");
}

const KEPT_UNTIL: &str = "discovery.liqo.io/identity-kept-until";
const LAST_UPDATE: &str = "discovery.liqo.io/last-update-time";

/// Creates the ForeignCluster of an announcement with a TTL of one second that expired long ago.
async fn discover(rome: &Side, milan: &Side) {
    let fingerprint = milan.fingerprint().await;
    let entry = json!({
        "metadata": {
            "labels": { "discovery.liqo.io/discovery-type": "LAN" },
            "annotations": {
                LAST_UPDATE: "2026-01-01T00:00:00Z",
                "discovery.liqo.io/found-time": Timestamp::now().to_string(),
                "discovery.liqo.io/pinned-by": format!("mDNS {fingerprint}"),
            },
        },
        "spec": {
            "authUrl": milan.url, "ttl": 1, "fingerprint": fingerprint,
            "clusterIdentity": milan.cluster(),
        },
    });
    rome.put::<ForeignCluster>("milan", entry).await;
    rome.wait_for_reason("milan", "Accepted").await;
}

/// The metric that counts discovered clusters with a reused identity.
fn reused_identities() -> f64 {
    let text = metrics::text().expect("metrics");
    let mut lines = text.lines();
    let line = lines.find_map(|line| {
        line.strip_prefix("tombolo_discovery_duration_seconds_count{identity=\"reused\"} ")
    });
    line.map_or(0.0, |count| count.parse().expect("a number"))
}
