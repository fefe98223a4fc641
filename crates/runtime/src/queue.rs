//! Things to look at, by key: in the order in which they were asked for, each once at a time however
//! often it was asked for, many side by side, those that failed again after a while. What may take long
//! has a lane of its own, so that nobody else waits for it.

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

/// Short: what fails first is most often what another cluster is about to allow.
const FIRST_RETRY: Duration = Duration::from_millis(25);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// Where to ask for a look.
#[derive(Debug)]
pub struct Queue<K>(mpsc::UnboundedSender<K>);

/// What was asked for.
#[derive(Debug)]
pub struct Asked<K>(mpsc::UnboundedReceiver<K>);

/// A queue, and its other end.
pub fn queue<K>() -> (Queue<K>, Asked<K>) {
    let (queue, asked) = mpsc::unbounded_channel();
    (Queue(queue), Asked(asked))
}

impl<K> Queue<K> {
    /// Asks for a look at what has this key.
    pub fn push(&self, key: K) {
        // When nobody looks any more, the end has come.
        let _ = self.0.send(key);
    }

    /// Whether nobody looks any more.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// When to look again at what was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// When somebody asks.
    WhenAsked,
    /// After a while, if nobody asks before.
    After(Duration),
    /// Soon, as what failed: later and later, the more often in a row. Nothing is logged.
    Soon,
}

/// Where a key waits for its turn. However many take long in one lane, nobody in the other waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// For what is done soon, and for what counts.
    Main,
    /// For what may take long, of which there may be much.
    Slow,
}

impl Lane {
    /// How many are looked at there at a time. One that takes long does next to nothing meanwhile.
    fn width(self) -> usize {
        match self {
            Self::Main => 32,
            Self::Slow => 128,
        }
    }
}

