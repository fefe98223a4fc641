//! Sets up the results of discovery and authentication.

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{Namespace, Secret, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use tombolo_api::{
    discovery::ForeignCluster,
    names::{CLUSTER_ID_LABEL, IDENTITY_SECRET, TENANT_LABEL, tenant_namespace},
};
use tombolo_runtime::writer;

use crate::Side;

/// ServiceAccount of another cluster in this one.
const ACCOUNT: &str = "liqo-cluster";

impl Side {
    /// The other cluster is discovered, and has issued an identity with all rights in its tenant
    /// namespace to this one.
    pub async fn knows(&self, other: &Self) {
        let peer = &other.settings;
        let ours = tenant_namespace(&peer.cluster_name);
        let theirs = tenant_namespace(&self.settings.cluster_name);
        self.tenant(&ours, peer.cluster_id.as_str()).await;
        let kubeconfig = other.identity_for(self).await;
        let secret = json!({ "stringData": { "kubeconfig": kubeconfig } });
        self.put_in::<Secret>(&ours, IDENTITY_SECRET, secret).await;
        let identity = json!({ "clusterID": peer.cluster_id, "clusterName": peer.cluster_name });
        let spec = json!({ "authUrl": "https://192.0.2.1:443", "clusterIdentity": identity });
        let name = peer.cluster_name.as_str();
        self.put::<ForeignCluster>(name, json!({ "spec": spec })).await;
        let status = json!({ "tenantNamespace": { "local": ours, "remote": theirs } });
        self.put_status::<ForeignCluster>(name, status).await;
        self.is_authenticated(name, true).await;
    }

    /// Sets whether the other cluster accepts the identity that it has issued.
    pub async fn is_authenticated(&self, peer: &str, is: bool) {
        let (status, word) = if is { ("True", "Accepted") } else { ("False", "Refused") };
        let status = json!({
            "authStatus": word, "conditions": [condition("Authenticated", status)],
        });
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let said = writer::apply_status(&clusters, "test-auth", peer, &status).await;
        said.expect("a status");
    }

    /// Creates the tenant namespace for a peering with this cluster.
    pub async fn tenant(&self, namespace: &str, peer_id: &str) {
        let labels = json!({ TENANT_LABEL: "true", CLUSTER_ID_LABEL: peer_id });
        self.put::<Namespace>(namespace, json!({ "metadata": { "labels": labels } })).await;
    }

    /// A kubeconfig of a ServiceAccount of this cluster, valid for an hour.
    pub async fn kubeconfig_of(&self, namespace: &str, account: &str) -> String {
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..Default::default() };
        let request = TokenRequest { spec, ..Default::default() };
        let params = PostParams::default();
        let answer = accounts.create_token_request(account, &params, &request).await;
        let token = answer.expect("a token").status.expect("a token").token;
        let ours = std::fs::read_to_string(self.cluster.kubeconfig()).expect("the kubeconfig");
        let ours: Value = serde_saphyr::from_str(&ours).expect("YAML");
        let cluster = &ours["clusters"][0];
        let context = json!({
            "cluster": cluster["name"], "user": account, "namespace": namespace,
        });
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [cluster],
            "users": [{ "name": account, "user": { "token": token } }],
            "contexts": [{ "name": "it", "context": context }],
        })
        .to_string()
    }

    async fn identity_for(&self, other: &Self) -> String {
        let namespace = tenant_namespace(&other.settings.cluster_name);
        self.tenant(&namespace, other.settings.cluster_id.as_str()).await;
        self.put_in::<ServiceAccount>(&namespace, ACCOUNT, json!({})).await;
        let role = json!({
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        });
        let subject = json!({ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace });
        let binding = json!({ "roleRef": role, "subjects": [subject] });
        self.put_in::<RoleBinding>(&namespace, ACCOUNT, binding).await;
        self.kubeconfig_of(&namespace, ACCOUNT).await
    }
}

/// A condition of an object, as a controller would set it.
pub fn condition(kind: &str, status: &str) -> Value {
    json!({
        "type": kind, "status": status, "reason": "Test", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    })
}
