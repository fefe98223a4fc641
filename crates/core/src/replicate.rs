//! Replication of custom resources to a peer: the spec is copied to the peer, the status is copied
//! back, and a deletion is repeated there.

use serde_json::Value;

/// The next step for one object and its copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Add the finalizer to the original, before the copy is created.
    AddFinalizer,
    /// Apply the copy.
    Copy,
    /// Write this status, which is that of the copy, to the original.
    ReturnStatus(Value),
    /// Delete the copy.
    Delete,
    /// Wait: the copy is being deleted.
    Wait,
    /// Remove the finalizer of the original: its copy is gone.
    RemoveFinalizer,
    /// Nothing.
    Done,
}

/// An object of this cluster.
#[derive(Clone, Copy, Debug)]
pub struct Original<'a> {
    /// The whole object.
    pub object: &'a Value,
    /// Whether it has the replicator's finalizer.
    pub guarded: bool,
}

/// The next step for `original` and its `copy` in the peer.
pub fn next(original: Original<'_>, copy: Option<&Value>) -> Step {
    let deleting = is_deleting(original.object);
    match copy {
        None if deleting && original.guarded => Step::RemoveFinalizer,
        None if deleting => Step::Done,
        Some(copy) if deleting && is_deleting(copy) => Step::Wait,
        Some(_) if deleting => Step::Delete,
        _ if !original.guarded => Step::AddFinalizer,
        None => Step::Copy,
        Some(copy) if is_deleting(copy) => Step::Wait,
        Some(copy) if copy["spec"] != original.object["spec"] => Step::Copy,
        Some(copy) if !copy["status"].is_null() && copy["status"] != original.object["status"] => {
            Step::ReturnStatus(copy["status"].clone())
        }
        Some(_) => Step::Done,
    }
}

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

#[cfg(test)]
mod tests {
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
    fn an_object_gets_its_finalizer_before_it_is_copied() {
        let original = object("a", "");
        assert_eq!(next(&original, false, None), Step::AddFinalizer);
        assert_eq!(next(&original, true, None), Step::Copy);
    }

    #[test]
    fn the_spec_is_copied_to_the_peer_and_the_status_back() {
        let original = object("new", "old");
        assert_eq!(next(&original, true, Some(&object("old", "x"))), Step::Copy);
        assert_eq!(
            next(&original, true, Some(&object("new", "x"))),
            Step::ReturnStatus("x".into())
        );
        assert_eq!(next(&original, true, Some(&object("new", "old"))), Step::Done);
    }

    #[test]
    fn an_original_is_released_after_its_copy_is_gone() {
        let original = deleting(object("a", ""));
        let copy = object("a", "");
        assert_eq!(next(&original, true, Some(&copy)), Step::Delete);
        assert_eq!(next(&original, true, Some(&deleting(copy))), Step::Wait);
        assert_eq!(next(&original, true, None), Step::RemoveFinalizer);
        assert_eq!(next(&original, false, None), Step::Done);
    }

    #[test]
    fn a_deleted_copy_is_recreated_once_it_is_gone() {
        let original = object("a", "");
        assert_eq!(next(&original, true, Some(&deleting(object("a", "")))), Step::Wait);
        assert_eq!(next(&original, true, None), Step::Copy);
    }
}
