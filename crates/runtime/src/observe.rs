//! What is in a cluster: watches that keep objects at hand, and tell when they have changed. A
//! [`Watched`] for those that look at one kind, an [`Observer`] for those that decide by all they
//! see, whatever it was that changed.

use std::{error::Error, fmt::Debug, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        utils::Backoff,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::{Notify, watch};
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::{controller::Chain, shutdown::Shutdown};

/// What can be watched.
pub trait Object:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

/// What has changed.
#[derive(Debug)]
pub enum Changed<'a, K> {
    /// One object.
    One(&'a K),
    /// Any of them: nobody has looked for a while, or ever.
    Any,
}

impl<K> Clone for Changed<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Changed<'_, K> {}

/// Objects of one kind, kept up to date until this is dropped.
#[derive(Debug)]
pub struct Watched<K: Object> {
    index: Store<K>,
    watch: Watch,
}

/// Only the object of this name.
pub fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

impl<K: Object> Watched<K> {
    /// Watches what `api` has.
    pub fn new(api: Api<K>, config: watcher::Config) -> Self {
        Self::telling(api, config, |_, _| {})
    }

    /// Watches, and tells of each change once the index, which it shows, has it.
    pub fn telling(
        api: Api<K>,
        config: watcher::Config,
        mut tell: impl FnMut(Changed<'_, K>, &Store<K>) + Send + 'static,
    ) -> Self {
        let (index, mut writer) = reflector::store();
        let (count, changes) = watch::channel(0);
        let seen = index.clone();
        let task = tokio::spawn(async move {
            let events = watcher::watcher(api, config)
                .modify(|object| object.managed_fields_mut().clear())
                .backoff(Retries::default());
            let mut events = std::pin::pin!(events);
            let mut broken = false;
            while let Some(event) = events.next().await {
                let event = match event {
                    Ok(event) => event,
                    Err(error) => {
                        let (kind, error) = (K::kind(&()), Chain(&error));
                        match std::mem::replace(&mut broken, true) {
                            false => warn!(%kind, "a watch broke and starts again: {error}"),
                            true => debug!(%kind, "the watch is still broken: {error}"),
                        }
                        continue;
                    }
                };
                writer.apply_watcher_event(&event);
                let changed = match &event {
                    Event::Apply(object) | Event::Delete(object) => Changed::One(object),
                    Event::InitDone => Changed::Any,
                    // Listed, but not in the index before the list is complete.
                    Event::Init | Event::InitApply(_) => continue,
                };
                broken = false;
                count.send_modify(|count| *count += 1);
                tell(changed, &seen);
            }
        });
        Self { index, watch: Watch { changes, _task: AbortOnDropHandle::new(task) } }
    }

    /// Waits until all that is there has been seen once.
    pub async fn filled(&self) {
        self.watch.filled().await;
    }

    /// Whether all that is there has been seen at least once.
    pub fn is_filled(&self) -> bool {
        *self.watch.changes.borrow() > 0
    }

    /// Says when something has changed, or was seen for the first time.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.watch.changes.clone()
    }

    /// The object of this name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.index.get(&ObjectRef::new(name).within(namespace))
    }

    /// The object, where only one is watched.
    pub fn only(&self) -> Option<Arc<K>> {
        self.all().pop()
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.index.state()
    }

    /// All objects, for those who outlive this; they are up to date as long as this is there.
    pub fn index(&self) -> &Store<K> {
        &self.index
    }
}

/// Watches, their indexes and their bell. The watches end with it.
#[derive(Debug, Default)]
pub struct Observer {
    bell: Arc<Notify>,
    watches: Vec<Watch>,
}

impl Observer {
    /// One that watches nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches what `api` has; every change rings the bell.
    pub fn watch<K: Object>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K> {
        let bell = self.bell.clone();
        let watched = Watched::telling(api, config, move |_, _| bell.notify_one());
        self.watches.push(watched.watch);
        watched.index
    }

    /// Waits until all indexes have been filled once.
    pub async fn filled(&self) {
        for watch in &self.watches {
            watch.filled().await;
        }
    }

    /// Waits for the next change; several may be one.
    pub async fn changed(&self) {
        self.bell.notified().await;
    }

    /// The same, on and on. Whoever else waits for a change may miss what is told here.
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        futures::stream::unfold(self.bell.clone(), async |bell| {
            bell.notified().await;
            Some(((), bell))
        })
        .boxed()
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
            self.filled().await;
            let mut delay = FIRST_RETRY;
            loop {
                match reconcile().await {
                    Ok(()) => {
                        delay = FIRST_RETRY;
                        self.changed().await;
                    }
                    Err(error) => {
                        warn!(controller = name, retry_in = ?delay, "{}", Chain(&error));
                        let _ = tokio::time::timeout(delay, self.changed()).await;
                        delay = (delay * 2).min(LAST_RETRY);
                    }
                }
            }
        };
        shutdown.or(work).await;
    }
}

const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// A watch of whatever kind, which ends when this is dropped.
#[derive(Debug)]
struct Watch {
    /// How often something has changed; the first time is when all has been seen.
    changes: watch::Receiver<u64>,
    _task: AbortOnDropHandle<()>,
}

impl Watch {
    /// Unlike the index's own `wait_until_ready`, which wakes the last who asked, it wakes all.
    async fn filled(&self) {
        // It fails when the watch has ended, which it does with us.
        let _ = self.changes.clone().wait_for(|changes| *changes > 0).await;
    }
}

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
