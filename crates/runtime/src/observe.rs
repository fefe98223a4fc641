//! Watches that keep objects in memory and notify of changes: a [`Watched`] for one kind,
//! [`Watches`] shared by several controllers, an [`Observer`] for a controller that reconciles all
//! its objects at every change.

mod change;
mod index_by;
mod watched;
mod watches;

use std::{any::Any, error::Error, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use kube::{
    Api,
    runtime::{reflector::Store, watcher},
};
use tokio::{
    sync::{Notify, watch},
    time::timeout,
};
use tracing::warn;

use crate::{chain::Chain, shutdown::Shutdown};

pub use change::Change;
pub use index_by::IndexBy;
pub use watched::{Changed, Key, Object, Watched, key, named};
pub use watches::Watches;

/// Watches with a common notification. Watches that are not shared end with it.
#[derive(Debug, Default)]
pub struct Observer {
    notify: Arc<Notify>,
    watches: Vec<Held>,
    /// Time until the next reconciliation without a change.
    period: Option<Duration>,
}

impl Observer {
    /// No watches yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches the objects of `api`. Every change notifies.
    pub fn watch<K: Object>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K> {
        self.share(Arc::new(Watched::new(api, config)))
    }

    /// Adds a shared watch. Every change notifies.
    pub fn share<K: Object>(&mut self, watched: Arc<Watched<K>>) -> Store<K> {
        let notify = Arc::downgrade(&self.notify);
        watched.notify_while(move |_, _| match notify.upgrade() {
            Some(notify) => {
                notify.notify_one();
                true
            }
            None => false,
        });
        let index = watched.index().clone();
        self.watches.push(Held { changes: watched.changes(), _watched: watched });
        index
    }

    /// Reconciles after this time too, if nothing changes.
    pub fn reconcile_every(&mut self, period: Duration) {
        self.period = Some(period);
    }

    /// Waits until all watches are synced.
    pub async fn synced(&self) {
        for watch in &self.watches {
            watched::synced(&watch.changes).await;
        }
    }

    /// Waits for the next change. Several changes may notify once.
    pub async fn changed(&self) {
        self.notify.notified().await;
    }

    /// The same as a stream. A notification that it yields does not wake [`Self::changed`].
    pub fn changes(&self) -> impl Stream<Item = ()> + Send + use<> {
        futures::stream::unfold(self.notify.clone(), async |notify| {
            notify.notified().await;
            Some(((), notify))
        })
        .boxed()
    }

    /// Calls `reconcile` once all watches are synced, and then after every change, until shutdown.
    /// Failures are retried with backoff.
    pub async fn run<Reconciled, E: Error>(
        self,
        name: &'static str,
        shutdown: &Shutdown,
        mut reconcile: impl FnMut() -> Reconciled,
    ) where
        Reconciled: Future<Output = Result<(), E>>,
    {
        let work = async {
            self.synced().await;
            let mut delay = FIRST_RETRY;
            loop {
                match reconcile().await {
                    Ok(()) => {
                        delay = FIRST_RETRY;
                        match self.period {
                            Some(period) => drop(timeout(period, self.changed()).await),
                            None => self.changed().await,
                        }
                    }
                    Err(error) => {
                        warn!(controller = name, retry_in = ?delay, "failed: {}", Chain(&error));
                        // Frequent changes must not cause a retry each.
                        tokio::time::sleep(FIRST_RETRY).await;
                        let _ = timeout(delay - FIRST_RETRY, self.changed()).await;
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

/// A watch of any kind.
#[derive(Debug)]
struct Held {
    changes: watch::Receiver<u64>,
    _watched: Arc<dyn Any + Send + Sync>,
}
