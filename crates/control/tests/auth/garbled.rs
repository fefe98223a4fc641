//! A corrupt identity record.

use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    rbac::v1::RoleBinding,
};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{caller::Caller, side::Side};

const RECORD: &str = "identity-id-of-garbled";
const TENANT: &str = "liqo-tenant-garbled";

/// Deleting a record that can't be parsed still revokes the identity and its permissions.
pub async fn a_corrupt_record_can_be_revoked(milan: &Side) {
    let caller = Caller::new(milan, [127, 0, 0, 12]).await;
    let token = milan.token().await;
    let request = json!({
        "clusterID": "id-of-garbled", "clusterName": "garbled", "token": token, "nonce": "n",
    });
    assert_eq!(caller.post("/identity", &request).await.status, 200);
    assert!(milan.get_in::<RoleBinding>(TENANT, "liqo-cluster").await.is_some());

    let spoilt = json!({
        "data": { "clusterID": null, "request": null },
        "stringData": { "clusterName": "no name at all" },
    });
    let records = milan.within::<Secret>("liqo-auth");
    records.patch(RECORD, &PatchParams::default(), &Patch::Merge(spoilt)).await.expect("patched");
    milan.delete_in::<Secret>("liqo-auth", RECORD).await;
    milan.until_gone_in::<Secret>("liqo-auth", RECORD).await;
    assert!(milan.get_in::<RoleBinding>(TENANT, "liqo-cluster").await.is_none());
    milan.until_gone::<Namespace>(TENANT).await;
}
