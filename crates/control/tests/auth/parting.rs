//! Both clusters delete their ForeignClusters at the same time.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tombolo_api::discovery::ForeignCluster;
use tombolo_testbed::eventually;

use crate::{side::Side, story::delete_and_wait};

/// Milan's ForeignCluster is finalized but still exists when rome releases its identity.
pub async fn the_last_release_deletes_the_namespace(rome: &Side, milan: &Side) {
    milan.add_foreign_cluster("rome", &rome.url).await;
    milan.wait_for_reason("rome", "EmptyTokenRefused").await;
    let clusters = Api::<ForeignCluster>::all(milan.client.clone());
    let finalizers = async |wanted: &[&str]| {
        let patch = Patch::Merge(json!({ "metadata": { "finalizers": wanted } }));
        clusters.patch("rome", &PatchParams::default(), &patch).await.expect("changed");
    };
    finalizers(&["liqo.io/finalizer", "example.com/hold"]).await;
    clusters.delete("rome", &Default::default()).await.expect("deleted");
    let left =
        async || clusters.get("rome").await.expect("the ForeignCluster").finalizers().to_vec();
    eventually("only the finalizer of the test is left", left, |left| {
        *left == ["example.com/hold"]
    })
    .await;

    delete_and_wait(rome, "milan").await;
    milan.until_gone::<Namespace>("liqo-tenant-rome").await;
    finalizers(&[]).await;
}
