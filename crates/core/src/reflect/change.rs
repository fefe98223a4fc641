//! What to do about an object in the remote cluster, by how it is and how it should be.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::Resource;
use serde::Serialize;
use serde_json::Value;
use tombolo_api::names::FORGED_ANNOTATION;

use crate::digest;

/// What to do about an object in the remote cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<R> {
    /// Nothing.
    None,
    /// Make it: there is none.
    Make(R),
    /// Make it so.
    Correct {
        /// Which one; if it is another by then, it is not ours to correct.
        uid: String,
        /// As it is to be.
        to: R,
    },
    /// Remove it.
    Remove {
        /// Which one.
        uid: String,
    },
}

/// Decides about an object. `have` is one that this cluster has made.
pub fn decide<R>(want: Option<R>, have: Option<&R>) -> Change<R>
where
    R: Resource + Serialize,
{
    let leaves = |have: &R| have.meta().deletion_timestamp.is_some();
    let uid = |have: &R| have.meta().uid.clone().unwrap_or_default();
    match (want, have) {
        (None, None) => Change::None,
        // It is made again when it is gone.
        (_, Some(have)) if leaves(have) => Change::None,
        (None, Some(have)) => Change::Remove { uid: uid(have) },
        (Some(want), None) => Change::Make(sealed(want)),
        (Some(want), Some(have)) => {
            let want = sealed(want);
            let is_as_wanted = value(&want).zip(value(have)).is_some_and(|(w, h)| covers(&w, &h));
            if is_as_wanted { Change::None } else { Change::Correct { uid: uid(have), to: want } }
        }
    }
}

/// Notes in an object what was forged, so that it shows when less is wanted than before: others
/// may add to an object, so that what is too much can't be told from the object itself.
fn sealed<R: Resource + Serialize>(mut object: R) -> R {
    let text = serde_json::to_vec(&object).unwrap_or_default();
    let hash = digest::short(text, 8);
    let meta: &mut ObjectMeta = object.meta_mut();
    meta.annotations.get_or_insert_default().insert(FORGED_ANNOTATION.into(), hash);
    object
}

fn value(object: &impl Serialize) -> Option<Value> {
    serde_json::to_value(object).ok()
}

/// Whether all that is wanted is there; there may be more.
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

    fn there(object: ConfigMap) -> ConfigMap {
        let mut there = sealed(object);
        there.metadata.uid = Some("u".into());
        there
    }

    #[test]
    fn what_is_missing_is_made_and_what_is_too_much_goes() {
        let a = || config(&json!({ "a": "1" }));
        assert_eq!(decide::<ConfigMap>(None, None), Change::None);
        assert_eq!(decide(Some(a()), None), Change::Make(sealed(a())));
        assert_eq!(decide(None, Some(&there(a()))), Change::Remove { uid: "u".into() });
    }

    #[test]
    fn what_is_as_wanted_is_left_alone_though_others_add_to_it() {
        let a = || config(&json!({ "a": "1" }));
        let mut have = there(a());
        have.metadata.labels = Some([("added".to_owned(), "x".to_owned())].into());
        have.data.get_or_insert_default().insert("added".into(), "x".into());
        assert_eq!(decide(Some(a()), Some(&have)), Change::None);
    }

    #[test]
    fn what_somebody_changed_is_put_right() {
        let a = || config(&json!({ "a": "1" }));
        let mut have = there(a());
        have.data = Some([("a".to_owned(), "2".to_owned())].into());
        let correct = Change::Correct { uid: "u".into(), to: sealed(a()) };
        assert_eq!(decide(Some(a()), Some(&have)), correct);
    }

    #[test]
    fn what_is_no_longer_wanted_in_an_object_goes() {
        let have = there(config(&json!({ "a": "1", "b": "2" })));
        let want = config(&json!({ "a": "1" }));
        let correct = Change::Correct { uid: "u".into(), to: sealed(want.clone()) };
        assert_eq!(decide(Some(want), Some(&have)), correct);
    }

    #[test]
    fn what_is_on_its_way_out_is_waited_for() {
        let mut have = there(config(&json!({})));
        have.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(decide(Some(config(&json!({ "a": "1" }))), Some(&have)), Change::None);
        assert_eq!(decide(None, Some(&have)), Change::None);
    }
}
