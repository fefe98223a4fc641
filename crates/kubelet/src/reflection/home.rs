//! Watches of local namespaces: one per kind and namespace, shared by all peers.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use kube::{Api, Client, Resource, ResourceExt, core::NamespaceResourceScope, runtime::watcher};
use tokio::sync::broadcast;
use tombolo_runtime::observe::{Changed, Object, Watched};

/// A namespaced kind that can be watched.
pub trait Namespaced: Object + Resource<Scope = NamespaceResourceScope> {}

impl<K> Namespaced for K where K: Object + Resource<Scope = NamespaceResourceScope> {}

/// A change of watched objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The object with this name has changed.
    One(String),
    /// Any object may have changed.
    All,
}

impl<K: ResourceExt> From<Changed<'_, K>> for Touched {
    fn from(changed: Changed<'_, K>) -> Self {
        match changed {
            Changed::One(object) => Self::One(object.name_any()),
            Changed::Any => Self::All,
        }
    }
}

/// A watch of one kind in one local namespace.
#[derive(Debug)]
pub struct HomeWatch<K: Namespaced> {
    /// The objects.
    pub objects: Watched<K>,
    /// Changes of the objects.
    pub touched: broadcast::Sender<Touched>,
}

/// The watches in use.
pub struct Homes {
    client: Client,
    watches: Mutex<BTreeMap<(String, String), Weak<dyn Any + Send + Sync>>>,
}

impl Debug for Homes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Homes").finish_non_exhaustive()
    }
}

/// Changes that a flow may lag behind. Beyond that, it reconciles all objects.
const BUFFERED: usize = 1024;

impl Homes {
    /// No watches yet.
    pub fn new(client: Client) -> Self {
        Self { client, watches: Mutex::default() }
    }

    /// The watch of a kind in a namespace. It ends with its last user.
    pub(super) fn of<K: Namespaced>(&self, namespace: &str) -> Arc<HomeWatch<K>> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|_, watch| watch.strong_count() > 0);
        let key = (K::kind(&()).into_owned(), namespace.to_owned());
        let shared = watches.get(&key).and_then(Weak::upgrade);
        if let Some(shared) = shared.and_then(|shared| shared.downcast().ok()) {
            return shared;
        }
        let touched = broadcast::Sender::new(BUFFERED);
        let sender = touched.clone();
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let objects = Watched::telling(api, watcher::Config::default(), move |changed, _| {
            // An error means that there are no receivers at the moment.
            let _ = sender.send(changed.into());
        });
        let watch = Arc::new(HomeWatch { objects, touched });
        let shared: Arc<dyn Any + Send + Sync> = watch.clone();
        watches.insert(key, Arc::downgrade(&shared));
        watch
    }
}
