//! Work by key: each key by one worker at a time, again when it was asked for meanwhile, and later
//! and later when it fails.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    error::Error,
    fmt::Debug,
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;
use tombolo_runtime::{controller::Chain, shutdown::Shutdown};
use tracing::warn;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Where to ask for work.
#[derive(Clone, Debug)]
pub(crate) struct Queue<K>(mpsc::UnboundedSender<K>);

/// Where work was asked for.
pub(crate) type Asked<K> = mpsc::UnboundedReceiver<K>;

/// A queue, and its other end.
pub(crate) fn queue<K>() -> (Queue<K>, Asked<K>) {
    let (queue, asked) = mpsc::unbounded_channel();
    (Queue(queue), asked)
}

impl<K> Queue<K> {
    /// Asks for work on this key.
    pub(crate) fn push(&self, key: K) {
        // Nobody is left to work when the node is gone.
        let _ = self.0.send(key);
    }
}

/// Works until the end is asked for.
pub(crate) async fn work<K, E, Working>(
    name: &str,
    mut asked: Asked<K>,
    at_a_time: usize,
    shutdown: &Shutdown,
    work: impl Fn(K) -> Working,
) where
    K: Ord + Clone + Debug,
    E: Error,
    Working: Future<Output = Result<(), E>>,
{
    let mut waiting: Waiting<K> = Waiting::default();
    let mut busy = BTreeSet::new();
    let mut again = BTreeSet::new();
    let mut failures: BTreeMap<K, u32> = BTreeMap::new();
    let mut working = FuturesUnordered::new();
    let mut later = FuturesUnordered::new();
    loop {
        while working.len() < at_a_time
            && let Some(key) = waiting.pop()
        {
            busy.insert(key.clone());
            working.push(work(key.clone()).map(|done| (key, done)));
        }
        let key = tokio::select! {
            () = shutdown.asked() => return,
            Some(key) = asked.recv() => key,
            Some(key) = later.next() => key,
            Some((key, done)) = working.next() => {
                busy.remove(&key);
                match done {
                    Ok(()) => drop(failures.remove(&key)),
                    Err(error) => {
                        let count = failures.entry(key.clone()).or_default();
                        let delay = FIRST_RETRY.saturating_mul(1 << (*count).min(10)).min(LAST_RETRY);
                        *count += 1;
                        warn!(%name, ?key, retry_in = ?delay, "{}", Chain(&error));
                        let key = key.clone();
                        later.push(tokio::time::sleep(delay).map(|()| key));
                    }
                }
                if !again.remove(&key) {
                    continue;
                }
                key
            }
        };
        if busy.contains(&key) {
            again.insert(key);
        } else {
            waiting.push(key);
        }
    }
}

/// Keys in the order in which they were first asked for.
#[derive(Debug)]
struct Waiting<K> {
    order: VecDeque<K>,
    known: BTreeSet<K>,
}

impl<K> Default for Waiting<K> {
    fn default() -> Self {
        Self { order: VecDeque::new(), known: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Waiting<K> {
    fn push(&mut self, key: K) {
        if self.known.insert(key.clone()) {
            self.order.push_back(key);
        }
    }

    fn pop(&mut self) -> Option<K> {
        let key = self.order.pop_front()?;
        self.known.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{
            Arc, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
    };

    use super::*;

    #[tokio::test]
    async fn a_key_is_worked_on_by_one_at_a_time_and_again_if_asked_meanwhile() {
        let (queue, asked) = queue();
        let shutdown = Shutdown::new();
        let (running, runs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..10 {
            queue.push("a");
        }
        let end = shutdown.clone();
        work("test", asked, 4, &shutdown, |key| {
            let (running, runs, queue, end) =
                (running.clone(), runs.clone(), queue.clone(), end.clone());
            async move {
                assert_eq!(running.fetch_add(1, Ordering::SeqCst), 0);
                queue.push(key);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                if runs.fetch_add(1, Ordering::SeqCst) == 5 {
                    end.ask();
                }
                Ok::<(), io::Error>(())
            }
        })
        .await;
        assert_eq!(runs.load(Ordering::SeqCst), 6);
    }

    #[tokio::test]
    async fn what_fails_is_tried_again() {
        let (queue, asked) = queue();
        let shutdown = Shutdown::new();
        let tries = Arc::new(Mutex::new(0));
        queue.push(1);
        work("test", asked, 1, &shutdown, |_| {
            let (tries, shutdown) = (tries.clone(), shutdown.clone());
            async move {
                let mut tries = tries.lock().unwrap();
                *tries += 1;
                if *tries == 3 {
                    shutdown.ask();
                    return Ok(());
                }
                Err(io::Error::other("not yet"))
            }
        })
        .await;
        assert_eq!(*tries.lock().unwrap(), 3);
    }
}
