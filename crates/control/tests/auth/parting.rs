//! Both clusters forget each other at the same time.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tombolo_api::discovery::ForeignCluster;
use tombolo_testbed::eventually;

use crate::{side::Side, story::forget};

/// Milan's entry has done its part and is not gone yet when rome gives its identity back.
pub async fn the_last_to_go_takes_the_namespace_along(rome: &Side, milan: &Side) {
    milan.meets("rome", &rome.url).await;
    milan.says("rome", "EmptyTokenRefused").await;
    let clusters = Api::<ForeignCluster>::all(milan.client.clone());
    let finalizers = async |wanted: &[&str]| {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": wanted } }));
        clusters.patch("rome", &PatchParams::default(), &patch).await.expect("changed");
    };
    finalizers(&["liqo.io/finalizer", "example.com/hold"]).await;
    clusters.delete("rome", &Default::default()).await.expect("deleted");
    let left = async || clusters.get("rome").await.expect("it is held").finalizers().to_vec();
    eventually("only the test holds it", left, |left| *left == ["example.com/hold"]).await;

    forget(rome, "milan").await;
    milan.until_gone::<Namespace>("liqo-tenant-rome").await;
    finalizers(&[]).await;
}
