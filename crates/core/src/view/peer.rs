//! The view of a ForeignCluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tombolo_api::{
    ClusterId, ClusterIdentity,
    discovery::{
        ForeignCluster,
        condition::{API_SERVER, AUTHENTICATED, TUNNEL_ENDPOINT},
    },
};

use crate::condition::{find, is_true};

/// The fields of a ForeignCluster that decisions about the peer depend on.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Id and name of the peer, once they are known.
    pub identity: Option<&'a ClusterIdentity>,
    /// Its tenant namespace in this cluster, once there is one.
    pub tenant: Option<&'a str>,
    /// Whether the ForeignCluster is being deleted.
    pub is_deleted: bool,
    /// Whether the peer has issued an identity to this cluster.
    pub is_authenticated: bool,
    /// The last report on its API server.
    pub api_server: Option<&'a Condition>,
    /// The last report on the tunnel to it.
    pub tunnel: Option<&'a Condition>,
}

impl<'a> Peer<'a> {
    /// The view of this resource.
    pub fn from_resource(cluster: &'a ForeignCluster) -> Self {
        let status = cluster.status.as_ref();
        let conditions = status.map_or(&[][..], |status| &status.conditions);
        let tenant = status.and_then(|status| status.tenant_namespace.as_ref());
        Self {
            identity: cluster.spec.cluster_identity.as_ref(),
            tenant: tenant.and_then(|tenant| tenant.local.as_deref()),
            is_deleted: cluster.metadata.deletion_timestamp.is_some(),
            is_authenticated: is_true(conditions, AUTHENTICATED),
            api_server: find(conditions, API_SERVER),
            tunnel: find(conditions, TUNNEL_ENDPOINT),
        }
    }

    /// Its cluster id, once it is known.
    pub fn id(&self) -> Option<&'a ClusterId> {
        self.identity.map(|identity| &identity.cluster_id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_peer_has_a_tenant_namespace_once_the_status_says_so() {
        let cluster = |identity: Value, tenant: Value| -> ForeignCluster {
            serde_json::from_value(json!({
                "metadata": { "name": "milan" },
                "spec": { "authUrl": "https://milan", "clusterIdentity": identity },
                "status": { "tenantNamespace": tenant },
            }))
            .unwrap()
        };
        let unknown = cluster(json!(null), json!(null));
        let unknown = Peer::from_resource(&unknown);
        assert_eq!((unknown.id(), unknown.tenant), (None, None));
        let identity = json!({ "clusterID": "milan-id", "clusterName": "milan" });
        let known = cluster(identity, json!({ "local": "liqo-tenant-milan" }));
        let known = Peer::from_resource(&known);
        assert_eq!(known.id().map(ClusterId::as_str), Some("milan-id"));
        assert_eq!(known.tenant, Some("liqo-tenant-milan"));
    }
}
