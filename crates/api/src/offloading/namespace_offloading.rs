//! [`NamespaceOffloading`]: the extension of a namespace to other clusters.

use k8s_openapi::{api::core::v1::NodeSelector, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cluster_selector;
use crate::ClusterId;

/// How and where the namespace is offloaded.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "offloading.liqo.io",
    version = "v1alpha1",
    kind = "NamespaceOffloading",
    namespaced,
    doc = "NamespaceOffloading extends its namespace to other clusters. There is at most one in a \
           namespace, named offloading.",
    status = "NamespaceOffloadingStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "nso",
    printcolumn(
        name = "Pods",
        type_ = "string",
        json_path = ".spec.podOffloadingStrategy",
        description = "Where pods may run"
    ),
    printcolumn(
        name = "Naming",
        type_ = "string",
        json_path = ".spec.namespaceMappingStrategy",
        description = "Naming of the twin namespaces in other clusters"
    ),
    printcolumn(
        name = "Clusters",
        type_ = "string",
        json_path = ".status.clusters[*].clusterID",
        description = "The clusters with a twin namespace"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether all twin namespaces exist"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'offloading'").message(
        "metadata.name must be offloading: there is one NamespaceOffloading in a namespace"
    )
)]
#[x_kube(
    validation = Rule::new(
        "self.namespaceMappingStrategy != 'SelectedName' || has(self.remoteNamespaceName)"
    )
    .message("remoteNamespaceName is required with the namespaceMappingStrategy SelectedName")
    .field_path(".remoteNamespaceName")
    .reason(Reason::FieldValueRequired),
    validation = Rule::new(
        "self.namespaceMappingStrategy == 'SelectedName' || !has(self.remoteNamespaceName)"
    )
    .message("remoteNamespaceName needs the namespaceMappingStrategy SelectedName")
    .field_path(".remoteNamespaceName")
    .reason(Reason::FieldValueForbidden)
)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceOffloadingSpec {
    /// Naming of the twin namespaces in other clusters: DefaultName (name of this namespace, '-'
    /// and name of this cluster), EnforceSameName or SelectedName (remoteNamespaceName).
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "namespaceMappingStrategy is immutable: delete the NamespaceOffloading and make another"
    ))]
    pub namespace_mapping_strategy: NamespaceMappingStrategy,

    /// Name of the twin namespaces in other clusters, with SelectedName.
    #[schemars(schema_with = "crate::schema::namespace")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "remoteNamespaceName is immutable: delete the NamespaceOffloading and make another"
    ))]
    pub remote_namespace_name: Option<String>,

    /// Where pods may run: Local (only in this cluster; Services, endpoints, ConfigMaps and Secrets
    /// are reflected), Remote (only in other clusters) or LocalAndRemote.
    #[serde(default)]
    pub pod_offloading_strategy: PodOffloadingStrategy,

    /// Selects the clusters by the labels of their virtual nodes. Unset: all clusters.
    #[schemars(schema_with = "cluster_selector::schema")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<NodeSelector>,
}

/// Naming of the twin namespaces in other clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespaceMappingStrategy {
    /// `<namespace>-<home cluster name>`.
    #[default]
    DefaultName,
    /// The same name.
    EnforceSameName,
    /// The name in `remoteNamespaceName`.
    SelectedName,
}

/// Where pods may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodOffloadingStrategy {
    /// Only in this cluster.
    Local,
    /// Only in other clusters.
    Remote,
    /// In any cluster, as the scheduler decides.
    #[default]
    LocalAndRemote,
}

/// State of the offloading.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct NamespaceOffloadingStatus {
    /// The clusters with a twin namespace.
    #[schemars(length(max = 1024))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["clusterID".into()]))]
    pub clusters: Vec<OffloadedCluster>,

    /// Ready: all twin namespaces exist.
    #[schemars(schema_with = "crate::schema::conditions")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The twin namespace in one other cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OffloadedCluster {
    /// Id of the other cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// Name of the twin namespace.
    #[schemars(schema_with = "crate::schema::namespace")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_namespace_name: Option<String>,

    /// Pending, Ready, Failed or Terminating.
    pub phase: OffloadingPhase,

    /// Human-readable reason of the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Phase of a twin namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OffloadingPhase {
    /// Not created yet.
    Pending,
    /// It exists.
    Ready,
    /// It can't be created.
    Failed,
    /// It is being deleted.
    Terminating,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_spec_has_all_defaults() {
        let spec: NamespaceOffloadingSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, NamespaceOffloadingSpec::default());
        assert_eq!(spec.pod_offloading_strategy, PodOffloadingStrategy::LocalAndRemote);
    }
}
