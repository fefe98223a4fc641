//! One object, kept up to date by a watch.

use std::{fmt::Debug, sync::Arc};

use futures::StreamExt;
use kube::{
    Api, Resource,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tombolo_runtime::shutdown::Shutdown;
use tracing::warn;

/// The object as it is now.
pub(crate) struct Kept<K>(watch::Receiver<State<K>>);

#[derive(Clone)]
enum State<K> {
    Unknown,
    Known(Option<Arc<K>>),
}

impl<K> Kept<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// Watches from now on, until the end is asked for.
    pub fn start(api: Api<K>, name: &'static str, shutdown: &Shutdown) -> Self {
        let (sender, receiver) = watch::channel(State::Unknown);
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            let mut changes = std::pin::pin!(watch_object(api, name).default_backoff());
            while let Some(Some(change)) = shutdown.or(changes.next()).await {
                match change {
                    Ok(object) => {
                        sender.send_replace(State::Known(object.map(Arc::new)));
                    }
                    Err(error) => warn!(name, "watch: {error}"),
                }
            }
        });
        Self(receiver)
    }

    /// Waits until it is known whether the object is there.
    pub async fn known(&self) {
        let mut changes = self.0.clone();
        // When nobody watches any more, the end has come.
        let _ = changes.wait_for(|state| matches!(state, State::Known(_))).await;
    }

    /// The object, if it is there.
    pub fn get(&self) -> Option<Arc<K>> {
        match &*self.0.borrow() {
            State::Known(object) => object.clone(),
            State::Unknown => None,
        }
    }

    /// Says when it has changed.
    pub fn changes(&self) -> watch::Receiver<impl Sized + use<K>> {
        self.0.clone()
    }
}
