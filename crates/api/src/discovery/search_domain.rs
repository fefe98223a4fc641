//! [`SearchDomain`]: a DNS domain that lists clusters.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Condition type of a SearchDomain: the last query succeeded, and all its records are valid.
pub const SEARCHED: &str = "Searched";

/// The domain to query.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "SearchDomain",
    doc = "SearchDomain is a DNS domain that lists clusters. Each listed cluster has a \
           ForeignCluster as long as it is listed.",
    status = "SearchDomainStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "sd",
    printcolumn(name = "Domain", type_ = "string", json_path = ".spec.domain"),
    printcolumn(
        name = "Autojoin",
        type_ = "boolean",
        json_path = ".spec.autojoin",
        description = "Whether to peer with the discovered clusters automatically"
    ),
    printcolumn(
        name = "Clusters",
        type_ = "string",
        json_path = ".status.foreignClusters[*].name",
        description = "The discovered ForeignClusters"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct SearchDomainSpec {
    /// DNS domain whose PTR records list the clusters.
    #[schemars(schema_with = "crate::schema::domain")]
    pub domain: String,

    /// Whether to peer with the discovered clusters automatically. Unset: as set in the
    /// ClusterConfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autojoin: Option<bool>,
}

/// Result of the last query.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchDomainStatus {
    /// The ForeignClusters created from the domain's records.
    #[schemars(length(max = 1024))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub foreign_clusters: Vec<FoundCluster>,

    /// Searched: the last query succeeded, and all its records are valid.
    #[schemars(schema_with = "crate::schema::conditions")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A ForeignCluster created from the domain's records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundCluster {
    /// Name of the ForeignCluster.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,
}
