//! The life cycle of a ForeignCluster and its identity, from creation to deletion.

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Namespace, Secret, ServiceAccount};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tombolo_api::{
    discovery::{AuthStatus, ForeignCluster, RequestState, ResourceRequest},
    net::NetworkConfig,
};
use tombolo_testbed::eventually;
use tombolo_testing::condition;

use crate::side::Side;

/// Setup of other stories: each cluster gets an identity in the other.
pub async fn exchange_identities(rome: &Side, milan: &Side) {
    rome.add_token("token-for-milan", &milan.cluster(), &milan.token().await).await;
    rome.add_foreign_cluster("milan", &milan.url).await;
    rome.wait_for_reason("milan", "Accepted").await;
    the_return_token_is_accepted(rome, milan).await;
}

pub async fn an_unreachable_url_is_reported(rome: &Side) {
    rome.add_foreign_cluster("nowhere", "https://127.0.0.1:1").await;
    let message = rome.wait_for_reason("nowhere", "AuthUnreachable").await;
    let expected = "GET https://127.0.0.1:1/info: connection refused; check";
    assert!(message.starts_with(expected), "{message}");
    let events = Api::<Event>::all(rome.client.clone());
    let ask = async || {
        let events = events.list(&Default::default()).await.expect("events");
        let about = |event: &&Event| event.involved_object.name.as_deref() == Some("nowhere");
        events.iter().find(about).and_then(|event| event.reason.clone())
    };
    let said = |reason: &Option<String>| reason.as_deref() == Some("AuthUnreachable");
    eventually("an event", ask, said).await;
    delete_and_wait(rome, "nowhere").await;
}

pub async fn missing_and_wrong_tokens_are_rejected_until_the_token_is_correct(
    rome: &Side,
    milan: &Side,
) {
    rome.add_foreign_cluster("milan", &milan.url).await;
    let message = rome.wait_for_reason("milan", "EmptyTokenRefused").await;
    assert!(message.contains(&milan.url) && message.contains("liqo/auth-token"), "{message}");
    assert_eq!(auth_status(rome, "milan").await, Some(AuthStatus::EmptyRefused));

    rome.add_token("token-for-milan", &milan.cluster(), "not the right one").await;
    rome.wait_for_reason("milan", "WrongToken").await;
    assert_eq!(auth_status(rome, "milan").await, Some(AuthStatus::Refused));

    let start = Instant::now();
    rome.add_token("token-for-milan", &milan.cluster(), &milan.token().await).await;
    rome.wait_for_reason("milan", "Accepted").await;
    println!("identity {} ms after the token", start.elapsed().as_millis());

    let entry = rome.entry("milan").await;
    assert_eq!(entry.spec.cluster_identity, Some(milan.cluster()));
    assert!(entry.spec.fingerprint.is_some(), "the first certificate is pinned");
    assert_eq!(entry.labels()["discovery.liqo.io/discovery-type"], "Manual");
    let status = entry.status.expect("a status");
    assert_eq!(status.auth_status, Some(AuthStatus::Accepted));
    let tenant = status.tenant_namespace.expect("namespaces");
    assert_eq!(tenant.local.as_deref(), Some("liqo-tenant-milan"));
    assert_eq!(tenant.remote.as_deref(), Some("liqo-tenant-rome"));
}

pub async fn the_return_token_is_accepted(rome: &Side, milan: &Side) {
    milan.add_foreign_cluster("rome", &rome.url).await;
    milan.wait_for_reason("rome", "Accepted").await;
}

pub async fn duplicates_and_the_own_cluster_are_rejected(rome: &Side, milan: &Side) {
    rome.add_foreign_cluster("again", &milan.url).await;
    let message = rome.wait_for_reason("again", "Duplicate").await;
    assert!(message.contains("ForeignCluster milan"), "{message}");
    assert_eq!(rome.entry("again").await.spec.cluster_identity, None);
    rome.add_foreign_cluster("self", &rome.url).await;
    rome.wait_for_reason("self", "OwnCluster").await;
    delete_and_wait(rome, "again").await;
    delete_and_wait(rome, "self").await;
    assert!(
        has_identity(rome, "milan").await,
        "deleting the duplicate must not delete the identity"
    );

    let wrong = json!({ "authUrl": milan.url, "fingerprint": "00".repeat(32) });
    rome.put::<ForeignCluster>("other", json!({ "spec": wrong })).await;
    let message = rome.wait_for_reason("other", "OtherCertificate").await;
    assert!(message.contains("spec.fingerprint"), "{message}");
    delete_and_wait(rome, "other").await;
}

