//! Two clusters with the same name.

use std::net::TcpListener;

use k8s_openapi::api::core::v1::Event;
use kube::Api;
use tokio::sync::watch;
use tombolo_api::discovery::{AuthStatus, ForeignCluster};
use tombolo_control::auth;
use tombolo_runtime::{settings::Settings, shutdown::Shutdown};
use tombolo_testbed::eventually;

use crate::{side::Side, story::delete_and_wait};

/// A second auth service in milan claims the cluster name rome.
pub async fn a_cluster_with_the_same_name_is_rejected(rome: &Side, milan: &Side) {
    let settings = Settings {
        cluster_id: "id-of-the-other-rome".parse().unwrap(),
        cluster_name: rome.settings.cluster_name.clone(),
        ..milan.settings.clone()
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}", listener.local_addr().unwrap());
    let (running, (ready, mut is_ready)) = (Shutdown::new(), watch::channel(false));
    tokio::spawn(auth::serve(milan.client.clone(), settings, listener, ready, running.clone()));
    is_ready.wait_for(|ready| *ready).await.expect("the auth service starts");

    rome.add_foreign_cluster("namesake", &url).await;
    let message = rome.wait_for_reason("namesake", "SameName").await;
    assert!(message.contains("tombolo install --cluster-name"), "{message}");
    let entry = rome.entry("namesake").await;
    assert_eq!(entry.status.and_then(|status| status.auth_status), Some(AuthStatus::Refused));
    let events = Api::<Event>::all(rome.client.clone());
    let ask = async || {
        let events = events.list(&Default::default()).await.expect("events");
        let about = |event: &&Event| event.involved_object.name.as_deref() == Some("namesake");
        events.iter().find(about).and_then(|event| event.reason.clone())
    };
    eventually("an event", ask, |reason| reason.as_deref() == Some("SameName")).await;

    // The cluster has been renamed.
    let clusters = Api::<ForeignCluster>::all(rome.client.clone());
    let known = serde_json::json!({ "spec": {
        "authUrl": milan.url,
        "clusterIdentity": { "clusterID": milan.settings.cluster_id, "clusterName": "rome" },
    } });
    let patch = kube::api::Patch::Merge(known);
    clusters.patch("namesake", &Default::default(), &patch).await.expect("changed");
    rome.wait_for_reason("namesake", "EmptyTokenRefused").await;
    let entry = rome.entry("namesake").await;
    assert_eq!(entry.spec.cluster_identity, Some(milan.cluster()));
    delete_and_wait(rome, "namesake").await;
    running.trigger();
}
