//! The token that others have to show is always one that can be shown.

use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tombolo_testbed::eventually;

use crate::{caller::Caller, side::Side};

pub async fn a_token_that_is_none_is_made_anew(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 11]).await;
    let asks = async |token: &str| {
        let body = json!({ "clusterID": "id-of-prato", "nonce": "prato-nonce", "token": token });
        caller.posts("/identity", &body).await.status
    };
    for blank in [Some(""), Some(" \t\n"), None] {
        let old = milan.token().await;
        assert_eq!(asks(&old).await, 200);
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
        let status = async || asks(&new).await;
        eventually("the new token counts", status, |status| *status == 200).await;
        assert_eq!(asks(&old).await, 401, "the old one counts still");
        assert_eq!(asks(blank.unwrap_or_default()).await, 401);
    }
}
