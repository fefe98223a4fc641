//! The peer of a tenant namespace, and the tenant namespace of a peer. The namespace of an object
//! identifies its peer: the contents of the object are only claims of that peer.

use k8s_openapi::api::core::v1::Namespace;
use tombolo_api::{
    ClusterId,
    names::{CLUSTER_ID_LABEL, TENANT_LABEL},
};

/// The peer of a namespace, if it is a tenant namespace.
pub fn peer_of(namespace: &Namespace) -> Option<ClusterId> {
    let labels = namespace.metadata.labels.as_ref()?;
    let is_tenant = labels.get(TENANT_LABEL).is_some_and(|value| value == TENANT);
    labels.get(CLUSTER_ID_LABEL).filter(|_| is_tenant)?.parse().ok()
}

/// The labels of the tenant namespace of a peer.
pub fn labels(peer: &ClusterId) -> [(String, String); 2] {
    [(CLUSTER_ID_LABEL.to_owned(), peer.to_string()), (TENANT_LABEL.to_owned(), TENANT.to_owned())]
}

/// The label selector for the tenant namespace of a peer.
pub fn selector(peer: &ClusterId) -> String {
    labels(peer).map(|(name, value)| format!("{name}={value}")).join(",")
}

const TENANT: &str = "true";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_tenant_namespace_has_a_peer() {
        let namespace = |labels: serde_json::Value| -> Namespace {
            serde_json::from_value(json!({ "metadata": { "labels": labels } })).unwrap()
        };
        let milan: ClusterId = "milan-id".parse().unwrap();
        let labelled = namespace(labels(&milan).into_iter().collect());
        assert_eq!(peer_of(&labelled), Some(milan.clone()));
        assert_eq!(peer_of(&namespace(json!({ CLUSTER_ID_LABEL: "milan-id" }))), None);
        assert_eq!(peer_of(&namespace(json!({ TENANT_LABEL: "true" }))), None);
        assert_eq!(peer_of(&Namespace::default()), None);
        assert_eq!(selector(&milan), "discovery.liqo.io/cluster-id=milan-id,liqo.io/tenant=true");
    }
}
