//! The response to the admission review of a pod.

use json_patch::{AddOperation, Patch, PatchOperation, jsonptr::PointerBuf};
use k8s_openapi::api::core::v1::Pod;
use kube::core::admission::AdmissionResponse;
use serde_json::{Value, json};
use tombolo_api::offloading::NamespaceOffloadingSpec;
use tombolo_core::admission::{Amendment, amend};

/// The response for a pod in a namespace with this NamespaceOffloading.
pub fn review(
    response: AdmissionResponse,
    pod: &Pod,
    offloading: &NamespaceOffloadingSpec,
) -> AdmissionResponse {
    let patch = patch(pod, &amend(pod, offloading));
    if patch.0.is_empty() {
        return response;
    }
    let unpatched = response.clone();
    response.with_patch(patch).unwrap_or_else(|error| unpatched.deny(error))
}

/// Only adds fields: the pod may have fields that this version does not know.
fn patch(pod: &Pod, amendment: &Amendment) -> Patch {
    let mut patch = Patch::default();
    let mut add = |path: &[&str], value: Value| {
        let path = PointerBuf::from_tokens(path.iter().copied());
        patch.0.push(PatchOperation::Add(AddOperation { path, value }));
    };
    let spec = pod.spec.as_ref();
    if let Some(toleration) = &amendment.toleration {
        match spec.and_then(|spec| spec.tolerations.as_ref()) {
            Some(_) => add(&["spec", "tolerations", "-"], json!(toleration)),
            None => add(&["spec", "tolerations"], json!([toleration])),
        }
    }
    if let Some(required) = &amendment.required {
        let affinity = spec.and_then(|spec| spec.affinity.as_ref());
        if affinity.is_none() {
            add(&["spec", "affinity"], json!({}));
        }
        if affinity.and_then(|affinity| affinity.node_affinity.as_ref()).is_none() {
            add(&["spec", "affinity", "nodeAffinity"], json!({}));
        }
        let required_during = "requiredDuringSchedulingIgnoredDuringExecution";
        add(&["spec", "affinity", "nodeAffinity", required_during], json!(required));
    }
    patch
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patched(spec: &Value) -> Value {
        let mut pod = json!({ "spec": spec });
        let offloading =
            serde_json::from_value(json!({ "podOffloadingStrategy": "Remote" })).unwrap();
        let typed: Pod = serde_json::from_value(pod.clone()).unwrap();
        json_patch::patch(&mut pod, &patch(&typed, &amend(&typed, &offloading))).unwrap();
        pod["spec"].take()
    }

    fn toleration() -> Value {
        json!({
            "key": "virtual-node.liqo.io/not-allowed", "operator": "Exists", "effect": "NoExecute",
        })
    }

    fn required() -> Value {
        json!({ "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] },
        ] }] })
    }

    #[test]
    fn a_plain_pod_gets_toleration_and_affinity() {
        assert_eq!(
            patched(&json!({ "containers": [] })),
            json!({
                "containers": [], "tolerations": [toleration()],
                "affinity": { "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": required(),
                } },
            })
        );
    }

    #[test]
    fn existing_and_unknown_fields_are_preserved() {
        let other = json!({ "key": "a", "operator": "Exists" });
        assert_eq!(
            patched(&json!({
                "containers": [], "tolerations": [other], "fieldOfTheFuture": 1,
                "affinity": { "podAffinity": { "fieldOfTheFuture": 2 } },
            })),
            json!({
                "containers": [], "tolerations": [other, toleration()], "fieldOfTheFuture": 1,
                "affinity": {
                    "podAffinity": { "fieldOfTheFuture": 2 },
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": required(),
                    },
                },
            })
        );
    }
}
