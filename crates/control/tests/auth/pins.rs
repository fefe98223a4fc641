//! Which certificate the auth service has to show, and who said so.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tombolo_api::discovery::{ForeignCluster, condition::AUTHENTICATED};
use tombolo_core::condition::find;
use tombolo_testbed::eventually;

use crate::{
    side::Side,
    story::{forget, touch},
};

/// Milan gets another certificate while rome keeps to the first one that it was shown.
pub async fn another_certificate_is_not_trusted_before_somebody_says_so(rome: &Side, milan: &Side) {
    let message = rome.says("milan", "Accepted").await;
    assert!(message.contains("the certificate that it presented first"), "{message}");
    let first = pin(rome).await;

    milan.delete_in::<Secret>("liqo", "liqo-auth-cert").await;
    milan.until_in::<Secret>("liqo", "liqo-auth-cert", |_| true).await;
    let second = milan.fingerprint().await.to_string();
    assert_ne!(first, second);
    let asks_again = async || {
        // By what is left of the identity milan knows rome.
        changes_identity(rome, json!({ "data": { "kubeconfig": null } })).await;
        touch(rome, "milan").await;
        let conditions = rome.entry("milan").await.status.expect("a status").conditions;
        find(&conditions, AUTHENTICATED).map(|said| said.reason.clone())
    };
    let is_other = |reason: &Option<String>| reason.as_deref() == Some("OtherCertificate");
    eventually("another certificate is shown", asks_again, is_other).await;
    let message = rome.says("milan", "OtherCertificate").await;
    for part in [first.as_str(), &second, "it presented first", "put the new fingerprint into"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(pin(rome).await, first, "it was replaced silently");

    let spec = Patch::Merge(json!({ "spec": { "fingerprint": second } }));
    let clusters = rome.all::<ForeignCluster>();
    clusters.patch("milan", &PatchParams::default(), &spec).await.expect("changed");
    let message = rome.says("milan", "Accepted").await;
    assert!(message.contains("that a user has set in spec.fingerprint"), "{message}");
}

/// As discovery makes them.
pub async fn who_said_it_is_told(rome: &Side, milan: &Side) {
    forget(rome, "milan").await;
    let fingerprint = milan.fingerprint().await;
    for (by, text) in [("mDNS", "it announces by mDNS"), ("DNS", "its TXT record names")] {
        let annotations = json!({ "discovery.liqo.io/pinned-by": format!("{by} {fingerprint}") });
        let spec = json!({ "authUrl": milan.url, "fingerprint": fingerprint });
        let entry = json!({ "metadata": { "annotations": annotations }, "spec": spec });
        rome.put::<ForeignCluster>("milan", entry).await;
        let message = rome.says("milan", "Accepted").await;
        assert!(message.contains(text), "{text} is not in {message}");
        nothing_is_sent_to_who_did_not_give_the_identity(rome, milan).await;
        forget(rome, "milan").await;
    }
    rome.meets("milan", &milan.url).await;
    rome.says("milan", "Accepted").await;
}

/// As if another one had given the identity, and discovery had pinned milan's certificate since.
async fn nothing_is_sent_to_who_did_not_give_the_identity(rome: &Side, milan: &Side) {
    let (other, shown) = ("00".repeat(32), pin(rome).await);
    let asked = async || milan.secret("liqo-auth", "identity-id-of-rome", "request").await;
    let before = asked().await;
    let changed = json!({ "data": { "kubeconfig": null }, "stringData": { "fingerprint": other } });
    changes_identity(rome, changed).await;
    touch(rome, "milan").await;
    let message = rome.says("milan", "OtherCertificate").await;
    for part in [&*other, &shown, "kubectl annotate foreigncluster milan"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(asked().await, before, "it was asked");

    // What the message says to do.
    let annotations = json!({ "discovery.liqo.io/pinned-by": null });
    let by_hand = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let clusters = rome.all::<ForeignCluster>();
    clusters.patch("milan", &PatchParams::default(), &by_hand).await.expect("changed");
    let message = rome.says("milan", "Accepted").await;
    assert!(message.contains("that a user has set in spec.fingerprint"), "{message}");
    assert_eq!(rome.secret(TENANT, "liqo-identity", "fingerprint").await, shown);
}

const TENANT: &str = "liqo-tenant-milan";

async fn changes_identity(rome: &Side, change: Value) {
    let secrets = rome.within::<Secret>(TENANT);
    let change = Patch::Merge(change);
    secrets.patch("liqo-identity", &PatchParams::default(), &change).await.expect("changed");
}

async fn pin(rome: &Side) -> String {
    rome.entry("milan").await.spec.fingerprint.expect("a fingerprint").to_string()
}
