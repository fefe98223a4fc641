//! The change of a reflected object, from its actual and desired state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Resource;
use serde::Serialize;
use serde_json::Value;
use tombolo_api::names::FORGED_ANNOTATION;

use crate::digest;

/// The change of an object in the remote cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<R> {
    /// Nothing.
    None,
    /// Create it.
    Create(R),
    /// Update it.
    Update {
        /// Uid of the existing object: one with another uid is not updated.
        uid: String,
        /// The desired object.
        to: R,
    },
    /// Delete it.
    Delete {
        /// Uid of the existing object.
        uid: String,
    },
}

/// Decides on an object. `have` is one that this cluster has created.
pub fn decide<R>(want: Option<R>, have: Option<&R>) -> Change<R>
where
    R: Resource + Serialize,
{
    let is_terminating = |have: &R| have.meta().deletion_timestamp.is_some();
    let uid = |have: &R| have.meta().uid.clone().unwrap_or_default();
    match (want, have) {
        (None, None) => Change::None,
        // It is created again once it is gone.
        (_, Some(have)) if is_terminating(have) => Change::None,
        (None, Some(have)) => Change::Delete { uid: uid(have) },
        (Some(want), None) => Change::Create(with_digest(want)),
        (Some(want), Some(have)) => {
            let want = with_digest(want);
            let is_up_to_date = value(&want).zip(value(have)).is_some_and(|(w, h)| covers(&w, &h));
            if is_up_to_date { Change::None } else { Change::Update { uid: uid(have), to: want } }
        }
    }
}

/// Adds the digest of the object as an annotation. It reveals fields that are not desired any more:
/// they can't be detected in the object itself, because others may add fields.
fn with_digest<R: Resource + Serialize>(mut object: R) -> R {
    let text = serde_json::to_vec(&object).unwrap_or_default();
    let hash = digest::short(text, 8);
    let meta: &mut ObjectMeta = object.meta_mut();
    meta.annotations.get_or_insert_default().insert(FORGED_ANNOTATION.into(), hash);
    object
}

fn value(object: &impl Serialize) -> Option<Value> {
    serde_json::to_value(object).ok()
}

/// Whether `have` contains all of `want`; it may contain more.
fn covers(want: &Value, have: &Value) -> bool {
    match (want, have) {
        (Value::Object(want), Value::Object(have)) => {
            let none = Value::Null;
            want.iter().all(|(key, want)| covers(want, have.get(key).unwrap_or(&none)))
        }
        (Value::Array(want), Value::Array(have)) => {
            want.len() == have.len() && want.iter().zip(have).all(|(want, have)| covers(want, have))
        }
        (Value::Object(want), Value::Null) => want.is_empty(),
        (Value::Array(want), Value::Null) => want.is_empty(),
        (want, have) => want == have,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use serde_json::json;

    use super::*;

    fn config(data: &Value) -> ConfigMap {
        serde_json::from_value(json!({ "metadata": { "name": "c" }, "data": data })).unwrap()
    }

    fn existing(object: ConfigMap) -> ConfigMap {
        let mut existing = with_digest(object);
        existing.metadata.uid = Some("u".into());
        existing
    }

    #[test]
    fn missing_objects_are_created_and_undesired_ones_deleted() {
        let a = || config(&json!({ "a": "1" }));
        assert_eq!(decide::<ConfigMap>(None, None), Change::None);
        assert_eq!(decide(Some(a()), None), Change::Create(with_digest(a())));
        assert_eq!(decide(None, Some(&existing(a()))), Change::Delete { uid: "u".into() });
    }

    #[test]
    fn fields_added_by_others_are_left_alone() {
        let a = || config(&json!({ "a": "1" }));
        let mut have = existing(a());
        have.metadata.labels = Some([("added".to_owned(), "x".to_owned())].into());
        have.data.get_or_insert_default().insert("added".into(), "x".into());
        assert_eq!(decide(Some(a()), Some(&have)), Change::None);
    }

    #[test]
    fn fields_changed_by_others_are_corrected() {
        let a = || config(&json!({ "a": "1" }));
        let mut have = existing(a());
        have.data = Some([("a".to_owned(), "2".to_owned())].into());
        let correct = Change::Update { uid: "u".into(), to: with_digest(a()) };
        assert_eq!(decide(Some(a()), Some(&have)), correct);
    }

    #[test]
    fn fields_that_are_no_longer_desired_are_removed() {
        let have = existing(config(&json!({ "a": "1", "b": "2" })));
        let want = config(&json!({ "a": "1" }));
        let correct = Change::Update { uid: "u".into(), to: with_digest(want.clone()) };
        assert_eq!(decide(Some(want), Some(&have)), correct);
    }

    #[test]
    fn a_terminating_object_is_not_changed() {
        let mut have = existing(config(&json!({})));
        have.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(decide(Some(config(&json!({ "a": "1" }))), Some(&have)), Change::None);
        assert_eq!(decide(None, Some(&have)), Change::None);
    }
}
