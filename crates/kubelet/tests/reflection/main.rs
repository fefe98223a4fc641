//! Reflection between two real API servers: objects of a home namespace are copied to its twin,
//! updated, repaired and deleted.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod certificates;
mod ipam;
mod shop;

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tombolo_api::{ipam::MapRequest, virtualkubelet::ShadowEndpointSlice};
use tombolo_core::translate::{NamedNetwork, Networks};
use tombolo_testbed::{Component, answer_to, eventually};

use ipam::is_mapped;
use shop::Shop;

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());

#[test]
fn objects_are_copied_updated_repaired_and_deleted() {
    RUNTIME.block_on(async {
        let shop = Shop::new("follows").await;
        let web =
            json!({ "type": "NodePort", "selector": { "app": "web" }, "ports": [{ "port": 80 }] });
        shop.put::<Service>("web", json!({ "spec": web })).await;
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "1", "b": "2" } })).await;
        shop.put::<Secret>("login", json!({ "data": { "user": "YQ==" } })).await;
        let reflection = shop.reflect();

        let service = shop.there::<Service>("web", |_| true).await;
        let port = &service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0];
        assert_eq!(port.port, 80);
        assert_eq!(service.labels()["virtualkubelet.liqo.io/origin"], "id-of-rome");
        assert_eq!(service.labels()["virtualkubelet.liqo.io/destination"], "id-of-follows");
        shop.there::<Secret>("login", |_| true).await;
        shop.there::<ConfigMap>("settings", |map| data(map, "b") == Some("2")).await;

        // Changes at home are copied, removed keys too.
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "3" } })).await;
        let is_updated = |map: &ConfigMap| data(map, "a") == Some("3") && data(map, "b").is_none();
        shop.there::<ConfigMap>("settings", is_updated).await;

        // Changes and deletions in the remote cluster are reverted.
        let api: Api<ConfigMap> = shop.remote_api();
        let changed = json!({ "data": { "a": "4" } });
        api.patch("settings", &PatchParams::default(), &Patch::Merge(changed)).await.unwrap();
        shop.there::<ConfigMap>("settings", is_updated).await;
        let before = api.get("settings").await.unwrap().uid();
        api.delete("settings", &DeleteParams::default()).await.unwrap();
        shop.there::<ConfigMap>("settings", |map| map.uid() != before).await;

        // An object is recreated if an immutable field changes.
        shop.delete::<Service>("web").await;
        shop.put::<Service>(
            "web",
            json!({ "spec": { "clusterIP": "None", "selector": { "app": "db" } } }),
        )
        .await;
        shop.there::<Service>("web", |service| {
            service.spec.as_ref().unwrap().cluster_ip.as_deref() == Some("None")
        })
        .await;

        shop.delete::<Service>("web").await;
        shop.gone::<Service>("web").await;

        // Objects that were deleted while no reflection ran are deleted at the next start.
        reflection.end().await;
        shop.delete::<ConfigMap>("settings").await;
        let _reflection = shop.reflect();
        shop.gone::<ConfigMap>("settings").await;
        shop.there::<Secret>("login", |_| true).await;
    });
}

#[test]
fn the_ca_certificate_of_a_cluster_is_not_reflected() {
    RUNTIME.block_on(async {
        // Milan's controller manager would create its own, which would hide a copy.
        let stopped = Shop::milan().await.stop(1, Component::ControllerManager);
        let stopped = stopped.expect("it stops");
        let shop = Shop::new("certificate").await;
        shop.rome.until_in::<ConfigMap>(&shop.namespace, "kube-root-ca.crt", |_| true).await;
        let _reflection = shop.reflect();
        // Existing objects have been reconciled once later changes arrive.
        for a in ["1", "2", "3"] {
            shop.put::<ConfigMap>("settings", json!({ "data": { "a": a } })).await;
            shop.there::<ConfigMap>("settings", |map| data(map, "a") == Some(a)).await;
        }
        let copy = shop.milan.get_in::<ConfigMap>(&shop.twin, "kube-root-ca.crt").await;
        assert_eq!(copy, None);
        stopped.undo().expect("it starts again");
    });
}

