//! Changes of objects, each with the object as it was before: what a change concerns may depend on
//! a field that has just lost its value.

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
    /// The object before and after, as far as it was there.
    pub fn both(&self) -> impl Iterator<Item = &'a K> + use<'a, K> {
        self.before.into_iter().chain(self.after)
    }

    /// Whether `field` has another value now, which it also has if the object is new or gone.
    pub fn is_of<Field: PartialEq>(&self, field: impl Fn(&'a K) -> Field) -> bool {
        self.before.map(&field) != self.after.map(&field)
    }
}

impl<K: Object> Watched<K> {
    /// Enqueues the keys that each change concerns, as long as somebody takes them. At first, all
    /// objects are new. After an interrupted watch, the objects that differ have changed.
    pub fn feed_changes<Key, Keys>(
        &self,
        queue: &Queue<Key>,
        keys: impl Fn(Change<'_, K>) -> Keys + Send + 'static,
    ) where
        Key: Send + 'static,
        Keys: IntoIterator<Item = Key>,
    {
        let (queue, mut seen) = (queue.clone(), Seen::default());
        self.tell_while(move |changed, index| {
            seen.update(changed, index, |before, after| {
                let change =
                    Change { before: before.map(|it| &**it), after: after.map(|it| &**it) };
                keys(change).into_iter().for_each(|key| queue.push(key));
            });
            !queue.is_closed()
        });
    }
}

/// The objects as they were at the last change.
pub(super) struct Seen<K>(BTreeMap<Key, Arc<K>>);

impl<K> Default for Seen<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Object> Seen<K> {
    /// Calls `tell` for each object that differs from the index, and takes over what is there.
    pub fn update(
        &mut self,
        changed: Changed<'_, K>,
        index: &Store<K>,
        mut tell: impl FnMut(Option<&Arc<K>>, Option<&Arc<K>>),
    ) {
        let mut tell = |before: Option<Arc<K>>, after: Option<&Arc<K>>| match (&before, after) {
            (None, None) => {}
            (Some(before), Some(after)) if Arc::ptr_eq(before, after) => {}
            (before, after) => tell(before.as_ref(), after),
        };
        match changed {
            Changed::One(object) => {
                let after = index.get(&ObjectRef::from_obj(object));
                let before = match &after {
                    Some(after) => self.0.insert(key(object), after.clone()),
                    None => self.0.remove(&key(object)),
                };
                tell(before, after.as_ref());
            }
            Changed::Any => {
                let now = index.state().into_iter().map(|object| (key(&*object), object)).collect();
                let mut before = std::mem::replace(&mut self.0, now);
                for (key, after) in &self.0 {
                    tell(before.remove(key), Some(after));
                }
                before.into_values().for_each(|gone| tell(Some(gone), None));
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

    /// Lists these objects, and no others.
    pub fn list(writer: &mut Writer<ConfigMap>, objects: impl IntoIterator<Item = ConfigMap>) {
        writer.apply_watcher_event(&Event::Init);
        for object in objects {
            writer.apply_watcher_event(&Event::InitApply(object));
        }
        writer.apply_watcher_event(&Event::InitDone);
    }

    /// The values that each object had and has, by name.
    fn told(
        seen: &mut Seen<ConfigMap>,
        changed: Changed<'_, ConfigMap>,
        index: &Store<ConfigMap>,
    ) -> Vec<(String, Option<String>, Option<String>)> {
        let mut told = Vec::new();
        seen.update(changed, index, |before, after| {
            let name = before.or(after).unwrap().name_any();
            told.push((name, before.map(|it| value(it)), after.map(|it| value(it))));
        });
        told.sort();
        told
    }

    fn is(
        name: &str,
        before: Option<&str>,
        after: Option<&str>,
    ) -> (String, Option<String>, Option<String>) {
        (name.to_owned(), before.map(str::to_owned), after.map(str::to_owned))
    }

    #[test]
    fn an_object_is_told_of_as_it_was_and_as_it_is() {
        let (index, mut writer) = reflector::store();
        let mut seen = Seen::default();
        list(&mut writer, [config_map("a", "1")]);
        assert_eq!(told(&mut seen, Changed::Any, &index), [is("a", None, Some("1"))]);

        let other = config_map("a", "2");
        writer.apply_watcher_event(&Event::Apply(other.clone()));
        let changed = Changed::One(&other);
        assert_eq!(told(&mut seen, changed, &index), [is("a", Some("1"), Some("2"))]);
        assert_eq!(told(&mut seen, changed, &index), [], "nothing has changed since");

        writer.apply_watcher_event(&Event::Delete(other.clone()));
        assert_eq!(told(&mut seen, changed, &index), [is("a", Some("2"), None)]);
        assert_eq!(told(&mut seen, changed, &index), [], "it is gone already");
    }

    #[test]
    fn changes_during_an_interrupted_watch_are_told_of_too() {
        let (index, mut writer) = reflector::store();
        let mut seen = Seen::default();
        list(&mut writer, [config_map("a", "1"), config_map("b", "1")]);
        told(&mut seen, Changed::Any, &index);
        list(&mut writer, [config_map("b", "2"), config_map("c", "1")]);
        assert_eq!(
            told(&mut seen, Changed::Any, &index),
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
