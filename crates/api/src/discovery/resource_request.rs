//! [`ResourceRequest`]: the request of one cluster for resources of another.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ClusterIdentity;

/// The requesting cluster.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "ResourceRequest",
    namespaced,
    doc = "ResourceRequest requests a peering. The consumer creates it; a copy in the provider is \
           accepted or refused there.",
    status = "ResourceRequestStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "rr",
    shortname = "peeringrequest",
    shortname = "peeringrequests",
    printcolumn(
        name = "Cluster",
        type_ = "string",
        json_path = ".spec.clusterIdentity.clusterName",
        description = "The requesting cluster"
    ),
    printcolumn(name = "State", type_ = "string", json_path = ".status.state"),
    printcolumn(
        name = "Cluster ID",
        type_ = "string",
        json_path = ".spec.clusterIdentity.clusterID",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceRequestSpec {
    /// The requesting cluster.
    pub cluster_identity: ClusterIdentity,

    /// URL of that cluster's auth service, which issues an identity to the provider in return.
    #[schemars(schema_with = "crate::schema::auth_url")]
    pub auth_url: String,
}

/// The decision of the provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequestStatus {
    /// Pending, Accepted or Refused. To accept manually, set it to Accepted.
    #[serde(default)]
    pub state: RequestState,

    /// The reasons for the state.
    #[schemars(schema_with = "crate::schema::conditions")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// State of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RequestState {
    /// Not decided yet.
    #[default]
    Pending,
    /// An offer follows.
    Accepted,
    /// No offer follows.
    Refused,
}
