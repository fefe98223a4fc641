//! Clusters whose name and id occupy the tenant namespace of another cluster.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::json;

use crate::{caller::Caller, side::Side};

/// Both candidate names of prato's tenant namespace are taken.
pub async fn taken_namespace_names_lock_nobody_out(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 13]).await;
    let token = milan.token().await;
    let issue = async |id: &str| {
        let request = json!({
            "clusterID": id, "clusterName": "prato", "token": token, "nonce": format!("n-{id}"),
        });
        let answer = caller.post("/identity", &request).await;
        assert_eq!(answer.status, 200, "{}", answer.error());
        let kubeconfig = answer.body["kubeconfig"].as_str().expect("a kubeconfig");
        let kubeconfig: serde_json::Value = serde_json::from_str(kubeconfig).expect("JSON");
        let namespace = &kubeconfig["contexts"][0]["context"]["namespace"];
        namespace.as_str().expect("a namespace").to_owned()
    };
    assert_eq!(issue("squatter").await, "liqo-tenant-prato");
    assert_eq!(issue("prato-squatter").await, "liqo-tenant-prato-prato");
    let real = issue("prato-itself").await;
    assert_eq!(issue("prato-itself").await, real, "the namespace is reused");
    let namespace = milan.get::<Namespace>(&real).await.expect("the namespace");
    assert_eq!(namespace.labels()["discovery.liqo.io/cluster-id"], "prato-itself");
}
