//! Times of events, from watches that start before them, on one clock.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, oneshot};
use tombolo_runtime::task::Tasks;

const LIMIT: Duration = Duration::from_secs(120);

/// Between two attempts to watch a kind that is not served yet.
const AGAIN: Duration = Duration::from_millis(10);

/// The name of an event.
pub type Step = &'static str;

/// Watches and their recorded events. They stop on drop.
pub struct Moments {
    seen: mpsc::UnboundedReceiver<(Step, Instant)>,
    see: mpsc::UnboundedSender<(Step, Instant)>,
    complete: Vec<oneshot::Receiver<()>>,
    watches: Tasks,
}

impl Moments {
    pub fn new() -> Self {
        let (see, seen) = mpsc::unbounded_channel();
        Self { seen, see, complete: Vec::new(), watches: Tasks::new() }
    }

    /// Watches objects; `steps` returns the events that an object implies.
    pub fn watch<K>(&mut self, api: Api<K>, mut steps: impl FnMut(&K) -> Vec<Step> + Send + 'static)
    where
        K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let (complete, is_complete) = oneshot::channel();
        self.complete.push(is_complete);
        let see = self.see.clone();
        self.watches.spawn("watch", async move {
            let mut complete = Some(complete);
            let mut events = watcher(api, watcher::Config::default()).boxed();
            while let Some(event) = events.next().await {
                let now = Instant::now();
                match event {
                    Ok(Event::Apply(object) | Event::InitApply(object)) => {
                        for step in steps(&object) {
                            let _ = see.send((step, now));
                        }
                    }
                    Ok(Event::InitDone) => {
                        if let Some(complete) = complete.take() {
                            let _ = complete.send(());
                        }
                    }
                    Ok(Event::Init | Event::Delete(_)) => {}
                    Err(_) => tokio::time::sleep(AGAIN).await,
                }
            }
        });
    }

    /// Waits until all watches have started: from then on no event is missed.
    pub async fn begun(&mut self) -> Result<()> {
        for complete in self.complete.drain(..) {
            let begun = tokio::time::timeout(LIMIT, complete).await;
            begun.context("a watch does not start")?.context("a watch has ended")?;
        }
        Ok(())
    }

    /// The time of the first occurrence of each event.
    pub async fn of(&mut self, steps: &[Step]) -> Result<BTreeMap<Step, Instant>> {
        let mut first = BTreeMap::new();
        while let Some(missing) = steps.iter().find(|step| !first.contains_key(*step)) {
            match tokio::time::timeout(LIMIT, self.seen.recv()).await {
                Ok(Some((step, at))) => {
                    first.entry(step).or_insert(at);
                }
                _ => bail!("not within {LIMIT:?}: {missing}"),
            }
        }
        Ok(first)
    }
}
