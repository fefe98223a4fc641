//! Timers of keys: one for each.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::{Instant, sleep_until};

pub(super) struct Timers<K> {
    by_time: BTreeSet<(Instant, K)>,
    times: BTreeMap<K, Instant>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Self { by_time: BTreeSet::new(), times: BTreeMap::new() }
    }
}

impl<K: Ord + Clone> Timers<K> {
    /// Starts the timer of a key, in the place of a running one.
    pub fn start(&mut self, key: K, delay: Duration) {
        self.stop(&key);
        let time = Instant::now() + delay;
        self.times.insert(key.clone(), time);
        self.by_time.insert((time, key));
    }

    pub fn stop(&mut self, key: &K) {
        if let Some((key, time)) = self.times.remove_entry(key) {
            self.by_time.remove(&(time, key));
        }
    }

    /// Waits for the first timer; forever, if there is none.
    pub async fn due(&mut self) -> K {
        let Some((time, _)) = self.by_time.first() else { return std::future::pending().await };
        sleep_until(*time).await;
        match self.by_time.pop_first() {
            Some((_, key)) => {
                self.times.remove(&key);
                key
            }
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_key_has_one_timer_the_one_started_last() {
        let mut timers = Timers::default();
        timers.start("a", Duration::ZERO);
        timers.start("a", Duration::from_secs(2));
        timers.start("b", Duration::from_secs(1));
        timers.start("c", Duration::ZERO);
        timers.stop(&"c");
        assert_eq!(timers.due().await, "b");
        assert_eq!(timers.due().await, "a");
        assert_eq!(timers.due().now_or_never(), None);
    }
}
