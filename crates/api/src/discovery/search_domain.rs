//! [`SearchDomain`]: a DNS domain whose clusters become ForeignClusters.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The type of a SearchDomain's condition: the last search was answered, and all of it is of use.
pub const SEARCHED: &str = "Searched";

/// Where to search.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "SearchDomain",
    doc = "SearchDomain is a DNS domain that lists clusters: each becomes a ForeignCluster, for \
           as long as the domain lists it.",
    status = "SearchDomainStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "sd",
    printcolumn(name = "Domain", type_ = "string", json_path = ".spec.domain"),
    printcolumn(
        name = "Autojoin",
        type_ = "boolean",
        json_path = ".spec.autojoin",
        description = "Whether clusters found here are peered with at once"
    ),
    printcolumn(
        name = "Clusters",
        type_ = "string",
        json_path = ".status.foreignClusters[*].name",
        description = "The ForeignClusters found here"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct SearchDomainSpec {
    /// The domain whose PTR record lists the clusters.
    #[schemars(schema_with = "crate::schema::domain")]
    pub domain: String,

    /// Whether to peer with the clusters found here. Unset: what the ClusterConfig says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub autojoin: Option<bool>,
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SearchDomainStatus {
    /// The ForeignClusters made from the domain's records.
    #[schemars(length(max = 1024))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub foreign_clusters: Vec<FoundCluster>,

    /// How the last search went.
    #[schemars(schema_with = "crate::schema::conditions")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// A ForeignCluster that a search has made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FoundCluster {
    /// Name of the ForeignCluster.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,
}
