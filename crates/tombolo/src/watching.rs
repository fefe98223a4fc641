//! Waiting for what others do: objects kept up to date by watches, and a question that is asked again
//! whenever one of them has changed.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::stream::{self, BoxStream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Watches that run as long as somebody waits.
#[derive(Default)]
pub struct Watches {
    /// Each says its number when something has changed.
    changes: Vec<BoxStream<'static, usize>>,
}

impl Watches {
    /// From here on the objects of this kind are kept.
    pub fn keep<K>(&mut self, api: Api<K>, config: watcher::Config) -> Store<K>
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
        K::DynamicType: Default + Eq + Hash + Clone,
    {
        let (store, writer) = reflector::store();
        let stream = watcher(api, config).default_backoff().reflect(writer);
        let number = self.changes.len();
        let changes = stream.filter_map(move |event| async move {
            match event {
                // The first list is not complete yet.
                Ok(watcher::Event::Init | watcher::Event::InitApply(_)) | Err(_) => None,
                Ok(_) => Some(number),
            }
        });
        self.changes.push(changes.boxed());
        store
    }

    /// Asks until there is an answer; None when patience has run out.
    pub async fn until<T>(
        self,
        patience: Duration,
        mut ask: impl FnMut() -> Option<T>,
    ) -> Result<Option<T>> {
        let count = self.changes.len();
        let mut changes = stream::select_all(self.changes);
        let mut complete = BTreeSet::new();
        let asking = async {
            while let Some(number) = changes.next().await {
                complete.insert(number);
                // Before that, what is missing may just not have been read yet.
                if complete.len() == count
                    && let Some(answer) = ask()
                {
                    return Ok(answer);
                }
            }
            bail!("the API server ended all watches")
        };
        tokio::time::timeout(patience, asking).await.ok().transpose()
    }
}

/// A condition by its type.
pub fn condition<'a>(all: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    all.iter().find(|condition| condition.type_ == kind)
}

pub fn is_true(all: &[Condition], kind: &str) -> bool {
    condition(all, kind).is_some_and(|condition| condition.status == "True")
}