pub async fn an_identity_survives_a_change_of_the_auth_url(rome: &Side, milan: &Side) {
    rome.set_auth_url("milan", "https://127.0.0.1:1").await;
    let first = rome.secret("liqo-tenant-milan", "liqo-identity", "kubeconfig").await;
    wait_for_reconciliation(rome).await;
    rome.wait_for_reason("milan", "Accepted").await;
    let kept = rome.secret("liqo-tenant-milan", "liqo-identity", "kubeconfig").await;
    assert!(kept == first, "another identity was requested");
    rome.set_auth_url("milan", &milan.url).await;
}

/// The kubeconfig holds an old address of milan's API server, which no longer responds.
pub async fn an_identity_follows_the_address_of_the_api_server(rome: &Side, milan: &Side) {
    let kubeconfig = async || rome.secret("liqo-tenant-milan", "liqo-identity", "kubeconfig").await;
    let server = &milan.settings.api_server_url;
    let elsewhere = kubeconfig().await.replace(server, "https://127.0.0.1:1");
    assert!(!elsewhere.contains(server), "{server}");
    let data = json!({ "stringData": { "kubeconfig": elsewhere } });
    let secrets = rome.within::<Secret>("liqo-tenant-milan");
    let changed =
        secrets.patch("liqo-identity", &PatchParams::default(), &Patch::Merge(data)).await;
    changed.expect("patched");
    let unreachable = json!({ "conditions": [condition("APIServer", "False")] });
    rome.put_status::<ForeignCluster>("milan", unreachable).await;
    touch(rome, "milan").await;
    eventually("the kubeconfig has the new address of the API server", kubeconfig, |now| {
        now.contains(server)
    })
    .await;
    rome.wait_for_reason("milan", "Accepted").await;
}

/// Waits until a ForeignCluster that is created now has been reconciled and deleted. Earlier
/// changes have been reconciled by then.
async fn wait_for_reconciliation(side: &Side) {
    side.add_foreign_cluster("later", "https://127.0.0.1:1").await;
    side.wait_for_reason("later", "AuthUnreachable").await;
    delete_and_wait(side, "later").await;
}

/// Triggers the reconciliation of a ForeignCluster.
pub async fn touch(side: &Side, name: &str) {
    let annotations = json!({ "touched": Timestamp::now().to_string() });
    let touch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let clusters = side.all::<ForeignCluster>();
    clusters.patch(name, &PatchParams::default(), &touch).await.expect("touched");
}

pub async fn a_lost_identity_is_requested_again(rome: &Side, milan: &Side) {
    // The Secret is deleted in rome.
    rome.delete_in::<Secret>("liqo-tenant-milan", "liqo-identity").await;
    touch(rome, "milan").await;
    let ask = async || has_identity(rome, "milan").await;
    eventually("the identity exists again", ask, |there| *there).await;

    // The identity is revoked in milan: its API server rejects the credentials.
    let accounts = Api::<ServiceAccount>::namespaced(milan.client.clone(), "liqo-tenant-rome");
    let first = accounts.get("liqo-cluster").await.expect("the account").uid();
    let records = Api::<Secret>::namespaced(milan.client.clone(), "liqo-auth");
    records.delete("identity-id-of-rome", &Default::default()).await.expect("deleted");
    let gone = async || accounts.get_opt("liqo-cluster").await.expect("an answer").is_none();
    eventually("the service account is deleted", gone, |gone| *gone).await;
    let unreachable = json!({ "conditions": [condition("APIServer", "False")] });
    rome.put_status::<ForeignCluster>("milan", unreachable).await;
    let again = async || {
        accounts.get_opt("liqo-cluster").await.expect("an answer").map(|account| account.uid())
    };
    let another = |uid: &Option<Option<String>>| uid.as_ref().is_some_and(|uid| *uid != first);
    eventually("a new service account", again, another).await;
    let works = async || {
        let there = rome.identity_at(milan).await;
        let requests = Api::<ResourceRequest>::namespaced(there.client, &there.namespace);
        requests.list(&Default::default()).await.is_ok()
    };
    eventually("the new identity works", works, |works| *works).await;
}

