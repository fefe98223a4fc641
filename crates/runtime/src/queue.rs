//! A work queue of keys for a reconciler. Keys are reconciled in order, many at a time, but never
//! the same key twice at a time. A key that is enqueued several times before its turn is reconciled
//! once; one that is enqueued while it is reconciled is reconciled again. Failures are retried with
//! backoff. Slow keys have a lane of their own, so that others don't wait for them.

mod timers;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    error::Error,
    fmt::Debug,
    time::Duration,
};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;
use tracing::warn;

use timers::Timers;

use crate::chain::Chain;

/// Short: most first failures are a right that another cluster is about to grant.
const FIRST_RETRY: Duration = Duration::from_millis(25);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// The sending end of a queue.
#[derive(Debug)]
pub struct Queue<K>(mpsc::UnboundedSender<K>);

/// The receiving end of a queue.
#[derive(Debug)]
pub struct Receiver<K>(mpsc::UnboundedReceiver<K>);

/// A new queue.
pub fn queue<K>() -> (Queue<K>, Receiver<K>) {
    let (queue, receiver) = mpsc::unbounded_channel();
    (Queue(queue), Receiver(receiver))
}

impl<K> Queue<K> {
    /// Enqueues a key.
    pub fn enqueue(&self, key: K) {
        // An error means that the reconciler has ended.
        let _ = self.0.send(key);
    }

    /// Whether the reconciler has ended.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// When to reconcile a key again after a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requeue {
    /// When it is enqueued.
    OnChange,
    /// After this time, if it is not enqueued before.
    After(Duration),
    /// With the backoff of a failure, but without a log line.
    Backoff,
}

/// Where a key waits for its turn. Keys in one lane never wait for keys in the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// For fast or important keys.
    Main,
    /// For keys that may take long. There may be many.
    Slow,
}

impl Lane {
    /// Keys that are reconciled at a time. A slow one mostly waits for a response.
    fn width(self) -> usize {
        match self {
            Self::Main => 32,
            Self::Slow => 128,
        }
    }
}

