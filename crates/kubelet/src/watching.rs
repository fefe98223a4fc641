//! A watch and what it has seen.

use std::{
    fmt::Debug,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
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
use tokio::task::AbortHandle;
use tombolo_runtime::controller::Chain;
use tracing::debug;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);

/// What has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Changed<'a, K> {
    /// One object.
    One(&'a K),
    /// Any of them, since nobody looked for a while.
    Any,
}

/// Objects as they are, kept up to date until this is dropped.
pub(crate) struct Watched<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash,
{
    store: Store<K>,
    complete: Arc<AtomicBool>,
    task: AbortHandle,
}

impl<K> Watched<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Watches, and tells of each change once it can be looked at.
    pub(crate) fn new(
        api: Api<K>,
        config: watcher::Config,
        mut changed: impl FnMut(Changed<'_, K>) + Send + 'static,
    ) -> Self {
        let (store, mut writer) = reflector::store();
        let complete = Arc::new(AtomicBool::new(false));
        let is_complete = complete.clone();
        let task = tokio::spawn(async move {
            let events = watcher::watcher(api, config)
                .modify(|object| object.managed_fields_mut().clear())
                .backoff(Retry(FIRST_RETRY));
            let mut events = std::pin::pin!(events);
            while let Some(event) = events.next().await {
                match event {
                    Ok(event) => {
                        writer.apply_watcher_event(&event);
                        match &event {
                            Event::Apply(object) | Event::Delete(object) => {
                                changed(Changed::One(object));
                            }
                            Event::InitDone => {
                                is_complete.store(true, Ordering::Release);
                                changed(Changed::Any);
                            }
                            Event::Init | Event::InitApply(_) => {}
                        }
                    }
                    Err(error) => {
                        debug!(kind = %K::kind(&()), "the watch broke: {}", Chain(&error));
                    }
                }
            }
        });
        Self { store, complete, task: task.abort_handle() }
    }

    /// Whether all that is there has been seen at least once.
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    /// The object of this name.
    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name).within(namespace))
    }

    /// The cluster-wide object of this name.
    pub(crate) fn get_global(&self, name: &str) -> Option<Arc<K>> {
        self.store.get(&ObjectRef::new(name))
    }

    /// All objects.
    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.store.state()
    }
}

impl<K> Drop for Watched<K>
where
    K: Resource + 'static,
    K::DynamicType: Eq + Hash,
{
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A watch that broke is started again soon: the other end may be back at any time.
struct Retry(Duration);

impl Iterator for Retry {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let next = (self.0 * 2).min(LAST_RETRY);
        Some(std::mem::replace(&mut self.0, next))
    }
}

impl Backoff for Retry {
    fn reset(&mut self) {
        self.0 = FIRST_RETRY;
    }
}
