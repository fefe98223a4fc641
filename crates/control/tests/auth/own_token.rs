//! The cluster's own token is never blank or missing.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tombolo_testbed::eventually;

use crate::{caller::Caller, side::Side};

pub async fn a_blank_token_is_regenerated(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 11]).await;
    let request = async |token: &str| {
        let body = json!({ "clusterID": "id-of-prato", "nonce": "prato-nonce", "token": token });
        caller.post("/identity", &body).await.status
    };
    for blank in [Some(""), Some(" \t\n"), None] {
        let old = milan.token().await;
        assert_eq!(request(&old).await, 200);
        match blank {
            Some(blank) => {
                let patch = Patch::Merge(json!({ "stringData": { "token": blank } }));
                let secrets = milan.within::<Secret>("liqo");
                secrets.patch("auth-token", &PatchParams::default(), &patch).await.expect("blank");
            }
            None => milan.delete_in::<Secret>("liqo", "auth-token").await,
        }
        let is_another = |secret: &Secret| {
            let token = secret.data.as_ref().and_then(|data| data.get("token"));
            token.is_some_and(|token| token.0.len() >= 32 && token.0 != old.as_bytes())
        };
        milan.until_in::<Secret>("liqo", "auth-token", is_another).await;
        let new = milan.token().await;
        let status = async || request(&new).await;
        eventually("the new token is accepted", status, |status| *status == 200).await;
        assert_eq!(request(&old).await, 401, "the old token is still accepted");
        assert_eq!(request(blank.unwrap_or_default()).await, 401);
    }
}
