//! The pod of a ShadowPod, and the next step to keep both in line.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource;
use tombolo_api::{
    names::{
        FINALIZER, GRACE_PERIOD_ANNOTATION, MANAGED_BY_LABEL, POD_FAILURE_ANNOTATION,
        POD_FINISHED_ANNOTATION, SHADOW_DIGEST_ANNOTATION, SHADOW_POD,
    },
    virtualkubelet::ShadowPod,
};

use crate::{
    digest::{hex, sha256},
    reflect::pod::{RawPod, annotation},
};

/// The next step for a ShadowPod.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Nothing to do.
    Nothing,
    /// Apply the pod: it is missing or differs.
    Apply(Box<RawPod>),
    /// Delete the pod.
    Delete {
        /// Uid of the pod.
        uid: Option<String>,
        /// Grace period in seconds; `None` for the pod's own.
        grace: Option<i64>,
    },
    /// Remove the finalizer of the ShadowPod: its pod is gone.
    RemoveFinalizer,
    /// Record the final phase of the pod on the ShadowPod.
    RecordFinished(String),
    /// A pod with the same name does not belong to a ShadowPod.
    Conflict,
}

/// Decides from the ShadowPod and the pod with the same name.
pub fn next(shadow: &ShadowPod, pod: Option<&RawPod>) -> Next {
    let own = pod.filter(|pod| is_owned(pod, shadow));
    if shadow.metadata.deletion_timestamp.is_some() {
        return own.map_or_else(|| remove_finalizer(shadow), |pod| delete(shadow, pod));
    }
    let finished = annotation(&shadow.metadata, POD_FINISHED_ANNOTATION).is_some();
    match (pod, own) {
        (None, _) if finished => Next::Nothing,
        (None, _) => Next::Apply(Box::new(forge(shadow))),
        (Some(pod), Some(_)) if pod.is_deleting() => Next::Nothing,
        (Some(pod), Some(_)) if pod.is_finished() && !finished => {
            Next::RecordFinished(pod.phase().to_owned())
        }
        (Some(pod), Some(_)) => {
            let digest = annotation(&pod.metadata, SHADOW_DIGEST_ANNOTATION);
            let forged = forge(shadow);
            if pod.is_finished() || digest == annotation(&forged.metadata, SHADOW_DIGEST_ANNOTATION)
            {
                Next::Nothing
            } else {
                Next::Apply(Box::new(forged))
            }
        }
        // A pod of an earlier ShadowPod: the garbage collector deletes it.
        (Some(pod), None) if is_shadow(pod) => Next::Nothing,
        (Some(_), None) => Next::Conflict,
    }
}

/// Fields of the pod spec that the home cluster can't set.
const LOCAL_FIELDS: [&str; 5] =
    ["nodeName", "serviceAccount", "serviceAccountName", "priority", "priorityClassName"];

/// The pod for a ShadowPod.
pub fn forge(shadow: &ShadowPod) -> RawPod {
    let mut pod = RawPod { spec: shadow.spec.pod.clone(), ..RawPod::default() };
    if let Some(spec) = pod.spec.as_object_mut() {
        spec.retain(|field, _| !LOCAL_FIELDS.contains(&field.as_str()));
    }
    let mut labels = shadow.metadata.labels.clone().unwrap_or_default();
    labels.insert(MANAGED_BY_LABEL.into(), SHADOW_POD.into());
    let mut annotations = shadow.metadata.annotations.clone().unwrap_or_default();
    for name in [POD_FAILURE_ANNOTATION, POD_FINISHED_ANNOTATION, GRACE_PERIOD_ANNOTATION] {
        annotations.remove(name);
    }
    annotations.insert(
        SHADOW_DIGEST_ANNOTATION.into(),
        digest([
            &serde_json::to_vec(&labels).unwrap_or_default(),
            &serde_json::to_vec(&annotations).unwrap_or_default(),
            &serde_json::to_vec(&pod.spec).unwrap_or_default(),
        ]),
    );
    pod.metadata.name = shadow.metadata.name.clone();
    pod.metadata.namespace = shadow.metadata.namespace.clone();
    pod.metadata.labels = Some(labels);
    pod.metadata.annotations = Some(annotations);
    pod.metadata.owner_references = Some(vec![OwnerReference {
        api_version: ShadowPod::api_version(&()).into_owned(),
        kind: ShadowPod::kind(&()).into_owned(),
        name: shadow.metadata.name.clone().unwrap_or_default(),
        uid: shadow.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }]);
    pod
}

fn remove_finalizer(shadow: &ShadowPod) -> Next {
    let mut finalizers = shadow.metadata.finalizers.iter().flatten();
    if finalizers.any(|name| name == FINALIZER) { Next::RemoveFinalizer } else { Next::Nothing }
}

fn delete(shadow: &ShadowPod, pod: &RawPod) -> Next {
    let grace = annotation(&shadow.metadata, GRACE_PERIOD_ANNOTATION).and_then(|s| s.parse().ok());
    let shorter = |seconds| pod.metadata.deletion_grace_period_seconds.is_none_or(|s| seconds < s);
    if pod.is_deleting() && !grace.is_some_and(shorter) {
        return Next::Nothing;
    }
    Next::Delete { uid: pod.metadata.uid.clone(), grace }
}

