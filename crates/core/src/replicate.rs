//! Copies of custom resources in another cluster: the spec goes out, the status comes back,
//! deletions follow.

use kube::{Resource, core::ObjectMeta};
use serde_json::Value;
use tombolo_api::{
    ClusterId,
    names::{REPLICATE_TO_LABEL, REPLICATED_FROM_LABEL},
};

/// What is left to do about one object and its copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Put the finalizer on the original, before there is a copy.
    Guard,
    /// Write the copy.
    Copy,
    /// Bring this status back to the original.
    Return(Value),
    /// Delete the copy.
    Delete,
    /// The copy is on its way out.
    Wait,
    /// Let the original go: there is no copy.
    Release,
    /// Nothing.
    Done,
}

/// An object at home, and what of it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// The whole object.
    pub object: &'a Value,
    /// Whether it has the replicator's finalizer.
    pub guarded: bool,
}

/// Id of the cluster that an object is copied to.
pub fn sent_to(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(REPLICATE_TO_LABEL).map(String::as_str)
}

/// Id of the cluster that an object is a copy from.
pub fn received_from(meta: &ObjectMeta) -> Option<&str> {
    meta.labels.as_ref()?.get(REPLICATED_FROM_LABEL).map(String::as_str)
}

/// Whether an object is an original of this cluster, copied to that peer.
pub fn goes_to(object: &impl Resource, peer: &ClusterId) -> bool {
    sent_to(object.meta()) == Some(peer.as_str())
}

/// Whether an object is a copy from that peer.
pub fn comes_from(object: &impl Resource, peer: &ClusterId) -> bool {
    received_from(object.meta()) == Some(peer.as_str())
}

/// What to do next about `original` and its `copy` in the other cluster.
pub fn next(original: Original<'_>, copy: Option<&Value>) -> Step {
    let deleting = is_deleting(original.object);
    match copy {
        None if deleting && original.guarded => Step::Release,
        None if deleting => Step::Done,
        Some(copy) if deleting && is_deleting(copy) => Step::Wait,
        Some(_) if deleting => Step::Delete,
        _ if !original.guarded => Step::Guard,
        None => Step::Copy,
        Some(copy) if is_deleting(copy) => Step::Wait,
        Some(copy) if copy["spec"] != original.object["spec"] => Step::Copy,
        Some(copy) if !copy["status"].is_null() && copy["status"] != original.object["status"] => {
            Step::Return(copy["status"].clone())
        }
        Some(_) => Step::Done,
    }
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn object(spec: &str, status: &str) -> Value {
        json!({ "metadata": {}, "spec": spec, "status": status })
    }

    fn deleting(mut object: Value) -> Value {
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        object
    }

    fn next(original: &Value, guarded: bool, copy: Option<&Value>) -> Step {
        super::next(Original { object: original, guarded }, copy)
    }

    #[test]
    fn an_object_is_guarded_before_it_is_copied() {
        let original = object("a", "");
        assert_eq!(next(&original, false, None), Step::Guard);
        assert_eq!(next(&original, true, None), Step::Copy);
    }

    #[test]
    fn the_spec_goes_out_and_the_status_comes_back() {
        let original = object("new", "old");
        assert_eq!(next(&original, true, Some(&object("old", "x"))), Step::Copy);
        assert_eq!(next(&original, true, Some(&object("new", "x"))), Step::Return("x".into()));
        assert_eq!(next(&original, true, Some(&object("new", "old"))), Step::Done);
    }

    #[test]
    fn an_original_goes_after_its_copy() {
        let original = deleting(object("a", ""));
        let copy = object("a", "");
        assert_eq!(next(&original, true, Some(&copy)), Step::Delete);
        assert_eq!(next(&original, true, Some(&deleting(copy))), Step::Wait);
        assert_eq!(next(&original, true, None), Step::Release);
        assert_eq!(next(&original, false, None), Step::Done);
    }

    #[test]
    fn a_copy_that_is_deleted_by_somebody_is_made_again_once_it_is_gone() {
        let original = object("a", "");
        assert_eq!(next(&original, true, Some(&deleting(object("a", "")))), Step::Wait);
        assert_eq!(next(&original, true, None), Step::Copy);
    }

    #[test]
    fn labels_tell_originals_from_copies() {
        let labelled = |label: &str| ConfigMap {
            metadata: ObjectMeta {
                labels: Some([(label.to_owned(), "milan-id".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..ConfigMap::default()
        };
        let (milan, turin) = ("milan-id".parse().unwrap(), "turin-id".parse().unwrap());
        let (original, copy) = (labelled(REPLICATE_TO_LABEL), labelled(REPLICATED_FROM_LABEL));
        assert!(goes_to(&original, &milan) && !comes_from(&original, &milan));
        assert!(comes_from(&copy, &milan) && !goes_to(&copy, &milan));
        assert!(!goes_to(&original, &turin) && !comes_from(&copy, &turin));
        assert!(!goes_to(&ConfigMap::default(), &milan));
    }
}
