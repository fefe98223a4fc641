//! A record that somebody has spoilt.

use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    rbac::v1::RoleBinding,
};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{caller::Caller, side::Side};

const RECORD: &str = "identity-id-of-garbled";
const TENANT: &str = "liqo-tenant-garbled";

/// Nobody can read what it says, but it can be taken away as any other, with the rights.
pub async fn a_record_that_can_not_be_read_can_be_taken_away(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 12]).await;
    let token = milan.token().await;
    let request = json!({
        "clusterID": "id-of-garbled", "clusterName": "garbled", "token": token, "nonce": "n",
    });
    assert_eq!(caller.posts("/identity", &request).await.status, 200);
    assert!(milan.get_in::<RoleBinding>(TENANT, "liqo-cluster").await.is_some());

    let spoilt = json!({
        "data": { "clusterID": null, "request": null },
        "stringData": { "clusterName": "no name at all" },
    });
    let records = milan.within::<Secret>("liqo-auth");
    records.patch(RECORD, &PatchParams::default(), &Patch::Merge(spoilt)).await.expect("spoilt");
    milan.delete_in::<Secret>("liqo-auth", RECORD).await;
    milan.until_gone_in::<Secret>("liqo-auth", RECORD).await;
    assert!(milan.get_in::<RoleBinding>(TENANT, "liqo-cluster").await.is_none());
    milan.until_gone::<Namespace>(TENANT).await;
}
