//! A cluster that is not to be found for a while is known at once when it comes back.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{ResourceExt, api::Patch};
use serde_json::{Value, json};
use tombolo_api::discovery::ForeignCluster;
use tombolo_runtime::metrics;

use crate::{side::Side, story::forget};

const TENANT: &str = "liqo-tenant-milan";

/// Rome finds milan in the local network, as far as it can tell.
pub async fn who_comes_back_in_time_is_known_at_once(rome: &Side, milan: &Side) {
    forget(rome, "milan").await;
    finds(rome, milan).await;
    let given = rome.secret(TENANT, "liqo-identity", "kubeconfig").await;
    let asked = milan.secret("liqo-auth", "identity-id-of-rome", "request").await;

    // Nobody has seen it since.
    rome.delete::<ForeignCluster>("milan").await;
    rome.until_gone::<ForeignCluster>("milan").await;
    rome.until::<Namespace>(TENANT, |it| it.annotations().contains_key(KEPT_UNTIL)).await;
    what_is_kept_outlives_the_other_ones_identity(rome, milan).await;
    let count = from_before();
    finds(rome, milan).await;
    assert!(rome.secret(TENANT, "liqo-identity", "kubeconfig").await == given, "another one");
    let again = milan.secret("liqo-auth", "identity-id-of-rome", "request").await;
    assert_eq!(again, asked, "it was asked for again");
    assert_eq!(from_before(), count + 1.0);

    // It does not come back until its identity counts no more.
    let end = Timestamp::now().as_second() + 3;
    counts_until(rome, end).await;
    rome.delete::<ForeignCluster>("milan").await;
    rome.until_gone::<ForeignCluster>("milan").await;
    rome.until_gone_in::<Secret>(TENANT, "liqo-identity").await;
    assert!(Timestamp::now().as_second() >= end, "it could have come back");
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-rome").await;

    let is_over = |it: &Namespace| !it.annotations().contains_key(KEPT_UNTIL);
    rome.until::<Namespace>(TENANT, is_over).await;

    // Who is deleted while it is there is forgotten.
    finds(rome, milan).await;
    let now = Timestamp::now().to_string();
    let seen = json!({
        "metadata": { "annotations": { LAST_UPDATE: now } }, "spec": { "ttl": 600 },
    });
    let clusters = rome.all::<ForeignCluster>();
    clusters.patch("milan", &Default::default(), &Patch::Merge(seen)).await.expect("changed");
    forget(rome, "milan").await;
    assert!(rome.get_in::<Secret>(TENANT, "liqo-identity").await.is_none());
    milan.until_gone_in::<Secret>("liqo-auth", "identity-id-of-rome").await;
    rome.meets("milan", &milan.url).await;
    rome.says("milan", "Accepted").await;
}

/// Milan gives back the identity that it has at rome, which keeps the one that it has at milan.
async fn what_is_kept_outlives_the_other_ones_identity(rome: &Side, milan: &Side) {
    forget(milan, "rome").await;
    rome.until_gone_in::<Secret>("liqo-auth", "identity-id-of-milan").await;
    let namespace = rome.get::<Namespace>(TENANT).await.expect("the namespace");
    assert!(namespace.metadata.deletion_timestamp.is_none(), "it is being deleted");
    assert!(rome.get_in::<Secret>(TENANT, "liqo-identity").await.is_some(), "it is gone");
    milan.meets("rome", &rome.url).await;
    milan.says("rome", "Accepted").await;
}

/// Puts a token that ends then in the place of the certificate of rome's identity.
async fn counts_until(rome: &Side, end: i64) {
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

/// What discovery makes of an announcement that holds for one second, and was heard long ago.
async fn finds(rome: &Side, milan: &Side) {
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
    rome.says("milan", "Accepted").await;
}

/// How many clusters were known from before, as Prometheus is told.
fn from_before() -> f64 {
    let text = metrics::text().expect("metrics");
    let mut lines = text.lines();
    let line = lines.find_map(|line| {
        line.strip_prefix("tombolo_discovery_duration_seconds_count{identity=\"reused\"} ")
    });
    line.map_or(0.0, |count| count.parse().expect("a number"))
}
