//! Pods that the webhook mutates.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    sync::Arc,
};

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Namespace, Pod, Secret},
};
use kube::{Api, api::PostParams};
use serde_json::json;
use tombolo_api::offloading::NamespaceOffloading;
use tombolo_control::testing::{Context, webhook};
use tombolo_testbed::answer_to;
use tombolo_testing::Side;

use crate::{RUNTIME, world::world};

#[test]
fn the_webhook_mutates_pods() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.put::<Namespace>("mutated", json!({})).await;
        let selector = json!({ "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "region", "operator": "In", "values": ["north"] },
        ] }] });
        let spec = json!({ "podOffloadingStrategy": "Remote", "clusterSelector": selector });
        world.put_in::<NamespaceOffloading>("mutated", "offloading", json!({ "spec": spec })).await;
        let api: Api<Pod> = Api::namespaced(world.client.clone(), "mutated");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "generateName": "pod-" },
            "spec": { "containers": [{ "name": "c", "image": "none" }] },
        }))
        .unwrap();
        // Retries until the namespace has its label and service account, and the webhook its
        // certificate.
        let affinity = answer_to("a pod is mutated", async || {
            let pod = api.create(&PostParams::default(), &pod).await.ok()?;
            pod.spec.unwrap().affinity
        })
        .await;
        let required = affinity.node_affinity.unwrap();
        let required = required.required_during_scheduling_ignored_during_execution.unwrap();
        assert_eq!(
            serde_json::to_value(&required.node_selector_terms).unwrap(),
            json!([{ "matchExpressions": [
                { "key": "region", "operator": "In", "values": ["north"] },
                { "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] },
            ] }])
        );
        let pod = api.create(&PostParams::default(), &pod).await.unwrap();
        let tolerations = pod.spec.unwrap().tolerations.unwrap();
        let ours = tolerations
            .iter()
            .find(|t| t.key.as_deref() == Some("virtual-node.liqo.io/not-allowed"))
            .unwrap();
        assert_eq!(ours.toleration_seconds, None);

        // A deleted certificate is recreated, and the caBundle is updated.
        world.delete_in::<Secret>("liqo", "liqo-webhook-cert").await;
        answer_to("the API server trusts another certificate", async || {
            let secret = world.get_in::<Secret>("liqo", "liqo-webhook-cert").await?;
            let hooks = world.get::<MutatingWebhookConfiguration>("liqo").await?;
            let bundle = hooks.webhooks?[0].client_config.ca_bundle.clone();
            (bundle.as_ref() == secret.data?.get("tls.crt")).then_some(())
        })
        .await;
    });
}

/// Serves the webhook at an address of this machine instead of a Service.
pub async fn serve_webhook(world: &Side, ctx: Arc<Context>, api_server: Ipv4Addr) {
    let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    route.connect((api_server, 6443)).unwrap();
    let host = route.local_addr().unwrap().ip();
    let listener = TcpListener::bind((host, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let hook = json!({
        "name": "pods.liqo.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "failurePolicy": "Fail",
        "clientConfig": { "url": format!("https://{address}/mutate") },
        "namespaceSelector": { "matchLabels": { "liqo.io/scheduling": "enabled" } },
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
            "operations": ["CREATE"],
        }],
    });
    world.put::<MutatingWebhookConfiguration>("liqo", json!({ "webhooks": [hook] })).await;
    let certificate = rcgen::generate_simple_self_signed([host.to_string()]).unwrap();
    let pair = json!({
        "tls.crt": certificate.cert.pem(), "tls.key": certificate.signing_key.serialize_pem(),
    });
    let secret = json!({ "type": "kubernetes.io/tls", "stringData": pair });
    world.put_in::<Secret>("liqo", "liqo-webhook-cert", secret).await;
    tokio::spawn(async move { webhook::serve(ctx, listener).await.expect("it serves") });
}
