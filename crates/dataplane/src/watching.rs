//! What the API server has, kept at hand, and word of every change.

use std::{fmt::Debug, hash::Hash, sync::Arc};

use futures::StreamExt as _;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tombolo_runtime::shutdown::Shutdown;
use tracing::warn;

/// Follows kinds of objects until the end is asked for.
#[derive(Clone, Debug)]
pub struct Follower {
    changed: Arc<Notify>,
    shutdown: Shutdown,
}

impl Follower {
    /// One that follows nothing yet.
    pub fn new(shutdown: &Shutdown) -> Self {
        Self { changed: Arc::default(), shutdown: shutdown.clone() }
    }

    /// Keeps objects at hand.
    pub fn follow<K>(&self, api: Api<K>, config: watcher::Config) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone,
    {
        let (store, writer) = reflector::store();
        let events = watcher(api, config).default_backoff().reflect(writer);
        let Self { changed, shutdown } = self.clone();
        tokio::spawn(async move {
            let mut events = std::pin::pin!(events);
            while let Some(Some(event)) = shutdown.or(events.next()).await {
                match event {
                    Ok(_) => changed.notify_one(),
                    Err(error) => warn!("a watch has ended and starts again: {error}"),
                }
            }
        });
        store
    }

    /// Keeps the object of this name at hand.
    pub fn follow_one<K>(&self, api: Api<K>, name: &str) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone,
    {
        self.follow(api, watcher::Config::default().fields(&format!("metadata.name={name}")))
    }

    /// Waits for the next change; several may be one.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}
