//! What the API server has, kept at hand: reconciliations that look at several kinds need not ask
//! for each of them.

use std::{fmt::Debug, hash::Hash};

use futures::{StreamExt as _, channel::mpsc};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tombolo_runtime::{controller::Chain, shutdown::Shutdown};
use tracing::warn;

/// Tells that something has changed. Many changes may be told as one.
#[derive(Clone, Debug)]
pub struct Changes(mpsc::Sender<()>);

impl Changes {
    /// The teller, and what hears it.
    pub fn channel() -> (Self, mpsc::Receiver<()>) {
        let (sender, receiver) = mpsc::channel(0);
        (Self(sender), receiver)
    }

    fn tell(&mut self) {
        // Full: somebody is about to look, and will see this change too.
        let _ = self.0.try_send(());
    }
}

/// Keeps all objects of `api` at hand until the end is asked for, and tells of every change after
/// it has been taken in.
pub fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    mut changes: Changes,
    shutdown: &Shutdown,
) -> Store<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Eq + Hash + Clone,
{
    let (store, writer) = reflector::store();
    let events = watcher(api, config).default_backoff().reflect(writer);
    let shutdown = shutdown.clone();
    tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        while let Some(Some(event)) = shutdown.or(events.next()).await {
            match event {
                Ok(_) => changes.tell(),
                Err(error) => warn!("a watch has ended and starts again: {}", Chain(&error)),
            }
        }
    });
    store
}
