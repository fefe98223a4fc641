//! [`ShadowPod`]: a pod that the cluster which hosts it keeps up.

use k8s_openapi::api::core::v1::PodSpec;
use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The pod that is wanted.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "ShadowPod",
    namespaced,
    doc = "ShadowPod is an offloaded pod in the cluster that hosts it. As long as it is there, so \
           is the pod of the same name, even while the home cluster can't be reached.",
    derive = "PartialEq",
    category = "liqo",
    shortname = "sp",
    printcolumn(name = "Containers", type_ = "string", json_path = ".spec.pod.containers[*].name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ShadowPodSpec {
    /// The pod's spec, as in a Pod.
    #[schemars(schema_with = "pod")]
    pub pod: Value,
}

impl ShadowPodSpec {
    /// The pod, as far as this version of Kubernetes' types know it. Fails where it is none: that
    /// is one bad pod, and no reason to stop reading the others.
    pub fn typed(&self) -> Result<PodSpec, serde_json::Error> {
        PodSpec::deserialize(&self.pod)
    }
}

/// Only what every pod has. The API server checks the rest when the pod itself is made. A full
/// schema would be that of one version of Kubernetes: a field that is younger would be dropped
/// without a word, as it would by a typed `pod` above. It would also be larger than all other
/// definitions together.
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
    fn a_field_of_later_kubernetes_is_kept() {
        let pod = json!({ "containers": [{ "name": "web", "later": 1 }], "later": 2 });
        let spec: ShadowPodSpec = serde_json::from_value(json!({ "pod": pod })).unwrap();
        assert_eq!(spec.typed().unwrap().containers[0].name, "web");
        assert_eq!(serde_json::to_value(&spec).unwrap()["pod"], pod);
    }

    #[test]
    fn what_is_no_pod_is_an_error_of_its_own() {
        let pod = json!({ "containers": [{ "name": "web", "ports": "all" }] });
        let spec: ShadowPodSpec = serde_json::from_value(json!({ "pod": pod })).unwrap();
        assert!(spec.typed().is_err());
    }
}
