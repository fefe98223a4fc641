//! The pod of a ShadowPod is created once its name is free.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::ResourceExt;
use serde_json::json;
use tombolo_api::virtualkubelet::ShadowPod;
use tombolo_control::testing::shadow_pod::keep_up;
use tombolo_runtime::{events::Events, shutdown::Shutdown};
use tombolo_testbed::{ClusterSpec, Testbed};
use tombolo_testing::Side;

#[tokio::test(flavor = "multi_thread")]
async fn the_pod_is_created_once_its_name_is_free() {
    let cluster = ClusterSpec::new("milan").control_plane_only();
    let bed = Testbed::builder("shadow-pod").cluster(cluster).start().await;
    let bed = bed.expect("the control plane starts");
    let milan = Side::new(bed.cluster("milan")).await;
    milan.put::<Namespace>("twin", json!({})).await;
    milan.until_in::<ServiceAccount>("twin", "default", |_| true).await;
    let spec = json!({ "containers": [{ "name": "web", "image": "localhost/toolbox:1" }] });
    milan.put_in::<Pod>("twin", "web", json!({ "spec": spec })).await;

    let (client, shutdown) = (milan.client.clone(), Shutdown::new());
    let (events, end) = (Events::new(client.clone(), "test"), shutdown.clone());
    tokio::spawn(async move { keep_up(client, events, &end).await });
    milan.put_in::<ShadowPod>("twin", "web", json!({ "spec": { "pod": spec } })).await;
    let annotated = |shadow: &ShadowPod| {
        shadow.annotations().values().any(|note| note.contains("already exists"))
    };
    milan.until_in("twin", "web", annotated).await;
    milan.delete_in::<Pod>("twin", "web").await;
    milan.until_in::<Pod>("twin", "web", |pod| !pod.owner_references().is_empty()).await;
    shutdown.trigger();
}
