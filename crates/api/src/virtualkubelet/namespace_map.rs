//! [`NamespaceMap`]: the twin namespaces of offloaded namespaces.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::schema::{LABEL, rule};

/// The desired twin namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "NamespaceMap",
    namespaced,
    doc = "NamespaceMap maps namespaces of the home cluster to their twins in the remote one. The \
           home cluster creates it; from a copy, the remote cluster creates the twin namespaces.",
    status = "NamespaceMapStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "nm",
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapSpec {
    /// Names of the twin namespaces, by namespace of the home cluster.
    #[schemars(schema_with = "desired")]
    // Serialized even if empty: applied without its only field, spec would become null.
    #[serde(default)]
    pub desired_mapping: BTreeMap<String, String>,
}

/// The state of the twin namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamespaceMapStatus {
    /// State of each twin namespace, by namespace of the home cluster.
    #[schemars(schema_with = "current")]
    // Serialized even if empty, as above.
    #[serde(default)]
    pub current_mapping: BTreeMap<String, RemoteNamespace>,
}

/// A twin namespace in the remote cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RemoteNamespace {
    /// Name of the namespace.
    #[schemars(schema_with = "crate::schema::namespace")]
    pub remote_namespace: String,

    /// Accepted (it exists), Refused (it can't be created) or Terminating.
    pub phase: MappingPhase,

    /// Human-readable reason of the phase.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Phase of a twin namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MappingPhase {
    /// It exists.
    Accepted,
    /// It can't be created: the name is taken or not allowed.
    Refused,
    /// It is being deleted.
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
