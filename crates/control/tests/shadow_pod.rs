//! A ShadowPod whose pod's name is taken gets its pod once the name is free.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Pod, ServiceAccount};
use kube::{Api, Client, ResourceExt, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tombolo_api::virtualkubelet::ShadowPod;
use tombolo_control::shadow_pod::keep_up;
use tombolo_runtime::{events::Events, shutdown::Shutdown};
use tombolo_testbed::{ClusterSpec, Testbed};

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_in_the_way_is_not_waited_for_for_ever() {
    let cluster = ClusterSpec::new("milan").control_plane_only();
    let bed = Testbed::builder("shadow-pod").cluster(cluster).start().await;
    let bed = bed.expect("the control plane starts");
    let client = bed.cluster("milan").client().await.expect("a client");
    define(&client).await;
    make(&Api::<Namespace>::all(client.clone()), json!({ "metadata": { "name": "twin" } })).await;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), "twin");
    until("a service account", async || accounts.get_opt("default").await.unwrap().is_some()).await;
    let spec = json!({ "containers": [{ "name": "web", "image": "localhost/toolbox:1" }] });
    let pods = Api::<Pod>::namespaced(client.clone(), "twin");
    make(&pods, json!({ "metadata": { "name": "web" }, "spec": spec })).await;

    let shutdown = Shutdown::new();
    let (there, events, end) =
        (client.clone(), Events::new(client.clone(), "test"), shutdown.clone());
    tokio::spawn(async move { keep_up(there, events, &end).await });
    let shadows = Api::<ShadowPod>::namespaced(client, "twin");
    make(&shadows, json!({ "metadata": { "name": "web" }, "spec": { "pod": spec } })).await;
    let noted = async || {
        let shadow = shadows.get("web").await.expect("the ShadowPod");
        shadow.annotations().values().any(|note| note.contains("in the way"))
    };
    until("it is said what is in the way", noted).await;
    pods.delete("web", &Default::default()).await.expect("deleted");
    let ours = async || {
        let pod = pods.get_opt("web").await.expect("an answer");
        pod.is_some_and(|pod| !pod.owner_references().is_empty())
    };
    until("the ShadowPod has its pod", ours).await;
    shutdown.ask();
}

async fn make<K>(api: &Api<K>, object: Value)
where
    K: Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).expect("a manifest");
    api.create(&PostParams::default(), &object).await.expect("it can be made");
}

async fn define(client: &Client) {
    let definitions = Api::all(client.clone());
    for definition in tombolo_api::crds() {
        let name = definition.name_any();
        definitions.create(&PostParams::default(), &definition).await.expect("it is valid");
        let established = kube::runtime::conditions::is_crd_established();
        kube::runtime::wait::await_condition(definitions.clone(), &name, established)
            .await
            .expect("it is established");
    }
}

async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < Duration::from_secs(40), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
