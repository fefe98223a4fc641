//! What is in a cluster: watches that fill indexes, and a bell that rings when one has changed.
//! For controllers that decide by all they see, whatever it was that changed.

use std::{error::Error, fmt::Debug, hash::Hash, sync::Arc, time::Duration};

use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt, reflector,
        reflector::Store,
        utils::Backoff,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
};
use tracing::{debug, warn};

use crate::{controller::Chain, shutdown::Shutdown};

/// Watches, their indexes and their bell. The watches end with it.
#[derive(Debug, Default)]
pub struct Observer {
    bell: Arc<Notify>,
    watches: Vec<Watch>,
}

/// A watch that ends when this is dropped.
#[derive(Debug)]
pub struct Watch {
    task: AbortHandle,
    filled: watch::Receiver<bool>,
}

impl Watch {
    /// Waits until the index has been filled once. Unlike the index's own `wait_until_ready`, which
    /// wakes the last who asked, it wakes all.
    pub async fn filled(&self) {
        // It fails when the watch has ended, which it does with us.
        let _ = self.filled.clone().wait_for(|filled| *filled).await;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Observer {
    /// One that watches nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches what `api` has; every change rings the bell.
    pub fn watch<K>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K>
    where
        K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
        K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
    {
        let bell = self.bell.clone();
        let (store, watch) = watch(api, config, move |event, _| {
            if !matches!(event, Event::Init | Event::InitApply(_)) {
                bell.notify_one();
            }
        });
        self.watches.push(watch);
        store
    }

    /// Something else that rings the bell.
    pub fn bell(&self) -> Arc<Notify> {
        self.bell.clone()
    }

    /// Calls `reconcile` once all indexes are filled, and then whenever something has changed,
    /// until the end is asked for. If it fails it is called again, later and later.
    pub async fn run<Reconciled, E: Error>(
        self,
        name: &'static str,
        shutdown: &Shutdown,
        mut reconcile: impl FnMut() -> Reconciled,
    ) where
        Reconciled: Future<Output = Result<(), E>>,
    {
        let work = async {
            futures::future::join_all(self.watches.iter().map(Watch::filled)).await;
            let mut delay = FIRST_RETRY;
            loop {
                match reconcile().await {
                    Ok(()) => {
                        delay = FIRST_RETRY;
                        self.bell.notified().await;
                    }
                    Err(error) => {
                        warn!(controller = name, retry_in = ?delay, "{}", Chain(&error));
                        let _ = tokio::time::timeout(delay, self.bell.notified()).await;
                        delay = (delay * 2).min(LAST_RETRY);
                    }
                }
            }
        };
        shutdown.or(work).await;
    }
}

/// Waits until an index has been filled once. Its own `wait_until_ready` wakes only the last who
/// asked, so those who ask at the same time ask again now and then.
pub async fn filled<K>(store: &Store<K>) -> Result<(), reflector::store::WriterDropped>
where
    K: Resource + Clone + 'static,
    K::DynamicType: Eq + Hash + Clone,
{
    const AGAIN: Duration = Duration::from_millis(100);
    loop {
        if let Ok(ready) = tokio::time::timeout(AGAIN, store.wait_until_ready()).await {
            return ready;
        }
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Watches are tried again sooner than writes: until they are back, nobody knows what to write.
#[derive(Default)]
struct Retries(u32);

impl Iterator for Retries {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let delay = Duration::from_millis(100).saturating_mul(1 << self.0.min(8));
        self.0 += 1;
        Some(delay.min(Duration::from_secs(2)))
    }
}

impl Backoff for Retries {
    fn reset(&mut self) {
        self.0 = 0;
    }
}

/// Watches what `api` has, and tells of each event, with the index, once the index has it.
pub fn watch<K>(
    api: Api<K>,
    config: watcher::Config,
    mut seen: impl FnMut(&Event<K>, &Store<K>) + Send + 'static,
) -> (Store<K>, Watch)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    K::DynamicType: Eq + Hash + Clone + Default + Send + Sync,
{
    let (store, mut writer) = reflector::store();
    let events = watcher::watcher(api, config).backoff(Retries::default());
    let index = store.clone();
    let (fill, filled) = watch::channel(false);
    let task = tokio::spawn(async move {
        let mut events = std::pin::pin!(events);
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    writer.apply_watcher_event(&event);
                    if matches!(event, Event::InitDone) {
                        fill.send_replace(true);
                    }
                    seen(&event, &index);
                }
                Err(error) => debug!(
                    kind = %K::kind(&K::DynamicType::default()),
                    "the watch is started again: {}", Chain(&error)
                ),
            }
        }
    });
    (store, Watch { task: task.abort_handle(), filled })
}
