//! [`ShadowPod`]: an offloaded pod that the remote cluster keeps running.

use k8s_openapi::api::core::v1::PodSpec;
use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The desired pod.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "ShadowPod",
    namespaced,
    doc = "ShadowPod is an offloaded pod in the remote cluster, which keeps a pod of the same name \
           running, even while the home cluster is unreachable.",
    derive = "PartialEq",
    category = "liqo",
    shortname = "sp",
    printcolumn(name = "Containers", type_ = "string", json_path = ".spec.pod.containers[*].name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ShadowPodSpec {
    /// The spec of the pod, as in a Pod.
    #[schemars(schema_with = "pod")]
    pub pod: Value,
}

impl ShadowPodSpec {
    /// The pod as a typed spec, without fields unknown to this version. It fails only for this pod:
    /// the others of a list are still read.
    pub fn typed(&self) -> Result<PodSpec, serde_json::Error> {
        PodSpec::deserialize(&self.pod)
    }
}

/// Only the fields of every pod. The API server validates the others when the pod is created. A
/// full schema would be that of one Kubernetes version: newer fields would be dropped silently, as
/// with a typed `pod` above. It would also be larger than all other CRDs together.
fn pod(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "required": ["containers"],
        "properties": {
            "containers": {
                "type": "array",
                "minItems": 1,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "x-kubernetes-preserve-unknown-fields": true,
                    "required": ["name"],
                    "properties": {
                        "name": { "type": "string", "minLength": 1, "maxLength": 63 },
                    },
                },
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_fields_are_kept() {
        let pod = json!({ "containers": [{ "name": "web", "later": 1 }], "later": 2 });
        let spec: ShadowPodSpec = serde_json::from_value(json!({ "pod": pod })).unwrap();
        assert_eq!(spec.typed().unwrap().containers[0].name, "web");
        assert_eq!(serde_json::to_value(&spec).unwrap()["pod"], pod);
    }

    #[test]
    fn an_invalid_pod_fails_only_in_typed() {
        let pod = json!({ "containers": [{ "name": "web", "ports": "all" }] });
        let spec: ShadowPodSpec = serde_json::from_value(json!({ "pod": pod })).unwrap();
        assert!(spec.typed().is_err());
    }
}