#[test]
fn objects_that_were_not_reflected_are_left_alone() {
    RUNTIME.block_on(async {
        let shop = Shop::new("taken").await;
        let theirs = json!({ "metadata": { "name": "settings" }, "data": { "a": "theirs" } });
        let api: Api<ConfigMap> = shop.remote_api();
        let theirs = serde_json::from_value(theirs).unwrap();
        api.create(&PostParams::default(), &theirs).await.unwrap();
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "ours" } })).await;
        shop.put::<ConfigMap>("other", json!({ "data": { "a": "ours" } })).await;
        let _reflection = shop.reflect();
        shop.there::<ConfigMap>("other", |_| true).await;
        let events: Api<k8s_openapi::api::events::v1::Event> = shop.rome.within(&shop.namespace);
        answer_to("an Event NotReflected", async || {
            let events = events.list(&Default::default()).await.unwrap();
            events.into_iter().find(|e| e.reason.as_deref() == Some("NotReflected"))
        })
        .await;
        assert_eq!(data(&api.get("settings").await.unwrap(), "a"), Some("theirs"));
        assert!(api.get("settings").await.unwrap().labels().is_empty());

        // It is reflected once the other object is gone.
        api.delete("settings", &DeleteParams::default()).await.unwrap();
        shop.there::<ConfigMap>("settings", |map| data(map, "a") == Some("ours")).await;
    });
}

#[test]
fn endpoints_have_translated_addresses() {
    RUNTIME.block_on(async {
        let shop = Shop::new("endpoints").await;
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.244.1.5"], "nodeName": "rome-1", "conditions": { "ready": true } },
                { "addresses": ["10.71.0.9"], "nodeName": "liqo-milan" },
                { "addresses": ["192.0.2.7"], "conditions": { "ready": false } },
            ],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        });
        shop.put::<EndpointSlice>("web-1", slice).await;
        let _reflection = shop.reflect();
        let nothing = shop.remote_api::<ShadowEndpointSlice>().get_opt("web-1").await.unwrap();
        assert_eq!(nothing, None, "the networks are not known yet");
        shop.networks.send_replace(Some(networks()));
        let shadow = shop.there::<ShadowEndpointSlice>("web-1", |shadow| {
            let addresses = addresses(shadow);
            addresses.len() == 2
                && addresses[0] == "10.71.1.5"
                && addresses[1].starts_with("10.72.")
        });
        let shadow = shadow.await;
        assert!(is_mapped(&shop.rome, "192.0.2.7").await);
        assert_eq!(shadow.labels()["kubernetes.io/service-name"], "web");
        assert!(shadow.spec.template.endpoints.iter().all(|e| e.node_name.is_none()));

        // Readiness is copied; an unused address is released.
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.244.1.5"], "conditions": { "ready": false } }],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        });
        shop.put::<EndpointSlice>("web-1", slice).await;
        let shadow = shop.there::<ShadowEndpointSlice>("web-1", |shadow| {
            addresses(shadow) == ["10.71.1.5"]
        });
        let conditions = shadow.await.spec.template.endpoints[0].conditions.clone().unwrap();
        assert_eq!(conditions.ready, Some(false));
        is_released(&shop, "192.0.2.7").await;
        shop.delete::<EndpointSlice>("web-1").await;
        shop.gone::<ShadowEndpointSlice>("web-1").await;
    });
}

