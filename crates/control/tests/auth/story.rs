//! How two clusters get to know one another, and how it ends.

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

/// No story of its own: what others begin with.
pub async fn both_get_an_identity(rome: &Side, milan: &Side) {
    rome.has_token("token-for-milan", &milan.cluster(), &milan.token().await).await;
    rome.meets("milan", &milan.url).await;
    rome.says("milan", "Accepted").await;
    the_token_that_came_along_is_enough(rome, milan).await;
}

pub async fn a_wrong_url_is_named(rome: &Side) {
    rome.meets("nowhere", "https://127.0.0.1:1").await;
    let message = rome.says("nowhere", "AuthUnreachable").await;
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
    forget(rome, "nowhere").await;
}

pub async fn no_token_and_a_wrong_one_are_refused_until_there_is_the_right_one(
    rome: &Side,
    milan: &Side,
) {
    rome.meets("milan", &milan.url).await;
    let message = rome.says("milan", "EmptyTokenRefused").await;
    assert!(message.contains(&milan.url) && message.contains("liqo/auth-token"), "{message}");
    assert_eq!(auth_status(rome, "milan").await, Some(AuthStatus::EmptyRefused));

    rome.has_token("token-for-milan", &milan.cluster(), "not the right one").await;
    rome.says("milan", "WrongToken").await;
    assert_eq!(auth_status(rome, "milan").await, Some(AuthStatus::Refused));

    let start = Instant::now();
    rome.has_token("token-for-milan", &milan.cluster(), &milan.token().await).await;
    rome.says("milan", "Accepted").await;
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

pub async fn the_token_that_came_along_is_enough(rome: &Side, milan: &Side) {
    milan.meets("rome", &rome.url).await;
    milan.says("rome", "Accepted").await;
}

pub async fn a_cluster_is_known_once_and_never_to_itself(rome: &Side, milan: &Side) {
    rome.meets("again", &milan.url).await;
    let message = rome.says("again", "Duplicate").await;
    assert!(message.contains("ForeignCluster milan"), "{message}");
    assert_eq!(rome.entry("again").await.spec.cluster_identity, None);
    rome.meets("self", &rome.url).await;
    rome.says("self", "OwnCluster").await;
    forget(rome, "again").await;
    forget(rome, "self").await;
    assert!(identity_is_there(rome, "milan").await, "the identity is not the duplicate's");

    let wrong = json!({ "authUrl": milan.url, "fingerprint": "00".repeat(32) });
    rome.put::<ForeignCluster>("other", json!({ "spec": wrong })).await;
    let message = rome.says("other", "OtherCertificate").await;
    assert!(message.contains("spec.fingerprint"), "{message}");
    forget(rome, "other").await;
}

pub async fn an_identity_outlives_the_url_it_came_from(rome: &Side, milan: &Side) {
    rome.moves("milan", "https://127.0.0.1:1").await;
    let first = rome.secret("liqo-tenant-milan", "liqo-identity", "kubeconfig").await;
    all_was_looked_at(rome).await;
    rome.says("milan", "Accepted").await;
    let kept = rome.secret("liqo-tenant-milan", "liqo-identity", "kubeconfig").await;
    assert!(kept == first, "another identity was asked for");
    rome.moves("milan", &milan.url).await;
}

/// Milan's API server was elsewhere when it gave the identity, and does not answer there any more.
pub async fn an_identity_follows_the_api_server_that_it_is_for(rome: &Side, milan: &Side) {
    let kubeconfig = async || rome.secret("liqo-tenant-milan", "liqo-identity", "kubeconfig").await;
    let server = &milan.settings.api_server_url;
    let elsewhere = kubeconfig().await.replace(server, "https://127.0.0.1:1");
    assert!(!elsewhere.contains(server), "{server}");
    let data = json!({ "stringData": { "kubeconfig": elsewhere } });
    let secrets = rome.within::<Secret>("liqo-tenant-milan");
    let changed =
        secrets.patch("liqo-identity", &PatchParams::default(), &Patch::Merge(data)).await;
    changed.expect("it is changed");
    let unreachable = json!({ "conditions": [condition("APIServer", "False")] });
    rome.put_status::<ForeignCluster>("milan", unreachable).await;
    touch(rome, "milan").await;
    eventually("it is where milan is now", kubeconfig, |now| now.contains(server)).await;
    rome.says("milan", "Accepted").await;
}

/// An entry that was made later has been dealt with from its beginning to its end.
async fn all_was_looked_at(side: &Side) {
    side.meets("later", "https://127.0.0.1:1").await;
    side.says("later", "AuthUnreachable").await;
    forget(side, "later").await;
}

/// Has the controllers look at an entry.
pub async fn touch(side: &Side, name: &str) {
    let annotations = json!({ "touched": Timestamp::now().to_string() });
    let touch = Patch::Merge(json!({ "metadata": { "annotations": annotations } }));
    let clusters = side.all::<ForeignCluster>();
    clusters.patch(name, &PatchParams::default(), &touch).await.expect("touched");
}

pub async fn a_lost_identity_is_asked_for_again(rome: &Side, milan: &Side) {
    // Lost here.
    rome.delete_in::<Secret>("liqo-tenant-milan", "liqo-identity").await;
    touch(rome, "milan").await;
    let ask = async || identity_is_there(rome, "milan").await;
    eventually("the identity is there again", ask, |there| *there).await;

    // Taken away there, so that the API server does not know us.
    let accounts = Api::<ServiceAccount>::namespaced(milan.client.clone(), "liqo-tenant-rome");
    let first = accounts.get("liqo-cluster").await.expect("the account").uid();
    let records = Api::<Secret>::namespaced(milan.client.clone(), "liqo-auth");
    records.delete("identity-id-of-rome", &Default::default()).await.expect("deleted");
    let gone = async || accounts.get_opt("liqo-cluster").await.expect("an answer").is_none();
    eventually("the account is gone", gone, |gone| *gone).await;
    let unreachable = json!({ "conditions": [condition("APIServer", "False")] });
    rome.put_status::<ForeignCluster>("milan", unreachable).await;
    let again = async || {
        accounts.get_opt("liqo-cluster").await.expect("an answer").map(|account| account.uid())
    };
    let another = |uid: &Option<Option<String>>| uid.as_ref().is_some_and(|uid| *uid != first);
    eventually("another account", again, another).await;
    let works = async || {
        let there = rome.identity_at(milan).await;
        let requests = Api::<ResourceRequest>::namespaced(there.client, &there.namespace);
        requests.list(&Default::default()).await.is_ok()
    };
    eventually("the new identity works", works, |works| *works).await;
}

pub async fn a_request_makes_a_cluster_known(rome: &Side, milan: &Side) {
    forget(milan, "rome").await;
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
    eventually("rome asks", ask, Result::is_ok).await.expect("it was asked");
    milan.says("rome", "Accepted").await;
    let entry = milan.entry("rome").await;
    assert_eq!(entry.labels()["discovery.liqo.io/discovery-type"], "IncomingPeering");

    // Who deletes it says no, and that stands until the request is taken back.
    forget(milan, "rome").await;
    let refused = |request: &ResourceRequest| {
        request.status.as_ref().is_some_and(|status| status.state == RequestState::Refused)
    };
    milan.until_in("liqo-tenant-rome", "rome", refused).await;
    all_was_looked_at(milan).await;
    assert!(milan.get::<ForeignCluster>("rome").await.is_none(), "it came back");
    requests.delete("rome", &Default::default()).await.expect("deleted");
    eventually("rome asks again", ask, Result::is_ok).await.expect("it was asked");
    milan.says("rome", "Accepted").await;

    // It goes with the request, but not before all that came with the peering has gone; and who asks
    // again meanwhile is not refused.
    milan.put_in::<NetworkConfig>("liqo-tenant-rome", "rome", network_config()).await;
    let first = milan.entry("rome").await.uid();
    requests.delete("rome", &Default::default()).await.expect("deleted");
    milan.until::<ForeignCluster>("rome", |it| it.metadata.deletion_timestamp.is_some()).await;
    eventually("rome asks once more", ask, Result::is_ok).await.expect("it was asked");
    milan.until::<ForeignCluster>("rome", |entry| entry.uid() != first).await;
    milan.says("rome", "Accepted").await;
    let asked = milan.get_in::<ResourceRequest>("liqo-tenant-rome", "rome").await;
    assert!(asked.is_some_and(|request| !refused(&request)), "it was refused");
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

/// Rome has an identity at milan, which can't get one in return.
pub async fn what_was_never_reached_can_be_deleted(rome: &Side, milan: &Side) {
    let spec = json!({ "authUrl": "https://127.0.0.1:1", "clusterIdentity": rome.cluster() });
    milan.put::<ForeignCluster>("rome", json!({ "spec": spec })).await;
    milan.says("rome", "AuthUnreachable").await;
    milan.put_in::<NetworkConfig>("liqo-tenant-rome", "rome", network_config()).await;
    milan.delete::<ForeignCluster>("rome").await;
    all_was_looked_at(milan).await;
    milan.entry("rome").await;
    milan.delete_in::<NetworkConfig>("liqo-tenant-rome", "rome").await;
    milan.until_gone::<ForeignCluster>("rome").await;
}

pub async fn what_is_deleted_leaves_nothing(rome: &Side, milan: &Side) {
    forget(rome, "milan").await;
    for (side, peer) in [(rome, "milan"), (milan, "rome")] {
        side.until_gone::<Namespace>(&format!("liqo-tenant-{peer}")).await;
        let name = format!("identity-id-of-{peer}");
        assert!(side.get_in::<Secret>("liqo-auth", &name).await.is_none(), "{name}");
    }
    // And from the start, without a token where none is needed.
    rome.delete_in::<Secret>("liqo", "token-for-milan").await;
    rome.meets("milan", &milan.url).await;
    rome.says("milan", "EmptyTokenRefused").await;
    forget(rome, "milan").await;
    milan.takes_no_token(true).await;
    rome.meets("milan", &milan.url).await;
    rome.says("milan", "Accepted").await;
}

async fn auth_status(side: &Side, name: &str) -> Option<AuthStatus> {
    side.entry(name).await.status.and_then(|status| status.auth_status)
}

async fn identity_is_there(side: &Side, peer: &str) -> bool {
    let secret = side.get_in::<Secret>(&format!("liqo-tenant-{peer}"), "liqo-identity").await;
    secret.and_then(|secret| secret.data).is_some_and(|data| data.contains_key("kubeconfig"))
}

pub async fn forget(side: &Side, name: &str) {
    side.delete::<ForeignCluster>(name).await;
    side.until_gone::<ForeignCluster>(name).await;
}
