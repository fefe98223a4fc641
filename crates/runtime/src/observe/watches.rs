//! The watches of a process: one for each kind, shared by all its users.

use std::{
    any::{Any, TypeId},
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use kube::{Api, Client, runtime::watcher};

use super::{Object, Watched};

/// Watches of all objects of a kind in a cluster, for each kind in use. Clones share the watches,
/// which end with the last clone.
#[derive(Clone)]
pub struct Watches {
    client: Client,
    by_kind: Arc<Mutex<BTreeMap<TypeId, Box<dyn Any + Send>>>>,
}

impl Watches {
    /// No watches yet of the cluster of `client`.
    pub fn new(client: Client) -> Self {
        Self { client, by_kind: Arc::default() }
    }

    /// The watch of a kind. The first call starts it.
    pub fn of<K: Object>(&self) -> Arc<Watched<K>> {
        let mut by_kind = self.by_kind.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = by_kind.get(&TypeId::of::<K>()).and_then(|watched| watched.downcast_ref());
        if let Some(shared) = shared {
            return Arc::clone(shared);
        }
        let all = Api::all(self.client.clone());
        let watched = Arc::new(Watched::<K>::new(all, watcher::Config::default()));
        by_kind.insert(TypeId::of::<K>(), Box::new(watched.clone()));
        watched
    }
}

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watches").finish_non_exhaustive()
    }
}