#[test]
fn the_copies_of_a_namespace_that_leaves_the_map_stay_unchanged() {
    RUNTIME.block_on(async {
        let shop = Shop::new("leaves").await;
        shop.networks.send_replace(Some(networks()));
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "1" } })).await;
        shop.put::<EndpointSlice>("web-1", slice_of("192.0.2.8")).await;
        let _reflection = shop.reflect();
        shop.there::<ConfigMap>("settings", |_| true).await;
        shop.there::<ShadowEndpointSlice>("web-1", |shadow| addresses(shadow).len() == 1).await;
        assert!(is_mapped(&shop.rome, "192.0.2.8").await);
        shop.namespaces.send_replace(BTreeMap::new());
        is_released(&shop, "192.0.2.8").await;
        // The flows have ended once a namespace of a later update is reflected.
        let other = Shop::new("stays").await;
        other.put::<ConfigMap>("settings", json!({ "data": { "a": "1" } })).await;
        shop.namespaces.send_replace([(other.namespace.clone(), other.twin.clone())].into());
        other.there::<ConfigMap>("settings", |_| true).await;
        shop.delete::<ConfigMap>("settings").await;
        other.put::<ConfigMap>("settings", json!({ "data": { "a": "2" } })).await;
        other.there::<ConfigMap>("settings", |map| data(map, "a") == Some("2")).await;
        assert!(shop.remote_api::<ConfigMap>().get_opt("settings").await.unwrap().is_some());
    });
}

#[test]
fn addresses_of_a_slice_deleted_while_no_reflection_runs_are_released() {
    RUNTIME.block_on(async {
        let shop = Shop::new("restarted").await;
        shop.networks.send_replace(Some(networks()));
        for (name, ip) in [("stays", "192.0.2.9"), ("goes", "192.0.2.10")] {
            shop.put::<EndpointSlice>(name, slice_of(ip)).await;
        }
        let reflection = shop.reflect();
        let is_named = |shadow: &ShadowEndpointSlice| addresses(shadow).len() == 1;
        shop.there("goes", is_named).await;
        let before = shop.there("stays", is_named).await;
        reflection.end().await;
        shop.delete::<EndpointSlice>("goes").await;
        assert!(is_mapped(&shop.rome, "192.0.2.10").await);
        // Mappings of other owners for the same peer, one of them without an owner.
        for (ip, owner) in [("192.0.2.30", Some("other".to_owned())), ("192.0.2.31", None)] {
            let (cluster_id, ip) = (shop.cluster.cluster_id.to_string(), ip.into());
            let request = MapRequest { cluster_id, ip, owner };
            shop.address_service().map_endpoint_ip(request).await.unwrap();
        }

        let _reflection = shop.reflect();
        is_released(&shop, "192.0.2.10").await;
        let after = shop.there("stays", is_named).await;
        assert_eq!(addresses(&after), addresses(&before));
        assert!(is_mapped(&shop.rome, "192.0.2.9").await);
        for others in ["192.0.2.30", "192.0.2.31"] {
            assert!(is_mapped(&shop.rome, others).await, "{others} has another owner");
        }
    });
}

fn slice_of(ip: &str) -> Value {
    json!({
        "metadata": { "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4",
        "endpoints": [{ "addresses": [ip] }],
    })
}

async fn is_released(shop: &Shop, ip: &str) {
    let mapped = async || is_mapped(&shop.rome, ip).await;
    eventually("the address is released", mapped, |is_mapped| !is_mapped).await;
}

fn networks() -> Networks {
    let named = |real: &str, name: &str| {
        NamedNetwork::new(real.parse().unwrap(), name.parse().unwrap()).unwrap()
    };
    Networks {
        local_pods: named("10.244.0.0/16", "10.71.0.0/16"),
        local_external: named("10.70.0.0/16", "10.72.0.0/16"),
        remote_pods: named("10.244.0.0/16", "10.71.0.0/16"),
        remote_external: named("10.70.0.0/16", "10.72.0.0/16"),
    }
}

fn addresses(shadow: &ShadowEndpointSlice) -> Vec<&str> {
    let endpoints = shadow.spec.template.endpoints.iter();
    endpoints.flat_map(|endpoint| &endpoint.addresses).map(String::as_str).collect()
}

fn data<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}
