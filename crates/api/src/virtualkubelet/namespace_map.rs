//! [`NamespaceMap`]: which namespace of one cluster is which in another.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::schema::{LABEL, rule};

/// The namespaces that are wanted.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "NamespaceMap",
    namespaced,
    doc = "NamespaceMap says which namespace of the home cluster is which in the remote one. It \
           is made by the home cluster and copied to the remote one, which makes the namespaces.",
    status = "NamespaceMapStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "nm",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapSpec {
    /// Namespaces of the remote cluster, by the namespace of the home cluster.
    #[schemars(schema_with = "desired")]
    // Written even if empty: applied without its only field, spec would become null.
    #[serde(default)]
    pub desired_mapping: BTreeMap<String, String>,
}

/// The namespaces that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapStatus {
    /// What has become of each namespace, by the namespace of the home cluster.
    #[schemars(schema_with = "current")]
    // Written even if empty, as above.
    #[serde(default)]
    pub current_mapping: BTreeMap<String, RemoteNamespace>,
}

/// A namespace of the remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespace {
    /// Name of the namespace.
    #[schemars(schema_with = "crate::schema::namespace")]
    pub remote_namespace: String,

    /// Accepted (it is there), Refused (it can't be made) or Terminating.
    pub phase: MappingPhase,

    /// Why, in words for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// What has become of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MappingPhase {
    /// It is there.
    Accepted,
    /// It can't be made: somebody else has one of this name, or it is not allowed.
    Refused,
    /// It is on its way out.
    Terminating,
}

fn current(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": generator.subschema_for::<RemoteNamespace>(),
        "maxProperties": 4096,
    })
}

fn desired(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string", "maxLength": 63 },
        "maxProperties": 4096,
        "x-kubernetes-validations": [rule(
            &format!(
                "self.all(home, home.matches('{LABEL}') && home.size() <= 63 \
                 && self[home].matches('{LABEL}'))"
            ),
            "every key and every value must be the name of a namespace: lower-case letters, \
             digits and '-', with a letter or digit at both ends",
        )],
    })
}
