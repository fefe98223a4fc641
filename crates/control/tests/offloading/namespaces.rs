//! Creation and deletion of twin namespaces.

use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tombolo_api::{
    offloading::{NamespaceOffloading, OffloadingPhase},
    virtualkubelet::NamespaceMap,
};
use tombolo_testbed::answer_to;

use crate::{RUNTIME, world::world};

#[test]
fn the_label_offloads_a_namespace_and_its_removal_ends_it() {
    RUNTIME.block_on(async {
        let world = world().await;
        world
            .put::<Namespace>(
                "shop",
                json!({ "metadata": { "labels": { "liqo.io/enabled": "true" } } }),
            )
            .await;

        let offloading =
            world.offloading("shop", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let status = offloading.status.unwrap();
        assert_eq!(status.clusters[0].remote_namespace_name.as_deref(), Some("shop-rome"));
        assert_eq!(status.conditions[0].status, "True");
        let map = world.get_in::<NamespaceMap>("liqo-tenant-milan", "rome").await.unwrap();
        assert_eq!(map.spec.desired_mapping["shop"], "shop-rome");
        assert_eq!(map.labels()["liqo.io/replicate-to"], "id-of-milan");
        let shop = world.get::<Namespace>("shop").await.unwrap();
        assert_eq!(shop.labels()["liqo.io/scheduling"], "enabled");
        let binding = world.get_in::<RoleBinding>("shop", "liqo-kubelet").await.unwrap();
        assert_eq!(binding.role_ref.name, "liqo-kubelet-namespace");
        let twin = world.get::<Namespace>("shop-rome").await.unwrap();
        assert_eq!(twin.labels()["liqo.io/remote-cluster-id"], "id-of-rome");
        assert_eq!(twin.annotations()["liqo.io/home-namespace"], "shop");
        let binding = world.get_in::<RoleBinding>("shop-rome", "liqo-twin").await.unwrap();
        let subject = &binding.subjects.unwrap()[0];
        assert_eq!(
            (&*subject.name, subject.namespace.as_deref()),
            ("liqo-cluster", Some("liqo-tenant-rome"))
        );

        // A deleted twin is recreated.
        let before = twin.uid();
        world.delete::<Namespace>("shop-rome").await;
        answer_to("the twin is recreated", async || {
            world.get::<Namespace>("shop-rome").await.filter(|twin| twin.uid() != before).map(drop)
        })
        .await;
        world.offloading("shop", |o| phase(o) == Some(OffloadingPhase::Ready)).await;

        let unlabel = json!({ "metadata": { "labels": { "liqo.io/enabled": null } } });
        let api: Api<Namespace> = Api::all(world.client.clone());
        api.patch("shop", &PatchParams::default(), &Patch::Merge(unlabel)).await.unwrap();
        answer_to("all objects of the offloading are gone", async || {
            let offloading = world.get_in::<NamespaceOffloading>("shop", "offloading").await;
            let twin = world.get::<Namespace>("shop-rome").await;
            let binding = world.get_in::<RoleBinding>("shop", "liqo-kubelet").await;
            (offloading.is_none() && twin.is_none() && binding.is_none()).then_some(())
        })
        .await;
        let shop = world.get::<Namespace>("shop").await.unwrap();
        assert!(!shop.labels().contains_key("liqo.io/scheduling"));
        let map = world.get_in::<NamespaceMap>("liqo-tenant-milan", "rome").await.unwrap();
        assert!(!map.spec.desired_mapping.contains_key("shop"));
    });
}

#[test]
fn a_namespace_offloading_of_a_user_stays_without_the_label() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.put::<Namespace>("mine", json!({})).await;
        let spec =
            json!({ "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "yours" });
        world.put_in::<NamespaceOffloading>("mine", "offloading", json!({ "spec": spec })).await;
        world.offloading("mine", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let label =
            |value: Value| json!({ "metadata": { "labels": { "liqo.io/enabled": value } } });
        let api: Api<Namespace> = Api::all(world.client.clone());
        for value in [json!("true"), Value::Null] {
            api.patch("mine", &PatchParams::default(), &Patch::Merge(label(value))).await.unwrap();
        }
        // The controllers have seen the removal of the label once they have seen a later object.
        world
            .put::<Namespace>(
                "after",
                json!({ "metadata": { "labels": { "liqo.io/enabled": "true" } } }),
            )
            .await;
        world.offloading("after", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let mine = world.get_in::<NamespaceOffloading>("mine", "offloading").await.unwrap();
        assert!(mine.metadata.deletion_timestamp.is_none());
        assert!(world.get::<Namespace>("yours").await.is_some());

        // The twin is deleted with its namespace.
        world.delete::<Namespace>("mine").await;
        for name in ["mine", "yours"] {
            world.until_gone::<Namespace>(name).await;
        }
    });
}

#[test]
fn an_existing_namespace_does_not_become_a_twin() {
    RUNTIME.block_on(async {
        let world = world().await;
        // The cluster is home and remote cluster at once, so the name is taken.
        world.put::<Namespace>("taken", json!({})).await;
        let spec = json!({ "namespaceMappingStrategy": "EnforceSameName" });
        world.put_in::<NamespaceOffloading>("taken", "offloading", json!({ "spec": spec })).await;
        let offloading =
            world.offloading("taken", |o| phase(o) == Some(OffloadingPhase::Failed)).await;
        let status = offloading.status.unwrap();
        assert!(status.clusters[0].message.as_ref().unwrap().contains("taken"));
        assert_eq!(status.conditions[0].reason, "Refused");
        world.delete_in::<NamespaceOffloading>("taken", "offloading").await;
        world.until_gone_in::<NamespaceOffloading>("taken", "offloading").await;
        let taken = world.get::<Namespace>("taken").await.unwrap();
        assert!(taken.metadata.deletion_timestamp.is_none());
    });
}

#[test]
fn the_twin_is_created_when_its_name_becomes_free() {
    RUNTIME.block_on(async {
        let world = world().await;
        for name in ["waits", "busy"] {
            world.put::<Namespace>(name, json!({})).await;
        }
        let spec =
            json!({ "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "busy" });
        world.put_in::<NamespaceOffloading>("waits", "offloading", json!({ "spec": spec })).await;
        world.offloading("waits", |o| phase(o) == Some(OffloadingPhase::Failed)).await;
        world.delete::<Namespace>("busy").await;
        world.offloading("waits", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let twin = world.get::<Namespace>("busy").await.unwrap();
        assert_eq!(twin.annotations()["liqo.io/home-namespace"], "waits");
    });
}

#[test]
fn a_namespace_without_the_label_of_its_home_cluster_is_no_twin() {
    RUNTIME.block_on(async {
        let world = world().await;
        let label = json!({ "metadata": { "labels": { "liqo.io/enabled": "true" } } });
        world.put::<Namespace>("marked", label).await;
        world.offloading("marked", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let mark = |value: Value| {
            let labels = json!({ "liqo.io/remote-cluster-id": value });
            Patch::Merge(json!({ "metadata": { "labels": labels } }))
        };
        let api: Api<Namespace> = Api::all(world.client.clone());
        api.patch("marked-rome", &PatchParams::default(), &mark(Value::Null)).await.unwrap();
        world.offloading("marked", |o| phase(o) == Some(OffloadingPhase::Failed)).await;
        api.patch("marked-rome", &PatchParams::default(), &mark(json!("id-of-rome")))
            .await
            .unwrap();
        world.offloading("marked", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
    });
}

#[test]
fn a_change_of_the_selector_creates_and_deletes_the_twin() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.put::<Namespace>("picky", json!({})).await;
        let select = async |node: &str| {
            let term =
                json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] });
            let selector = json!({ "nodeSelectorTerms": [{ "matchExpressions": [term] }] });
            let offloading = json!({ "spec": { "clusterSelector": selector } });
            world.put_in::<NamespaceOffloading>("picky", "offloading", offloading).await;
        };
        let is_nowhere = |offloading: &NamespaceOffloading| {
            let mut conditions = offloading.status.iter().flat_map(|status| &status.conditions);
            conditions.any(|condition| condition.reason == "NoClusters")
        };
        select("liqo-paris").await;
        world.offloading("picky", is_nowhere).await;
        select("liqo-milan").await;
        world.offloading("picky", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        select("liqo-paris").await;
        world.offloading("picky", is_nowhere).await;
        world.until_gone::<Namespace>("picky-rome").await;
    });
}

#[test]
fn leftovers_from_before_the_start_are_removed() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.until_gone_in::<NamespaceMap>("liqo-tenant-gone", "rome").await;
        let is_unlabelled =
            |namespace: &Namespace| !namespace.labels().contains_key("liqo.io/scheduling");
        world.until::<Namespace>("once-offloaded", is_unlabelled).await;
        world.until_gone::<Namespace>("unwanted-rome").await;
    });
}

fn phase(offloading: &NamespaceOffloading) -> Option<OffloadingPhase> {
    Some(offloading.status.as_ref()?.clusters.first()?.phase)
}
