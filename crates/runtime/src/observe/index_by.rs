//! An index of watched objects by a value other than their name, for lookups without a scan of all
//! objects.

use std::{
    borrow::Borrow,
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError},
};

use kube::runtime::reflector::Store;
use tokio::sync::watch;

use super::{
    change::Snapshot,
    watched::{Changed, Key, Object, Watched, key},
};

/// Objects of one kind by a value. Several objects can have the same value. It is up to date as
/// long as the [`Watched`] exists. Clones share the index.
pub struct IndexBy<V, K> {
    entries: Arc<Mutex<Entries<V, K>>>,
    synced: watch::Receiver<bool>,
}

impl<V, K> Clone for IndexBy<V, K> {
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone(), synced: self.synced.clone() }
    }
}

impl<V, K> Debug for IndexBy<V, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IndexBy").finish_non_exhaustive()
    }
}

impl<K: Object> Watched<K> {
    /// Indexes each object by its `values`. The index is updated before listeners that are added
    /// later are notified.
    pub fn index_by<V, Values>(
        &self,
        values: impl Fn(&K) -> Values + Send + 'static,
    ) -> IndexBy<V, K>
    where
        V: Ord + Send + 'static,
        Values: IntoIterator<Item = V>,
    {
        let entries = Arc::new(Mutex::new(Entries(BTreeMap::new())));
        let (is_synced, synced) = watch::channel(false);
        let (mut snapshot, used) = (Snapshot::default(), Arc::downgrade(&entries));
        self.notify_while(move |changed, index| {
            let Some(entries) = used.upgrade() else { return false };
            let mut entries = entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.update(changed, index, &mut snapshot, &values);
            is_synced.send_replace(true);
            true
        });
        IndexBy { entries, synced }
    }
}

impl<V: Ord, K> IndexBy<V, K> {
    /// The objects with this value, ordered by name.
    pub fn get<Q: Ord + ?Sized>(&self, value: &Q) -> Vec<Arc<K>>
    where
        V: Borrow<Q>,
    {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.0.get(value).map(|objects| objects.values().cloned().collect()).unwrap_or_default()
    }

    /// Waits until the index has all objects, which may be a moment after the [`Watched`].
    pub async fn synced(&self) {
        // An error means that the watch has ended, and so has its owner.
        let _ = self.synced.clone().wait_for(|synced| *synced).await;
    }
}

struct Entries<V, K>(BTreeMap<V, BTreeMap<Key, Arc<K>>>);

impl<V: Ord, K: Object> Entries<V, K> {
    fn update<Values: IntoIterator<Item = V>>(
        &mut self,
        changed: Changed<'_, K>,
        index: &Store<K>,
        snapshot: &mut Snapshot<K>,
        values: impl Fn(&K) -> Values,
    ) {
        snapshot.update(changed, index, |before, after| {
            if let Some(before) = before {
                values(before).into_iter().for_each(|value| self.remove(&value, &key(&**before)));
            }
            if let Some(after) = after {
                for value in values(after) {
                    self.0.entry(value).or_default().insert(key(&**after), after.clone());
                }
            }
        });
    }

    fn remove(&mut self, value: &V, key: &Key) {
        if let Some(objects) = self.0.get_mut(value) {
            objects.remove(key);
            if objects.is_empty() {
                self.0.remove(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Client, ResourceExt,
        client::Body,
        runtime::{
            reflector,
            watcher::{self, Event},
        },
    };
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::{
        observe::change::tests::{config_map, list, value},
        queue::{self, queue},
    };

    #[test]
    fn objects_are_indexed_by_their_current_value() {
        let (index, mut writer) = reflector::store();
        let (mut entries, mut snapshot) = (Entries(BTreeMap::new()), Snapshot::default());
        let found = |entries: &Entries<String, ConfigMap>| -> Vec<(String, Vec<String>)> {
            let names = |objects: &BTreeMap<Key, Arc<ConfigMap>>| {
                objects.values().map(|object| object.name_any()).collect()
            };
            entries.0.iter().map(|(value, objects)| (value.clone(), names(objects))).collect()
        };
        let is = |value: &str, names: &[&str]| {
            (value.to_owned(), names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
        };
        let by_value = |object: &ConfigMap| [value(object)];

        list(&mut writer, [config_map("b", "1"), config_map("a", "1"), config_map("c", "2")]);
        entries.update(Changed::Any, &index, &mut snapshot, by_value);
        assert_eq!(found(&entries), [is("1", &["a", "b"]), is("2", &["c"])]);

        let moved = config_map("a", "2");
        writer.apply_watcher_event(&Event::Apply(moved.clone()));
        entries.update(Changed::One(&moved), &index, &mut snapshot, by_value);
        assert_eq!(found(&entries), [is("1", &["b"]), is("2", &["a", "c"])]);

        list(&mut writer, [moved]);
        entries.update(Changed::Any, &index, &mut snapshot, by_value);
        assert_eq!(found(&entries), [is("2", &["a"])]);
    }

    /// An API server with two objects that never change.
    fn client() -> Client {
        let answer = |request: Request<Body>| async move {
            if request.uri().query().unwrap_or_default().contains("watch=true") {
                std::future::pending::<()>().await;
            }
            let items = [config_map("a", "1"), config_map("b", "2")];
            let list = json!({ "metadata": { "resourceVersion": "1" }, "items": items });
            Ok::<_, kube::Error>(Response::new(Body::from(list.to_string().into_bytes())))
        };
        Client::new(service_fn(answer), "shop")
    }

    #[tokio::test]
    async fn the_index_is_updated_before_keys_are_enqueued() {
        let api = Api::<ConfigMap>::default_namespaced(client());
        let watched = Watched::new(api, watcher::Config::default());
        let index = watched.index_by(|object| [value(object)]);
        let (queue, receiver) = queue();
        let indexed = index.clone();
        watched.enqueue_changes(&queue, move |change| {
            let found = change.both().flat_map(|object| indexed.get(&value(object)));
            found.map(|object| object.name_any()).collect::<Vec<_>>()
        });
        index.synced().await;
        assert_eq!(index.get("2").len(), 1);
        assert_eq!(index.get("3").len(), 0);
        let (sender, mut names) = tokio::sync::mpsc::unbounded_channel();
        let work = queue::run("test", receiver, async |name| {
            sender.send(name).expect("the receiver exists");
            Ok::<(), std::io::Error>(())
        });
        let all = async { [names.recv().await, names.recv().await].map(Option::unwrap) };
        tokio::select! {
            () = work => unreachable!("the queue is open"),
            all = all => assert_eq!(all, ["a", "b"]),
        }
    }
}
