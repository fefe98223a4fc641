//! Waiting for a state of the cluster: watches cache objects, and a check runs again after every
//! change.

use std::time::Duration;

use anyhow::Result;
use kube::Api;
use kube::runtime::{reflector::Store, watcher};
use tombolo_runtime::observe::{Object, Observer};

pub use tombolo_core::condition::{find as condition, is_true};

/// Watches that run until the wait ends.
#[derive(Default)]
pub struct Watches(Observer);

impl Watches {
    /// Starts a watch and returns its cache.
    pub fn keep<K: Object>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K> {
        self.0.watch(api, config)
    }

    /// Runs `check` after every change until it returns a value; None on timeout.
    pub async fn until<T>(
        self,
        timeout: Duration,
        mut check: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        let checks = async {
            // Before the first list, an object may be missing only from the cache.
            self.0.synced().await;
            loop {
                match check() {
                    Some(value) => return value,
                    None => self.0.changed().await,
                }
            }
        };
        Ok(tokio::time::timeout(timeout, checks).await.ok())
    }
}
