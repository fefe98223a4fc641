//! The pinned certificate of a peer's auth service, and the source of the pin.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tombolo_api::discovery::{ForeignCluster, condition::AUTHENTICATED};
use tombolo_core::condition::find;
use tombolo_testbed::eventually;

use crate::{
    side::Side,
    story::{delete_and_wait, touch},
};

/// Milan's certificate is replaced while rome has pinned the first one.
pub async fn a_changed_certificate_is_rejected_until_a_user_pins_it(rome: &Side, milan: &Side) {
    let message = rome.wait_for_reason("milan", "Accepted").await;
    assert!(message.contains("the certificate that it presented first"), "{message}");
    let first = pin(rome).await;

    milan.delete_in::<Secret>("liqo", "liqo-auth-cert").await;
    milan.until_in::<Secret>("liqo", "liqo-auth-cert", |_| true).await;
    let second = milan.fingerprint().await.to_string();
    assert_ne!(first, second);
    let asks_again = async || {
        // The nonce stays: milan still recognizes rome.
        patch_identity(rome, json!({ "data": { "kubeconfig": null } })).await;
        touch(rome, "milan").await;
        let conditions = rome.entry("milan").await.status.expect("a status").conditions;
        find(&conditions, AUTHENTICATED).map(|said| said.reason.clone())
    };
    let is_other = |reason: &Option<String>| reason.as_deref() == Some("OtherCertificate");
    eventually("the changed certificate is detected", asks_again, is_other).await;
    let message = rome.wait_for_reason("milan", "OtherCertificate").await;
    for part in [first.as_str(), &second, "it presented first", "put the new fingerprint into"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(pin(rome).await, first, "the pin was replaced without the user");

    let spec = Patch::Merge(json!({ "spec": { "fingerprint": second } }));
    let clusters = rome.all::<ForeignCluster>();
    clusters.patch("milan", &PatchParams::default(), &spec).await.expect("changed");
    let message = rome.wait_for_reason("milan", "Accepted").await;
    assert!(message.contains("that a user has set in spec.fingerprint"), "{message}");
}

/// ForeignClusters as discovery creates them.
pub async fn the_source_of_the_pin_is_reported(rome: &Side, milan: &Side) {
    delete_and_wait(rome, "milan").await;
    let fingerprint = milan.fingerprint().await;
    for (by, text) in [("mDNS", "it announces by mDNS"), ("DNS", "its TXT record names")] {
        let annotations = json!({ "discovery.liqo.io/pinned-by": format!("{by} {fingerprint}") });
        let spec = json!({ "authUrl": milan.url, "fingerprint": fingerprint });
        let entry = json!({ "metadata": { "annotations": annotations }, "spec": spec });
        rome.put::<ForeignCluster>("milan", entry).await;
        let message = rome.wait_for_reason("milan", "Accepted").await;
        assert!(message.contains(text), "{text} is not in {message}");
        the_nonce_is_not_sent_to_another_certificate(rome, milan).await;
        delete_and_wait(rome, "milan").await;
    }
    rome.add_foreign_cluster("milan", &milan.url).await;
    rome.wait_for_reason("milan", "Accepted").await;
}

/// The identity was issued under another certificate. Discovery has pinned milan's since.
async fn the_nonce_is_not_sent_to_another_certificate(rome: &Side, milan: &Side) {
    let (other, shown) = ("00".repeat(32), pin(rome).await);
    let asked = async || milan.secret("liqo-auth", "identity-id-of-rome", "request").await;
    let before = asked().await;
    let changed = json!({ "data": { "kubeconfig": null }, "stringData": { "fingerprint": other } });
    patch_identity(rome, changed).await;
    touch(rome, "milan").await;
    let message = rome.wait_for_reason("milan", "OtherCertificate").await;
    for part in [&*other, &shown, "kubectl annotate foreigncluster milan"] {
        assert!(message.contains(part), "{part} is not in {message}");
    }
    assert_eq!(asked().await, before, "a request was sent");

    // The remedy from the message.
    let annotations = json!({ "discovery.liqo.io/pinned-by": null });
    let by_hand = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let clusters = rome.all::<ForeignCluster>();
    clusters.patch("milan", &PatchParams::default(), &by_hand).await.expect("changed");
    let message = rome.wait_for_reason("milan", "Accepted").await;
    assert!(message.contains("that a user has set in spec.fingerprint"), "{message}");
    assert_eq!(rome.secret(TENANT, "liqo-identity", "fingerprint").await, shown);
}

const TENANT: &str = "liqo-tenant-milan";

async fn patch_identity(rome: &Side, change: Value) {
    let secrets = rome.within::<Secret>(TENANT);
    let change = Patch::Merge(change);
    secrets.patch("liqo-identity", &PatchParams::default(), &change).await.expect("changed");
}

async fn pin(rome: &Side) -> String {
    rome.entry("milan").await.spec.fingerprint.expect("a fingerprint").to_string()
}
