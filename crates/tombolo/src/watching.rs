//! Waiting for what others do: objects kept up to date by watches, and a question that is asked again
//! whenever one of them has changed.

use std::time::Duration;

use anyhow::Result;
use kube::Api;
use kube::runtime::{reflector::Store, watcher};
use tombolo_runtime::observe::{Object, Observer};

pub use tombolo_core::condition::{find as condition, is_true};

/// Watches that run as long as somebody waits.
#[derive(Default)]
pub struct Watches(Observer);

impl Watches {
    /// From here on the objects of this kind are kept.
    pub fn keep<K: Object>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K> {
        self.0.watch(api, config)
    }

    /// Asks until there is an answer; None when patience has run out.
    pub async fn until<T>(
        self,
        patience: Duration,
        mut ask: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        let asking = async {
            // Before that, what is missing may just not have been read yet.
            self.0.filled().await;
            loop {
                match ask() {
                    Some(answer) => return answer,
                    None => self.0.changed().await,
                }
            }
        };
        Ok(tokio::time::timeout(patience, asking).await.ok())
    }
}
