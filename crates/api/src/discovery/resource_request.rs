//! [`ResourceRequest`]: one cluster asks another for resources.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ClusterIdentity;

/// Who asks.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "ResourceRequest",
    namespaced,
    doc = "ResourceRequest asks for a peering. It is made by the cluster that wants resources \
           and copied to the one that has them, which accepts or refuses.",
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
        description = "The cluster that asks"
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
    /// The cluster that asks.
    pub cluster_identity: ClusterIdentity,

    /// URL of that cluster's auth service, where this one gets an identity in return.
    #[schemars(schema_with = "crate::schema::auth_url")]
    pub auth_url: String,
}

/// What the cluster that was asked says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequestStatus {
    /// Pending, Accepted or Refused. To accept by hand, set it to Accepted.
    #[serde(default)]
    pub state: RequestState,

    /// Why.
    #[schemars(schema_with = "crate::schema::conditions")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RequestState {
    /// Nobody has decided yet.
    #[default]
    Pending,
    /// There will be an offer.
    Accepted,
    /// There won't.
    Refused,
}
