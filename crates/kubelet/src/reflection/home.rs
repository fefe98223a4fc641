//! Watches of the home namespaces: one per kind and namespace, shared by all peers.

use std::{
    any::Any,
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use kube::{Api, Client, Resource, ResourceExt, core::NamespaceResourceScope, runtime::watcher};
use tokio::sync::broadcast;
use tombolo_runtime::observe::{Changed, Object, Watched};

/// An object that can be watched in a namespace.
pub trait Namespaced: Object + Resource<Scope = NamespaceResourceScope> {}

impl<K> Namespaced for K where K: Object + Resource<Scope = NamespaceResourceScope> {}

/// The objects that have changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The object of this name.
    One(String),
    /// Possibly all objects.
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

/// The watch of one kind in one namespace of this cluster.
#[derive(Debug)]
pub struct HomeWatch<K: Namespaced> {
    /// The current objects.
    pub objects: Watched<K>,
    /// Notifies of changed objects.
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

/// Changes to buffer for a slow flow. If it lags behind further, it reconciles everything.
const BUFFERED: usize = 1024;

impl Homes {
    /// No watches in this cluster yet.
    pub fn new(client: Client) -> Self {
        Self { client, watches: Mutex::default() }
    }

    /// The watch of a kind in a namespace. It ends when the last user drops it.
    pub(super) fn of<K: Namespaced>(&self, namespace: &str) -> Arc<HomeWatch<K>> {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|_, watch| watch.strong_count() > 0);
        let key = (K::kind(&()).into_owned(), namespace.to_owned());
        let shared = watches.get(&key).and_then(Weak::upgrade);
        if let Some(shared) = shared.and_then(|shared| shared.downcast().ok()) {
            return shared;
        }
        let touched = broadcast::Sender::new(BUFFERED);
        let notify = touched.clone();
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let objects = Watched::notifying(api, watcher::Config::default(), move |changed, _| {
            // The error is that there is no receiver at the moment.
            let _ = notify.send(changed.into());
        });
        let watch = Arc::new(HomeWatch { objects, touched });
        let shared: Arc<dyn Any + Send + Sync> = watch.clone();
        watches.insert(key, Arc::downgrade(&shared));
        watch
    }
}
