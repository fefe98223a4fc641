//! Endpoints of other clusters. They are not ready while their cluster is unreachable.

use std::time::{Duration, Instant};

use k8s_openapi::api::{core::v1::Namespace, discovery::v1::EndpointSlice};
use kube::ResourceExt;
use serde_json::json;
use tombolo_api::virtualkubelet::ShadowEndpointSlice;
use tombolo_testbed::answer_to;

use crate::{RUNTIME, world::world};

#[test]
fn endpoints_of_an_unreachable_cluster_are_not_ready() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.put::<Namespace>("endpoints", json!({})).await;
        world.foreign_cluster("paris", json!({})).await;
        world.paris("True", "True").await;
        let shadow = json!({
            "metadata": { "labels": {
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice.reflection.liqo.io",
                "virtualkubelet.liqo.io/origin": "id-of-paris",
                "virtualkubelet.liqo.io/destination": "id-of-rome",
            } },
            "spec": { "template": {
                "addressType": "IPv4", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
                "endpoints": [
                    { "addresses": ["10.71.0.1"], "conditions": { "ready": true } },
                    { "addresses": ["10.71.0.2"], "conditions": { "ready": false } },
                ],
            } },
        });
        world.put_in::<ShadowEndpointSlice>("endpoints", "web-1", shadow).await;
        let is_ready = async |wanted: [bool; 2]| {
            let since = Instant::now();
            answer_to(&format!("readiness is {wanted:?}"), async || {
                let slice = world.get_in::<EndpointSlice>("endpoints", "web-1").await?;
                let ready = slice.endpoints.iter().map(|e| e.conditions.as_ref()?.ready);
                let ready: Vec<bool> = ready.collect::<Option<_>>()?;
                (ready == wanted).then_some(())
            })
            .await;
            since.elapsed()
        };
        is_ready([true, false]).await;
        let slice = world.get_in::<EndpointSlice>("endpoints", "web-1").await.unwrap();
        assert_eq!(slice.labels()["kubernetes.io/service-name"], "web");
        assert_eq!(slice.owner_references()[0].kind, "ShadowEndpointSlice");
        for (tunnel, api_server) in [("False", "True"), ("True", "Unknown")] {
            world.paris(tunnel, api_server).await;
            let took = is_ready([false, false]).await;
            assert!(took < Duration::from_secs(1), "not ready after {took:?}");
            world.paris("True", "True").await;
            let took = is_ready([true, false]).await;
            assert!(took < Duration::from_secs(1), "ready again after {took:?}");
        }

        // It is recreated, and deleted with its ShadowEndpointSlice.
        let before = slice.uid();
        world.delete_in::<EndpointSlice>("endpoints", "web-1").await;
        let is_another = |slice: &EndpointSlice| slice.uid() != before;
        world.until_in("endpoints", "web-1", is_another).await;
        world.delete_in::<ShadowEndpointSlice>("endpoints", "web-1").await;
        world.until_gone_in::<EndpointSlice>("endpoints", "web-1").await;
    });
}
