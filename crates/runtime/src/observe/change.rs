//! Changes of objects, each with the object before and after: the keys that a change concerns may
//! depend on the old value of a field.

use std::{collections::BTreeMap, sync::Arc};

use kube::runtime::reflector::{ObjectRef, Store};

use super::watched::{Changed, Key, Object, Watched, key};
use crate::queue::Queue;

/// One object, before and after a change.
#[derive(Debug)]
pub struct Change<'a, K> {
    /// The object before; none if it is new.
    pub before: Option<&'a K>,
    /// The object after; none if it is gone.
    pub after: Option<&'a K>,
}

impl<'a, K> Change<'a, K> {
    /// The object before and after, if it existed.
    pub fn both(&self) -> impl Iterator<Item = &'a K> + use<'a, K> {
        self.before.into_iter().chain(self.after)
    }

    /// Whether `field` has changed. It has if the object is new or gone.
    pub fn is_of<Field: PartialEq>(&self, field: impl Fn(&'a K) -> Field) -> bool {
        self.before.map(&field) != self.after.map(&field)
    }
}

impl<K: Object> Watched<K> {
    /// Enqueues the keys that each change concerns, until the queue is closed. At first, all
    /// objects are new. After an interrupted watch, the objects that differ have changed.
    pub fn enqueue_changes<Key, Keys>(
        &self,
        queue: &Queue<Key>,
        keys: impl Fn(Change<'_, K>) -> Keys + Send + 'static,
    ) where
        Key: Send + 'static,
        Keys: IntoIterator<Item = Key>,
    {
        let (queue, mut snapshot) = (queue.clone(), Snapshot::default());
        self.notify_while(move |changed, index| {
            snapshot.update(changed, index, |before, after| {
                let change =
                    Change { before: before.map(|it| &**it), after: after.map(|it| &**it) };
                keys(change).into_iter().for_each(|key| queue.enqueue(key));
            });
            !queue.is_closed()
        });
    }
}

/// The objects at the last change.
pub(super) struct Snapshot<K>(BTreeMap<Key, Arc<K>>);

impl<K> Default for Snapshot<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Object> Snapshot<K> {
    /// Calls `notify` for each object that differs from the index, then copies the index.
    pub fn update(
        &mut self,
        changed: Changed<'_, K>,
        index: &Store<K>,
        mut notify: impl FnMut(Option<&Arc<K>>, Option<&Arc<K>>),
    ) {
        let mut notify = |before: Option<Arc<K>>, after: Option<&Arc<K>>| match (&before, after) {
            (None, None) => {}
            (Some(before), Some(after)) if Arc::ptr_eq(before, after) => {}
            (before, after) => notify(before.as_ref(), after),
        };
        match changed {
            Changed::One(object) => {
                let after = index.get(&ObjectRef::from_obj(object));
                let before = match &after {
                    Some(after) => self.0.insert(key(object), after.clone()),
                    None => self.0.remove(&key(object)),
                };
                notify(before, after.as_ref());
            }
            Changed::Any => {
                let now = index.state().into_iter().map(|object| (key(&*object), object)).collect();
                let mut before = std::mem::replace(&mut self.0, now);
                for (key, after) in &self.0 {
                    notify(before.remove(key), Some(after));
                }
                before.into_values().for_each(|gone| notify(Some(gone), None));
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        ResourceExt,
        runtime::{
            reflector::{self, store::Writer},
            watcher::Event,
        },
    };
    use serde_json::json;

    use super::*;

    /// A ConfigMap with a value.
    pub fn config_map(name: &str, value: &str) -> ConfigMap {
        serde_json::from_value(json!({
            "metadata": { "namespace": "shop", "name": name }, "data": { "value": value },
        }))
        .unwrap()
    }

    /// The value of a ConfigMap.
    pub fn value(object: &ConfigMap) -> String {
        object.data.as_ref().unwrap()["value"].clone()
    }

    /// A list with these objects only.
    pub fn list(writer: &mut Writer<ConfigMap>, objects: impl IntoIterator<Item = ConfigMap>) {
        writer.apply_watcher_event(&Event::Init);
        for object in objects {
            writer.apply_watcher_event(&Event::InitApply(object));
        }
        writer.apply_watcher_event(&Event::InitDone);
    }

    /// Name, old and new value of each object that has changed.
    fn changes(
        snapshot: &mut Snapshot<ConfigMap>,
        changed: Changed<'_, ConfigMap>,
        index: &Store<ConfigMap>,
    ) -> Vec<(String, Option<String>, Option<String>)> {
        let mut changes = Vec::new();
        snapshot.update(changed, index, |before, after| {
            let name = before.or(after).unwrap().name_any();
            changes.push((name, before.map(|it| value(it)), after.map(|it| value(it))));
        });
        changes.sort();
        changes
    }

    fn is(
        name: &str,
        before: Option<&str>,
        after: Option<&str>,
    ) -> (String, Option<String>, Option<String>) {
        (name.to_owned(), before.map(str::to_owned), after.map(str::to_owned))
    }

    #[test]
    fn a_change_has_the_object_before_and_after() {
        let (index, mut writer) = reflector::store();
        let mut snapshot = Snapshot::default();
        list(&mut writer, [config_map("a", "1")]);
        assert_eq!(changes(&mut snapshot, Changed::Any, &index), [is("a", None, Some("1"))]);

        let other = config_map("a", "2");
        writer.apply_watcher_event(&Event::Apply(other.clone()));
        let changed = Changed::One(&other);
        assert_eq!(changes(&mut snapshot, changed, &index), [is("a", Some("1"), Some("2"))]);
        assert_eq!(changes(&mut snapshot, changed, &index), [], "no change since");

        writer.apply_watcher_event(&Event::Delete(other.clone()));
        assert_eq!(changes(&mut snapshot, changed, &index), [is("a", Some("2"), None)]);
        assert_eq!(changes(&mut snapshot, changed, &index), [], "already gone");
    }

    #[test]
    fn changes_during_an_interrupted_watch_are_found() {
        let (index, mut writer) = reflector::store();
        let mut snapshot = Snapshot::default();
        list(&mut writer, [config_map("a", "1"), config_map("b", "1")]);
        changes(&mut snapshot, Changed::Any, &index);
        list(&mut writer, [config_map("b", "2"), config_map("c", "1")]);
        assert_eq!(
            changes(&mut snapshot, Changed::Any, &index),
            [is("a", Some("1"), None), is("b", Some("1"), Some("2")), is("c", None, Some("1"))]
        );
    }

    #[test]
    fn a_change_is_of_the_fields_that_differ() {
        let (one, other) = (config_map("a", "1"), config_map("a", "2"));
        let change = Change { before: Some(&one), after: Some(&other) };
        assert!(change.is_of(value));
        assert!(!change.is_of(ResourceExt::name_any));
        assert!(Change { before: None, after: Some(&one) }.is_of(ResourceExt::name_any));
        assert_eq!(change.both().map(value).collect::<Vec<_>>(), ["1", "2"]);
    }
}
