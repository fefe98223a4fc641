//! A client that disconnects before it gets a response.

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{caller::Caller, side::Side};

const TENANT: &str = "liqo-tenant-id-of-fano";
const RECORD: &str = "identity-id-of-fano";

/// Without a nonce it can't repeat the request for the same identity.
pub async fn a_client_that_disconnects_can_retry(milan: &Side) {
    // The response waits until the old namespace is deleted.
    let labels = json!({ "liqo.io/tenant": "true", "discovery.liqo.io/cluster-id": "id-of-fano" });
    let held = json!({ "metadata": { "labels": labels, "finalizers": ["example.com/hold"] } });
    milan.put::<Namespace>(TENANT, held).await;
    milan.delete::<Namespace>(TENANT).await;

    let caller = Caller::new(milan, [127, 0, 0, 12]).await;
    let request = json!({ "clusterID": "id-of-fano", "token": milan.token().await });
    let (mut line, body) = (caller.connect().await.expect("TLS"), request.to_string());
    let head = format!("Host: liqo-auth\r\nContent-Length: {}", body.len());
    let sent = format!("POST /identity HTTP/1.1\r\n{head}\r\n\r\n{body}");
    line.send(sent.as_bytes()).await.expect("sent");
    milan.until_in::<Secret>("liqo-auth", RECORD, |_| true).await;
    drop(line);
    milan.until_gone_in::<Secret>("liqo-auth", RECORD).await;

    let free = Patch::Merge(json!({ "metadata": { "finalizers": [] } }));
    let namespaces = milan.all::<Namespace>();
    namespaces.patch(TENANT, &PatchParams::default(), &free).await.expect("changed");
    milan.until_gone::<Namespace>(TENANT).await;
    let answer = caller.post("/identity", &request).await;
    assert_eq!(answer.status, 200, "{}", answer.error());
}
