//! What is in a cluster: watches that keep objects at hand, and tell when they have changed. A
//! [`Watched`] for those that look at one kind, [`Watches`] to share them, an [`Observer`] for those
//! that decide by all they see, whatever it was that changed.

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

/// Watches and their bell. Those that are not shared end with it.
#[derive(Debug, Default)]
pub struct Observer {
    bell: Arc<Notify>,
    watches: Vec<Held>,
    /// When to look again though nothing has changed.
    again: Option<Duration>,
}

impl Observer {
    /// One that watches nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches what `api` has; every change rings the bell.
    pub fn watch<K: Object>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K> {
        self.share(Arc::new(Watched::new(api, config)))
    }

    /// Every change of what somebody watches rings the bell.
    pub fn share<K: Object>(&mut self, watched: Arc<Watched<K>>) -> Store<K> {
        let bell = Arc::downgrade(&self.bell);
        watched.tell_while(move |_, _| match bell.upgrade() {
            Some(bell) => {
                bell.notify_one();
                true
            }
            None => false,
        });
        let index = watched.index().clone();
        self.watches.push(Held { changes: watched.changes(), _watched: watched });
        index
    }

    /// Time alone changes something, too: looks again after so long.
    pub fn look_again_after(&mut self, period: Duration) {
        self.again = Some(period);
    }

    /// Waits until all indexes have been filled once.
    pub async fn filled(&self) {
        for watch in &self.watches {
            watched::filled(&watch.changes).await;
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
                        match self.again {
                            Some(period) => drop(timeout(period, self.changed()).await),
                            None => self.changed().await,
                        }
                    }
                    Err(error) => {
                        warn!(controller = name, retry_in = ?delay, "{}", Chain(&error));
                        // However much changes meanwhile, it is not tried all the time.
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

/// A watch of whatever kind, which this keeps.
#[derive(Debug)]
struct Held {
    changes: watch::Receiver<u64>,
    _watched: Arc<dyn Any + Send + Sync>,
}