fn is_owned(pod: &RawPod, shadow: &ShadowPod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| Some(&owner.uid) == shadow.metadata.uid.as_ref())
}

fn is_shadow(pod: &RawPod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY_LABEL)).is_some_and(|value| value == SHADOW_POD)
}

/// Each part is preceded by its length, so that different parts never have the same digest.
fn digest(parts: [&[u8]; 3]) -> String {
    let lengths = parts.map(|part| (part.len() as u64).to_be_bytes());
    let parts = lengths.iter().zip(parts).flat_map(|(length, part)| [&length[..], part]);
    hex(&sha256(&parts.collect::<Vec<_>>())[..8])
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn shadow(metadata: &Value) -> ShadowPod {
        let mut shadow = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "s1", "labels": { "app": "web" } },
            "spec": { "pod": { "containers": [{ "name": "web" }] } },
        });
        for (name, value) in metadata.as_object().unwrap() {
            shadow["metadata"][name] = value.clone();
        }
        serde_json::from_value(shadow).unwrap()
    }

    fn live() -> ShadowPod {
        shadow(&json!({}))
    }

    fn ending(annotations: &Value) -> ShadowPod {
        shadow(&json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations }))
    }

    #[test]
    fn a_shadow_pod_is_released_after_its_pod_is_gone() {
        let held =
            json!({ "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [FINALIZER] });
        assert_eq!(next(&shadow(&held), None), Next::RemoveFinalizer);
        assert!(matches!(next(&shadow(&held), Some(&made(&live()))), Next::Delete { .. }));
        assert_eq!(next(&ending(&json!({})), None), Next::Nothing);
    }

    fn made(shadow: &ShadowPod) -> RawPod {
        let mut pod = forge(shadow);
        pod.metadata.uid = Some("p1".into());
        pod
    }

    #[test]
    fn the_pod_follows_from_the_shadow_pod() {
        insta::assert_yaml_snapshot!(forge(&live()));
    }

    #[test]
    fn a_missing_pod_is_created_and_then_left_alone() {
        assert!(matches!(next(&live(), None), Next::Apply(_)));
        assert_eq!(next(&live(), Some(&made(&live()))), Next::Nothing);
    }

    #[test]
    fn a_change_of_the_shadow_pod_is_applied_to_the_pod() {
        let changed = shadow(&json!({ "labels": { "app": "other" } }));
        assert!(matches!(next(&changed, Some(&made(&live()))), Next::Apply(_)));
    }

    #[test]
    fn status_annotations_of_the_shadow_pod_do_not_change_the_pod() {
        let noted = shadow(&json!({ "annotations": { POD_FAILURE_ANNOTATION: "x" } }));
        assert_eq!(next(&noted, Some(&made(&live()))), Next::Nothing);
    }

    #[test]
    fn a_finished_pod_is_recorded_and_never_created_again() {
        let mut pod = made(&live());
        pod.status = json!({ "phase": "Succeeded" });
        assert_eq!(next(&live(), Some(&pod)), Next::RecordFinished("Succeeded".into()));
        let noted = shadow(&json!({ "annotations": { POD_FINISHED_ANNOTATION: "Succeeded" } }));
        assert_eq!(next(&noted, Some(&pod)), Next::Nothing);
        assert_eq!(next(&noted, None), Next::Nothing);
    }

    #[test]
    fn the_pod_of_an_earlier_shadow_pod_has_to_be_deleted_first() {
        let earlier = shadow(&json!({ "uid": "s0" }));
        assert_eq!(next(&live(), Some(&made(&earlier))), Next::Nothing);
    }

    #[test]
    fn pods_without_a_shadow_pod_are_not_touched() {
        assert_eq!(next(&live(), Some(&RawPod::default())), Next::Conflict);
        assert_eq!(next(&ending(&json!({})), Some(&RawPod::default())), Next::Nothing);
    }

    #[test]
    fn a_pod_is_deleted_with_its_shadow_pod_and_with_a_shorter_grace_period_on_request() {
        let mut pod = made(&live());
        let gone = |grace| Next::Delete { uid: Some("p1".into()), grace };
        let hurried = ending(&json!({ GRACE_PERIOD_ANNOTATION: "1" }));
        assert_eq!(next(&ending(&json!({})), Some(&pod)), gone(None));
        assert_eq!(next(&hurried, Some(&pod)), gone(Some(1)));
        pod.metadata.deletion_timestamp = ending(&json!({})).metadata.deletion_timestamp;
        pod.metadata.deletion_grace_period_seconds = Some(30);
        assert_eq!(next(&ending(&json!({})), Some(&pod)), Next::Nothing);
        assert_eq!(next(&hurried, Some(&pod)), gone(Some(1)));
        pod.metadata.deletion_grace_period_seconds = Some(1);
        assert_eq!(next(&hurried, Some(&pod)), Next::Nothing);
    }
}