pub async fn a_resource_request_adds_a_foreign_cluster(rome: &Side, milan: &Side) {
    delete_and_wait(milan, "rome").await;
    let there = rome.identity_at(milan).await;
    let requests = Api::<ResourceRequest>::namespaced(there.client, &there.namespace);
    let request = json!({
        "metadata": {
            "name": "rome", "labels": { "liqo.io/replicated-from": rome.settings.cluster_id },
        },
        "spec": { "clusterIdentity": rome.cluster(), "authUrl": rome.url },
    });
    let ask = async || {
        requests
            .patch(
                "rome",
                &PatchParams::apply("test").force(),
                &Patch::Apply({
                    let mut request = request.clone();
                    request["apiVersion"] = "discovery.liqo.io/v1alpha1".into();
                    request["kind"] = "ResourceRequest".into();
                    request
                }),
            )
            .await
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    eventually("rome creates the ResourceRequest", ask, Result::is_ok).await.expect("created");
    milan.wait_for_reason("rome", "Accepted").await;
    let entry = milan.entry("rome").await;
    assert_eq!(entry.labels()["discovery.liqo.io/discovery-type"], "IncomingPeering");

    // Deleting the ForeignCluster refuses the request until the peer withdraws it.
    delete_and_wait(milan, "rome").await;
    let refused = |request: &ResourceRequest| {
        request.status.as_ref().is_some_and(|status| status.state == RequestState::Refused)
    };
    milan.until_in("liqo-tenant-rome", "rome", refused).await;
    wait_for_reconciliation(milan).await;
    assert!(
        milan.get::<ForeignCluster>("rome").await.is_none(),
        "the ForeignCluster was created again"
    );
    requests.delete("rome", &Default::default()).await.expect("deleted");
    eventually("rome creates the ResourceRequest again", ask, Result::is_ok)
        .await
        .expect("created");
    milan.wait_for_reason("rome", "Accepted").await;

    // Deleting the request deletes the ForeignCluster once all objects of the peering are gone. A
    // new request in the meantime is not refused.
    milan.put_in::<NetworkConfig>("liqo-tenant-rome", "rome", network_config()).await;
    let first = milan.entry("rome").await.uid();
    requests.delete("rome", &Default::default()).await.expect("deleted");
    milan.until::<ForeignCluster>("rome", |it| it.metadata.deletion_timestamp.is_some()).await;
    eventually("rome creates the ResourceRequest once more", ask, Result::is_ok)
        .await
        .expect("created");
    milan.until::<ForeignCluster>("rome", |entry| entry.uid() != first).await;
    milan.wait_for_reason("rome", "Accepted").await;
    let asked = milan.get_in::<ResourceRequest>("liqo-tenant-rome", "rome").await;
    assert!(asked.is_some_and(|request| !refused(&request)), "the new request was refused");
    milan.delete_in::<NetworkConfig>("liqo-tenant-rome", "rome").await;
    requests.delete("rome", &Default::default()).await.expect("deleted");
    milan.until_gone::<ForeignCluster>("rome").await;
}

fn network_config() -> serde_json::Value {
    json!({ "spec": {
        "clusterID": "id-of-milan", "podCIDR": "10.1.0.0/16", "externalCIDR": "10.2.0.0/16",
        "endpointIP": "192.0.2.1", "backendType": "wireguard", "backend_config": { "port": "51840" },
    } })
}

/// Rome has an identity in milan. Milan can't reach rome to get one.
pub async fn an_unreachable_cluster_can_be_deleted(rome: &Side, milan: &Side) {
    let spec = json!({ "authUrl": "https://127.0.0.1:1", "clusterIdentity": rome.cluster() });
    milan.put::<ForeignCluster>("rome", json!({ "spec": spec })).await;
    milan.wait_for_reason("rome", "AuthUnreachable").await;
    milan.put_in::<NetworkConfig>("liqo-tenant-rome", "rome", network_config()).await;
    milan.delete::<ForeignCluster>("rome").await;
    wait_for_reconciliation(milan).await;
    milan.entry("rome").await;
    milan.delete_in::<NetworkConfig>("liqo-tenant-rome", "rome").await;
    milan.until_gone::<ForeignCluster>("rome").await;
}

pub async fn deletion_leaves_no_objects(rome: &Side, milan: &Side) {
    delete_and_wait(rome, "milan").await;
    for (side, peer) in [(rome, "milan"), (milan, "rome")] {
        side.until_gone::<Namespace>(&format!("liqo-tenant-{peer}")).await;
        let name = format!("identity-id-of-{peer}");
        assert!(side.get_in::<Secret>("liqo-auth", &name).await.is_none(), "{name}");
    }
    // A new peering needs no token once milan accepts empty tokens.
    rome.delete_in::<Secret>("liqo", "token-for-milan").await;
    rome.add_foreign_cluster("milan", &milan.url).await;
    rome.wait_for_reason("milan", "EmptyTokenRefused").await;
    delete_and_wait(rome, "milan").await;
    milan.allow_empty_token(true).await;
    rome.add_foreign_cluster("milan", &milan.url).await;
    rome.wait_for_reason("milan", "Accepted").await;
}

async fn auth_status(side: &Side, name: &str) -> Option<AuthStatus> {
    side.entry(name).await.status.and_then(|status| status.auth_status)
}

async fn has_identity(side: &Side, peer: &str) -> bool {
    let secret = side.get_in::<Secret>(&format!("liqo-tenant-{peer}"), "liqo-identity").await;
    secret.and_then(|secret| secret.data).is_some_and(|data| data.contains_key("kubeconfig"))
}

pub async fn delete_and_wait(side: &Side, name: &str) {
    side.delete::<ForeignCluster>(name).await;
    side.until_gone::<ForeignCluster>(name).await;
}
