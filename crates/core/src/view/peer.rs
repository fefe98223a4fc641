//! The view of a ForeignCluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tombolo_api::{
    ClusterIdentity,
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
        let conditions = cluster.status.as_ref().map_or(&[][..], |status| &status.conditions);
        Self {
            identity: cluster.spec.cluster_identity.as_ref(),
            is_deleted: cluster.metadata.deletion_timestamp.is_some(),
            is_authenticated: is_true(conditions, AUTHENTICATED),
            api_server: find(conditions, API_SERVER),
            tunnel: find(conditions, TUNNEL_ENDPOINT),
        }
    }
}
