//! Clusters that have chosen name and id so as to keep another one out.

use k8s_openapi::api::core::v1::Namespace;
use kube::ResourceExt;
use serde_json::json;

use crate::{caller::Caller, side::Side};

/// Both names that prato's tenant namespace would have are taken.
pub async fn names_that_are_taken_keep_nobody_out(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 13]).await;
    let token = milan.token().await;
    let asks = async |id: &str| {
        let request = json!({
            "clusterID": id, "clusterName": "prato", "token": token, "nonce": format!("n-{id}"),
        });
        let answer = caller.posts("/identity", &request).await;
        assert_eq!(answer.status, 200, "{}", answer.error());
        let kubeconfig = answer.body["kubeconfig"].as_str().expect("a kubeconfig");
        let kubeconfig: serde_json::Value = serde_json::from_str(kubeconfig).expect("JSON");
        let namespace = &kubeconfig["contexts"][0]["context"]["namespace"];
        namespace.as_str().expect("a namespace").to_owned()
    };
    assert_eq!(asks("squatter").await, "liqo-tenant-prato");
    assert_eq!(asks("prato-squatter").await, "liqo-tenant-prato-prato");
    let real = asks("prato-itself").await;
    assert_eq!(asks("prato-itself").await, real, "it is found again");
    let namespace = milan.get::<Namespace>(&real).await.expect("the namespace");
    assert_eq!(namespace.labels()["discovery.liqo.io/cluster-id"], "prato-itself");
}
