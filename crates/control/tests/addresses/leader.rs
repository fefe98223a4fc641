//! The label by which the Service selects the leader.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::{ResourceExt as _, api::DeleteParams};
use serde_json::{Value, json};
use tombolo_api::names::{COMPONENT_LABEL, CONTROL_ACCOUNT, LEADER, LEADER_LABEL, NAMESPACE};
use tombolo_control::testing::leader;
use tombolo_runtime::{lease::Leading, settings::Settings, shutdown::Shutdown};

use crate::side::Side;

#[tokio::test(flavor = "multi_thread")]
async fn only_the_pod_of_the_leader_is_labelled() {
    let (rome, _alone) = Side::alone("rome").await;
    rome.until_in::<ServiceAccount>(NAMESPACE, "default", |_| true).await;
    rome.put_in::<Pod>(NAMESPACE, "first", replica(&json!({}))).await;
    rome.put_in::<Pod>(NAMESPACE, "second", replica(&json!({ LEADER_LABEL: LEADER }))).await;
    rome.put_in::<Pod>(NAMESPACE, "other", labelled(&json!({ LEADER_LABEL: LEADER }))).await;

    let first = start(&rome, "first");
    rome.until_in::<Pod>(NAMESPACE, "first", leads).await;
    rome.until_in::<Pod>(NAMESPACE, "second", |pod| !leads(pod)).await;
    assert!(rome.get_in::<Pod>(NAMESPACE, "other").await.is_some_and(|pod| leads(&pod)));
    // A label that another client has set is removed.
    rome.put_in::<Pod>(NAMESPACE, "second", replica(&json!({ LEADER_LABEL: LEADER }))).await;
    rome.until_in::<Pod>(NAMESPACE, "second", |pod| !leads(pod)).await;
    first.trigger();

    let second = start(&rome, "second");
    rome.until_in::<Pod>(NAMESPACE, "second", leads).await;
    rome.until_in::<Pod>(NAMESPACE, "first", |pod| !leads(pod)).await;
    second.trigger();
    let at_once = DeleteParams::default().grace_period(0);
    for name in ["first", "second", "other"] {
        rome.within::<Pod>(NAMESPACE).delete(name, &at_once).await.unwrap();
    }
}

fn start(rome: &Side, pod: &str) -> Shutdown {
    let shutdown = Shutdown::new();
    let mut context = rome.context(&shutdown);
    context.settings = Settings { pod_name: pod.into(), ..context.settings };
    tokio::spawn(leader::run(Arc::new(context), Leading::alone(shutdown.clone())));
    shutdown
}

fn leads(pod: &Pod) -> bool {
    pod.labels().get(LEADER_LABEL).is_some_and(|value| value == LEADER)
}

fn replica(labels: &Value) -> Value {
    let mut pod = labelled(labels);
    pod["metadata"]["labels"][COMPONENT_LABEL] = CONTROL_ACCOUNT.into();
    pod
}

fn labelled(labels: &Value) -> Value {
    let containers = json!([{ "name": "it", "image": "none" }]);
    json!({ "metadata": { "labels": labels }, "spec": { "containers": containers } })
}