impl From<()> for Again {
    fn from((): ()) -> Self {
        Self::WhenAsked
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Calls `look` for every key that comes, until no more can come. Dropped, it stops at once.
pub async fn run<K, Looked, Then, E>(name: &str, asked: Asked<K>, look: impl Fn(K) -> Looked)
where
    K: Ord + Clone + Debug,
    Looked: Future<Output = Result<Then, E>>,
    Then: Into<Again>,
    E: Error,
{
    run_in_lanes(name, asked, |_| Lane::Main, look).await;
}

/// The same, where some keys may take long.
pub async fn run_in_lanes<K, Looked, Then, E>(
    name: &str,
    asked: Asked<K>,
    lane: impl Fn(&K) -> Lane,
    look: impl Fn(K) -> Looked,
) where
    K: Ord + Clone + Debug,
    Looked: Future<Output = Result<Then, E>>,
    Then: Into<Again>,
    E: Error,
{
    let Asked(mut asked) = asked;
    let mut waiting: Waiting<K> = Waiting::default();
    let mut at_work: BTreeMap<K, Lane> = BTreeMap::new();
    let mut again = BTreeSet::new();
    let mut failures = Failures::default();
    let mut timers = Timers::default();
    let mut work = FuturesUnordered::new();
    loop {
        let is_free =
            |lane: Lane| at_work.values().filter(|at| **at == lane).count() < lane.width();
        if let Some((key, lane)) = waiting.pop(is_free) {
            timers.stop(&key);
            at_work.insert(key.clone(), lane);
            let looking = look(key.clone());
            work.push(async move { (key, looking.await) });
            continue;
        }
        let key = tokio::select! {
            key = asked.recv() => match key {
                Some(key) => key,
                None => return,
            },
            key = timers.due() => key,
            Some((key, looked)) = work.next() => {
                at_work.remove(&key);
                match looked.map(Into::into) {
                    Ok(Again::Soon) => timers.start(key.clone(), failures.one_more(&key)),
                    Ok(then) => {
                        failures.none(&key);
                        if let Again::After(delay) = then {
                            timers.start(key.clone(), delay);
                        }
                    }
                    Err(error) => {
                        let delay = failures.one_more(&key);
                        warn!(queue = name, ?key, retry_in = ?delay, "{}", Chain(&error));
                        timers.start(key.clone(), delay);
                    }
                }
                match again.remove(&key) {
                    true => key,
                    false => continue,
                }
            }
        };
        if at_work.contains_key(&key) {
            again.insert(key);
        } else {
            let lane = lane(&key);
            waiting.push(key, lane);
        }
    }
}

/// How often in a row each key has failed.
struct Failures<K>(BTreeMap<K, u32>);

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Failures<K> {
    /// After how long to look again.
    fn one_more(&mut self, key: &K) -> Duration {
        let count = self.0.entry(key.clone()).or_default();
        let delay = FIRST_RETRY.saturating_mul(1 << (*count).min(16)).min(LAST_RETRY);
        *count += 1;
        delay
    }

    fn none(&mut self, key: &K) {
        self.0.remove(key);
    }
}

/// Keys in the order in which they were first asked for, by lane.
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

    /// The first of a lane that is free.
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

    /// Runs the queue until the look that ends it has been taken.
    async fn run_until_ended<K, Looked, Then>(
        asked: Asked<K>,
        end: &Semaphore,
        look: impl Fn(K) -> Looked,
    ) where
        K: Ord + Clone + Debug,
        Looked: Future<Output = Result<Then, io::Error>>,
        Then: Into<Again>,
    {
        tokio::select! {
            () = run("test", asked, look) => unreachable!("keys can come still"),
            ended = end.acquire() => drop(ended.expect("it is never closed")),
        }
    }

    #[tokio::test]
    async fn a_key_is_looked_at_once_at_a_time_and_again_if_it_was_asked_for_meanwhile() {
        let (queue, asked) = queue();
        let (running, looks, end) = (Cell::new(false), Cell::new(0), Semaphore::new(0));
        queue.push("a");
        run_until_ended(asked, &end, async |key| {
            if key == "last" {
                let_others_work().await;
                end.add_permits(1);
                return Ok(());
            }
            assert!(!running.replace(true), "it is looked at already");
            match looks.replace(looks.get() + 1) {
                0 => (0..5).for_each(|_| queue.push(key)),
                _ => queue.push("last"),
            }
            let_others_work().await;
            running.set(false);
            Ok(())
        })
        .await;
        assert_eq!(looks.get(), 2);
    }

    async fn let_others_work() {
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_is_looked_at_again() {
        let (queue, asked) = queue();
        let (looks, end) = (Cell::new(0), Semaphore::new(0));
        queue.push(1);
        run_until_ended(asked, &end, async |_| {
            looks.update(|looks| looks + 1);
            if looks.get() < 3 {
                return Err(io::Error::other("not yet"));
            }
            end.add_permits(1);
            Ok(())
        })
        .await;
        assert_eq!(looks.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_wants_to_be_looked_at_again_is_after_a_while() {
        let (queue, asked) = queue();
        let (looks, end) = (Cell::new(0), Semaphore::new(0));
        let (start, pause) = (Instant::now(), Duration::from_secs(60));
        queue.push(1);
        run_until_ended(asked, &end, async |_| {
            looks.update(|looks| looks + 1);
            if looks.get() == 3 {
                end.add_permits(1);
            }
            Ok(Again::After(pause))
        })
        .await;
        assert!(start.elapsed() >= pause * 2);
    }

    #[tokio::test]
    async fn keys_are_looked_at_in_the_order_in_which_they_came() {
        let (queue, asked) = queue();
        let (order, end) = (RefCell::new(Vec::new()), Semaphore::new(0));
        let keys = [3, 1, 2, 0];
        keys.into_iter().for_each(|key| queue.push(key));
        run_until_ended(asked, &end, async |key| {
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
    async fn however_many_take_long_in_one_lane_nobody_in_the_other_waits() {
        let (queue, asked) = queue();
        let (slow, end) = (Cell::new(0), Semaphore::new(0));
        let many = 3 * Lane::Slow.width();
        (0..many).for_each(|key| queue.push(key));
        queue.push(many);
        let lane = |key: &usize| if *key == many { Lane::Main } else { Lane::Slow };
        let work = run_in_lanes("test", asked, lane, async |key| {
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
            () = work => unreachable!("keys can come still"),
            ended = end.acquire() => drop(ended.expect("it is never closed")),
        }
        assert_eq!(slow.get(), Lane::Slow.width());
    }

    #[test]
    fn what_fails_on_and_on_is_looked_at_later_and_later() {
        let mut failures = Failures::default();
        let first: Vec<Duration> = (0..3).map(|_| failures.one_more(&"a")).collect();
        assert_eq!(first, [FIRST_RETRY, FIRST_RETRY * 2, FIRST_RETRY * 4]);
        assert_eq!((0..20).map(|_| failures.one_more(&"a")).last(), Some(LAST_RETRY));
        assert_eq!(failures.one_more(&"b"), FIRST_RETRY);
        failures.none(&"a");
        assert_eq!(failures.one_more(&"a"), FIRST_RETRY);
    }

    #[tokio::test]
    async fn it_ends_when_no_more_can_come() {
        let (queue, asked) = queue::<u8>();
        drop(queue);
        run("test", asked, async |_| Ok::<(), io::Error>(())).await;
    }
}