impl From<()> for Requeue {
    fn from((): ()) -> Self {
        Self::OnChange
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Calls `reconcile` for every key until all senders are gone.
pub async fn run<K, Reconciled, Then, E>(
    name: &str,
    receiver: Receiver<K>,
    reconcile: impl Fn(K) -> Reconciled,
) where
    K: Ord + Clone + Debug,
    Reconciled: Future<Output = Result<Then, E>>,
    Then: Into<Requeue>,
    E: Error,
{
    run_in_lanes(name, receiver, |_| Lane::Main, reconcile).await;
}

/// The same with a lane for slow keys.
pub async fn run_in_lanes<K, Reconciled, Then, E>(
    name: &str,
    receiver: Receiver<K>,
    lane: impl Fn(&K) -> Lane,
    reconcile: impl Fn(K) -> Reconciled,
) where
    K: Ord + Clone + Debug,
    Reconciled: Future<Output = Result<Then, E>>,
    Then: Into<Requeue>,
    E: Error,
{
    let Receiver(mut receiver) = receiver;
    let mut waiting: Waiting<K> = Waiting::default();
    let mut at_work: BTreeMap<K, Lane> = BTreeMap::new();
    let mut enqueued_meanwhile = BTreeSet::new();
    let mut failures = Failures::default();
    let mut timers = Timers::default();
    let mut work = FuturesUnordered::new();
    loop {
        let is_free =
            |lane: Lane| at_work.values().filter(|at| **at == lane).count() < lane.width();
        if let Some((key, lane)) = waiting.pop(is_free) {
            timers.stop(&key);
            at_work.insert(key.clone(), lane);
            let reconciling = reconcile(key.clone());
            work.push(async move { (key, reconciling.await) });
            continue;
        }
        let key = tokio::select! {
            key = receiver.recv() => match key {
                Some(key) => key,
                None => return,
            },
            key = timers.due() => key,
            Some((key, reconciled)) = work.next() => {
                at_work.remove(&key);
                match reconciled.map(Into::into) {
                    Ok(Requeue::Backoff) => timers.start(key.clone(), failures.add(&key)),
                    Ok(then) => {
                        failures.reset(&key);
                        if let Requeue::After(delay) = then {
                            timers.start(key.clone(), delay);
                        }
                    }
                    Err(error) => {
                        let delay = failures.add(&key);
                        warn!(queue = name, ?key, retry_in = ?delay, "failed: {}", Chain(&error));
                        timers.start(key.clone(), delay);
                    }
                }
                match enqueued_meanwhile.remove(&key) {
                    true => key,
                    false => continue,
                }
            }
        };
        if at_work.contains_key(&key) {
            enqueued_meanwhile.insert(key);
        } else {
            let lane = lane(&key);
            waiting.push(key, lane);
        }
    }
}

/// Consecutive failures of each key.
struct Failures<K>(BTreeMap<K, u32>);

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Failures<K> {
    /// Counts a failure, and returns the backoff.
    fn add(&mut self, key: &K) -> Duration {
        let count = self.0.entry(key.clone()).or_default();
        let delay = FIRST_RETRY.saturating_mul(1 << (*count).min(16)).min(LAST_RETRY);
        *count += 1;
        delay
    }

    fn reset(&mut self, key: &K) {
        self.0.remove(key);
    }
}

/// Keys in the order in which they were enqueued, by lane.
struct Waiting<K> {
    main: VecDeque<K>,
    slow: VecDeque<K>,
    known: BTreeSet<K>,
}

impl<K> Default for Waiting<K> {
    fn default() -> Self {
        Self { main: VecDeque::new(), slow: VecDeque::new(), known: BTreeSet::new() }
    }
}

impl<K: Ord + Clone> Waiting<K> {
    fn push(&mut self, key: K, lane: Lane) {
        if self.known.insert(key.clone()) {
            match lane {
                Lane::Main => self.main.push_back(key),
                Lane::Slow => self.slow.push_back(key),
            }
        }
    }

    /// The first key of a lane with free capacity.
    fn pop(&mut self, is_free: impl Fn(Lane) -> bool) -> Option<(K, Lane)> {
        let mut first = |lane: Lane, keys: &mut VecDeque<K>| {
            let key = if is_free(lane) { keys.pop_front() } else { None }?;
            self.known.remove(&key);
            Some((key, lane))
        };
        first(Lane::Main, &mut self.main).or_else(|| first(Lane::Slow, &mut self.slow))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        io,
    };

    use tokio::{sync::Semaphore, time::Instant};

    use super::*;

    /// Runs the queue until `end` has a permit.
    async fn run_until_ended<K, Reconciled, Then>(
        receiver: Receiver<K>,
        end: &Semaphore,
        reconcile: impl Fn(K) -> Reconciled,
    ) where
        K: Ord + Clone + Debug,
        Reconciled: Future<Output = Result<Then, io::Error>>,
        Then: Into<Requeue>,
    {
        tokio::select! {
            () = run("test", receiver, reconcile) => unreachable!("the queue is open"),
            ended = end.acquire() => drop(ended.expect("it is never closed")),
        }
    }

    #[tokio::test]
    async fn a_key_that_is_enqueued_while_it_is_reconciled_is_reconciled_again_afterwards() {
        let (queue, receiver) = queue();
        let (running, calls, end) = (Cell::new(false), Cell::new(0), Semaphore::new(0));
        queue.enqueue("a");
        run_until_ended(receiver, &end, async |key| {
            if key == "last" {
                let_others_work().await;
                end.add_permits(1);
                return Ok(());
            }
            assert!(!running.replace(true), "it is already being reconciled");
            match calls.replace(calls.get() + 1) {
                0 => (0..5).for_each(|_| queue.enqueue(key)),
                _ => queue.enqueue("last"),
            }
            let_others_work().await;
            running.set(false);
            Ok(())
        })
        .await;
        assert_eq!(calls.get(), 2);
    }

    async fn let_others_work() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_key_is_reconciled_again() {
        let (queue, receiver) = queue();
        let (calls, end) = (Cell::new(0), Semaphore::new(0));
        queue.enqueue(1);
        run_until_ended(receiver, &end, async |_| {
            calls.update(|calls| calls + 1);
            if calls.get() < 3 {
                return Err(io::Error::other("not yet"));
            }
            end.add_permits(1);
            Ok(())
        })
        .await;
        assert_eq!(calls.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_reconciled_again_after_the_requested_time() {
        let (queue, receiver) = queue();
        let (calls, end) = (Cell::new(0), Semaphore::new(0));
        let (start, pause) = (Instant::now(), Duration::from_secs(60));
        queue.enqueue(1);
        run_until_ended(receiver, &end, async |_| {
            calls.update(|calls| calls + 1);
            if calls.get() == 3 {
                end.add_permits(1);
            }
            Ok(Requeue::After(pause))
        })
        .await;
        assert!(start.elapsed() >= pause * 2);
    }

    #[tokio::test]
    async fn keys_are_reconciled_in_the_order_in_which_they_were_enqueued() {
        let (queue, receiver) = queue();
        let (order, end) = (RefCell::new(Vec::new()), Semaphore::new(0));
        let keys = [3, 1, 2, 0];
        keys.into_iter().for_each(|key| queue.enqueue(key));
        run_until_ended(receiver, &end, async |key| {
            order.borrow_mut().push(key);
            if order.borrow().len() == keys.len() {
                end.add_permits(1);
            }
            Ok(())
        })
        .await;
        assert_eq!(order.into_inner(), keys);
    }

    #[tokio::test]
    async fn keys_in_the_main_lane_do_not_wait_for_slow_keys() {
        let (queue, receiver) = queue();
        let (slow, end) = (Cell::new(0), Semaphore::new(0));
        let many = 3 * Lane::Slow.width();
        (0..many).for_each(|key| queue.enqueue(key));
        queue.enqueue(many);
        let lane = |key: &usize| if *key == many { Lane::Main } else { Lane::Slow };
        let work = run_in_lanes("test", receiver, lane, async |key| {
            if key == many {
                let_others_work().await;
                end.add_permits(1);
            } else {
                slow.update(|slow| slow + 1);
                std::future::pending::<()>().await;
            }
            Ok::<(), io::Error>(())
        });
        tokio::select! {
            () = work => unreachable!("the queue is open"),
            ended = end.acquire() => drop(ended.expect("it is never closed")),
        }
        assert_eq!(slow.get(), Lane::Slow.width());
    }

    #[test]
    fn the_backoff_doubles_up_to_a_maximum() {
        let mut failures = Failures::default();
        let first: Vec<Duration> = (0..3).map(|_| failures.add(&"a")).collect();
        assert_eq!(first, [FIRST_RETRY, FIRST_RETRY * 2, FIRST_RETRY * 4]);
        assert_eq!((0..20).map(|_| failures.add(&"a")).last(), Some(LAST_RETRY));
        assert_eq!(failures.add(&"b"), FIRST_RETRY);
        failures.reset(&"a");
        assert_eq!(failures.add(&"a"), FIRST_RETRY);
    }

    #[tokio::test]
    async fn the_queue_ends_with_its_last_sender() {
        let (queue, receiver) = queue::<u8>();
        drop(queue);
        run("test", receiver, async |_| Ok::<(), io::Error>(())).await;
    }
}
