//! [`NamespaceOffloading`]: how a namespace reaches into other clusters.

use k8s_openapi::{api::core::v1::NodeSelector, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::cluster_selector;
use crate::ClusterId;

/// How the namespace reaches into other clusters.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "offloading.liqo.io",
    version = "v1alpha1",
    kind = "NamespaceOffloading",
    namespaced,
    doc = "NamespaceOffloading lets the namespace it is in reach into other clusters. There is \
           at most one in a namespace, called offloading.",
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
        description = "How the namespaces in other clusters are called"
    ),
    printcolumn(
        name = "Clusters",
        type_ = "string",
        json_path = ".status.clusters[*].clusterID",
        description = "The clusters it reaches into"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether the namespace is there in all of them"
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
    /// How the namespaces in other clusters are called: DefaultName (this one's name, '-' and
    /// this cluster's name), EnforceSameName or SelectedName (remoteNamespaceName).
    #[serde(default)]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "namespaceMappingStrategy is immutable: delete the NamespaceOffloading and make another"
    ))]
    pub namespace_mapping_strategy: NamespaceMappingStrategy,

    /// Name of the namespaces in other clusters, with SelectedName.
    #[schemars(schema_with = "crate::schema::namespace")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "remoteNamespaceName is immutable: delete the NamespaceOffloading and make another"
    ))]
    pub remote_namespace_name: Option<String>,

    /// Where pods may run: Local (only here; services and the rest are reflected), Remote (only
    /// in other clusters) or LocalAndRemote.
    #[serde(default)]
    pub pod_offloading_strategy: PodOffloadingStrategy,

    /// Which clusters, by the labels of their virtual nodes. Unset: all.
    #[schemars(schema_with = "cluster_selector::schema")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<NodeSelector>,
}

/// How the namespaces in other clusters are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespaceMappingStrategy {
    /// `<namespace>-<home cluster name>`.
    #[default]
    DefaultName,
    /// As the namespace is called here.
    EnforceSameName,
    /// As `remoteNamespaceName` says.
    SelectedName,
}

/// Where pods may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PodOffloadingStrategy {
    /// Only in this cluster.
    Local,
    /// Only in other clusters.
    Remote,
    /// Wherever the scheduler puts them.
    #[default]
    LocalAndRemote,
}

/// What has become of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
pub struct NamespaceOffloadingStatus {
    /// The clusters that the namespace reaches into.
    #[schemars(length(max = 1024))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["clusterID".into()]))]
    pub clusters: Vec<OffloadedCluster>,

    /// Ready: the namespace is there in all of them.
    #[schemars(schema_with = "crate::schema::conditions")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// The namespace in one other cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OffloadedCluster {
    /// The other cluster.
    #[serde(rename = "clusterID")]
    pub cluster_id: ClusterId,

    /// Name of the namespace there.
    #[schemars(schema_with = "crate::schema::namespace")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote_namespace_name: Option<String>,

    /// Pending, Ready, Failed or Terminating.
    pub phase: OffloadingPhase,

    /// Why, in words for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether a twin namespace is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OffloadingPhase {
    /// Not yet.
    Pending,
    /// It is.
    Ready,
    /// It can't be made.
    Failed,
    /// It is on its way out.
    Terminating,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_spec_has_the_defaults() {
        let spec: NamespaceOffloadingSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, NamespaceOffloadingSpec::default());
        assert_eq!(spec.pod_offloading_strategy, PodOffloadingStrategy::LocalAndRemote);
    }
}
