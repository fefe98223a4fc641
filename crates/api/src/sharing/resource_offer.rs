//! [`ResourceOffer`]: the resources that one cluster offers to another.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    ClusterId,
    schema::{is_qualified_name, rule},
};

/// The offered resources.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "sharing.liqo.io",
    version = "v1alpha1",
    kind = "ResourceOffer",
    namespaced,
    doc = "ResourceOffer holds the resources that a cluster offers to another. The provider \
           creates it; a copy in the consumer determines the capacity of the virtual node.",
    status = "ResourceOfferStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "offer",
    shortname = "advertisement",
    shortname = "advertisements",
    printcolumn(
        name = "Cluster ID",
        type_ = "string",
        json_path = ".spec.clusterID",
        description = "The offering cluster"
    ),
    printcolumn(name = "CPU", type_ = "string", json_path = ".spec.resourceQuota.hard.cpu"),
    printcolumn(name = "Memory", type_ = "string", json_path = ".spec.resourceQuota.hard.memory"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(
        name = "Node",
        type_ = "string",
        json_path = ".status.virtualNode",
        description = "The virtual node of the offer"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOfferSpec {
    /// Id of the offering cluster.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "clusterID is immutable: another cluster needs another ResourceOffer"
    ))]
    pub cluster_id: ClusterId,

    /// The offered amounts.
    pub resource_quota: ResourceQuota,

    /// Labels of the virtual node.
    #[schemars(schema_with = "crate::schema::labels")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,

    /// Storage classes for volumes of offloaded pods.
    #[schemars(length(max = 128))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(
        merge_strategy = ListMerge::Map(vec!["storageClassName".into()]),
        validation = Rule::new("self.filter(c, c.default).size() <= 1").message(
            "at most one storage class can be the default"
        )
    )]
    pub storage_classes: Vec<StorageClass>,

    /// Time of the withdrawal of the offer. From then on it accepts no new pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub withdrawal_timestamp: Option<Time>,
}

/// Amounts of resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceQuota {
    /// Quantities by resource name, such as cpu, memory and pods.
    #[schemars(schema_with = "quantities")]
    pub hard: BTreeMap<String, Quantity>,
}

/// A storage class of the offering cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StorageClass {
    /// Name of the StorageClass in the offering cluster.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub storage_class_name: String,

    /// Whether it is the default StorageClass there.
    #[serde(default)]
    pub default: bool,
}

/// The decision of the receiving cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOfferStatus {
    /// Pending, Accepted or Refused.
    #[serde(default)]
    pub phase: OfferPhase,

    /// Name of the virtual node of the offer.
    #[schemars(schema_with = "crate::schema::object_name")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_node: Option<String>,
}

/// Phase of an offer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OfferPhase {
    /// Not decided yet.
    #[default]
    Pending,
    /// It has or gets a virtual node.
    Accepted,
    /// It gets no virtual node.
    Refused,
}

fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "x-kubernetes-int-or-string": true,
            "maxLength": 64,
        },
        "minProperties": 1,
        "maxProperties": 128,
        "x-kubernetes-validations": [
            rule(
                &format!("self.all(name, {})", is_qualified_name("name")),
                "every key must be the name of a resource, such as cpu or nvidia.com/gpu",
            ),
            rule(
                "self.all(name, type(self[name]) == int ? self[name] >= 0 \
                 : isQuantity(self[name]) && quantity(self[name]).compareTo(quantity('0')) >= 0)",
                "every value must be a quantity that is not negative, such as 4, 500m or 16Gi",
            ),
        ],
    })
}
