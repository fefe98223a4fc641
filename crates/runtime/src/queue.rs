//! Things to look at, by key: each once at a time however often it was asked for, many side by
//! side, those that failed again after a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt::Debug,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;
use tracing::warn;

use crate::controller::Chain;

/// Keys that are to be looked at.
pub type Keys<K> = mpsc::UnboundedSender<K>;

const AT_A_TIME: usize = 32;
const FIRST_RETRY: Duration = Duration::from_millis(200);
const LAST_RETRY: Duration = Duration::from_secs(10);

/// Calls `look` for every key that comes, until no more can come. Dropped, it stops at once.
pub async fn run<K, Looked, E>(
    name: &'static str,
    mut keys: mpsc::UnboundedReceiver<K>,
    look: impl Fn(K) -> Looked,
) where
    K: Ord + Clone + Debug,
    Looked: Future<Output = Result<(), E>>,
    E: Error,
{
    let mut waiting = BTreeSet::new();
    let mut at_work = BTreeSet::new();
    let mut failures: BTreeMap<K, u32> = BTreeMap::new();
    let mut work = FuturesUnordered::new();
    let mut retries = FuturesUnordered::new();
    loop {
        tokio::select! {
            key = keys.recv() => match key {
                Some(key) => {
                    waiting.insert(key);
                    while let Ok(key) = keys.try_recv() {
                        waiting.insert(key);
                    }
                }
                None => return,
            },
            Some((key, result)) = work.next() => {
                at_work.remove(&key);
                match result {
                    Ok(()) => {
                        failures.remove(&key);
                    }
                    Err(error) => {
                        let count = failures.entry(key.clone()).or_default();
                        let delay = FIRST_RETRY.saturating_mul(1 << (*count).min(16)).min(LAST_RETRY);
                        *count += 1;
                        warn!(queue = name, ?key, retry_in = ?delay, "{}", Chain(&error));
                        retries.push(async move {
                            tokio::time::sleep(delay).await;
                            key
                        });
                    }
                }
            }
            Some(key) = retries.next() => {
                // Looked at successfully meanwhile, it needs no other look.
                if failures.contains_key(&key) {
                    waiting.insert(key);
                }
            }
        }
        let free = AT_A_TIME.saturating_sub(at_work.len());
        let next: Vec<K> =
            waiting.iter().filter(|key| !at_work.contains(*key)).take(free).cloned().collect();
        for key in next {
            waiting.remove(&key);
            at_work.insert(key.clone());
            let looking = look(key.clone());
            work.push(async move { (key, looking.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tokio::sync::Semaphore;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("not yet")]
    struct NotYet;

    #[tokio::test]
    async fn a_key_is_looked_at_once_at_a_time_and_again_if_it_was_asked_for_meanwhile() {
        let (keys, queue) = mpsc::unbounded_channel();
        let (calls, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let (called, goes) = (calls.clone(), gate.clone());
        let running = tokio::spawn(run("test", queue, move |_: &str| {
            let (calls, gate) = (called.clone(), goes.clone());
            async move {
                calls.fetch_add(1, Ordering::SeqCst);
                gate.acquire().await.expect("it is never closed").forget();
                Ok::<_, NotYet>(())
            }
        }));
        keys.send("a").unwrap();
        while calls.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        for _ in 0..5 {
            keys.send("a").unwrap();
        }
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        gate.add_permits(9);
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        drop(keys);
        running.await.unwrap();
    }

    #[tokio::test]
    async fn what_failed_is_looked_at_again() {
        let (keys, queue) = mpsc::unbounded_channel();
        let calls = Arc::new(AtomicUsize::new(0));
        let called = calls.clone();
        let (done, wait) = tokio::sync::oneshot::channel();
        let done = std::sync::Mutex::new(Some(done));
        let running = run("test", queue, move |_: u8| {
            let fails = called.fetch_add(1, Ordering::SeqCst) == 0;
            if !fails && let Some(done) = done.lock().unwrap().take() {
                let _ = done.send(());
            }
            async move { if fails { Err(NotYet) } else { Ok(()) } }
        });
        keys.send(1).unwrap();
        tokio::select! {
            () = running => unreachable!("keys can come still"),
            result = wait => result.unwrap(),
        }
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }
}
