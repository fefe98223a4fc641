//! A token bucket per client, of which only the time is stored at which it is full again. The
//! number of buckets is limited. When all are in use, a new client takes over the fullest bucket as
//! it is, instead of a full one: so nobody gets more by using many keys, and a client whose bucket
//! was taken over finds one that is no fuller than its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Size and refill rate of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Requests allowed at once.
    pub burst: u32,
    /// Then one more per interval.
    pub every: Duration,
}

/// Token buckets of many clients. All times are relative to the same start.
#[derive(Clone, Debug)]
pub struct RateLimiter<K> {
    rate: Rate,
    max_keys: usize,
    /// When each bucket is full again. Buckets that are not listed are full.
    full_at: BTreeMap<K, Duration>,
    /// The same, by time.
    order: BTreeSet<(Duration, K)>,
}

impl<K: Ord + Clone> RateLimiter<K> {
    /// The same rate for each key; at most `max_keys` buckets.
    pub fn new(rate: Rate, max_keys: usize) -> Self {
        Self { rate, max_keys, full_at: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// Takes a token, or returns the time until there is one.
    pub fn take(&mut self, key: &K, now: Duration) -> Result<(), Duration> {
        self.check(key, now)?;
        self.charge(key, now);
        Ok(())
    }

    /// Checks for a token, or returns the time until there is one.
    pub fn check(&self, key: &K, now: Duration) -> Result<(), Duration> {
        let then = self.full_at(key, now) + self.rate.every;
        let latest = now + self.rate.every * self.rate.burst;
        if then > latest { Err(then - latest) } else { Ok(()) }
    }

    /// Takes a token even if there is none: it is missing later.
    pub fn charge(&mut self, key: &K, now: Duration) {
        while let Some((full_at, _)) = self.order.first()
            && *full_at <= now
        {
            self.evict_first();
        }
        let then = self.full_at(key, now) + self.rate.every;
        match self.full_at.insert(key.clone(), then) {
            Some(before) => {
                self.order.remove(&(before, key.clone()));
            }
            None if self.full_at.len() > self.max_keys => self.evict_first(),
            None => {}
        }
        self.order.insert((then, key.clone()));
    }

    /// Buckets in use.
    pub fn len(&self) -> usize {
        self.full_at.len()
    }

    /// Whether no bucket is in use.
    pub fn is_empty(&self) -> bool {
        self.full_at.is_empty()
    }

    fn full_at(&self, key: &K, now: Duration) -> Duration {
        let inherited = || {
            let full = self.full_at.len() >= self.max_keys;
            self.order.first().filter(|_| full).map(|(full_at, _)| full_at)
        };
        self.full_at.get(key).or_else(inherited).copied().unwrap_or(now).max(now)
    }

    fn evict_first(&mut self) {
        if let Some((_, key)) = self.order.pop_first() {
            self.full_at.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: Rate = Rate { burst: 4, every: Duration::from_secs(10) };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_burst_is_followed_by_the_refill_rate() {
        let mut all = RateLimiter::new(RATE, 10);
        for _ in 0..4 {
            assert_eq!(all.take(&"a", at(100)), Ok(()));
        }
        assert_eq!(all.take(&"a", at(100)), Err(at(10)));
        assert_eq!(all.take(&"b", at(100)), Ok(()));
        assert_eq!(all.take(&"a", at(107)), Err(at(3)));
        assert_eq!(all.take(&"a", at(110)), Ok(()));
        assert_eq!(all.take(&"a", at(110)), Err(at(10)));
        assert_eq!((0..9).filter(|_| all.take(&"a", at(500)).is_ok()).count(), 4);
    }

    #[test]
    fn an_overdrawn_bucket_refills_later() {
        let mut all = RateLimiter::new(RATE, 10);
        (0..6).for_each(|_| all.charge(&"a", at(0)));
        assert_eq!(all.check(&"a", at(0)), Err(at(30)));
        assert_eq!(all.check(&"a", at(30)), Ok(()));
    }

    #[test]
    fn many_keys_give_no_extra_tokens() {
        let mut all = RateLimiter::new(RATE, 100);
        (0..4).for_each(|_| all.charge(&0, at(0)));
        // A bucket is taken over only after all others are as empty, and then none has a token
        // left.
        let names = (1..10_000).map(|name| all.take(&name, at(0)).is_ok());
        assert_eq!(names.filter(|taken| *taken).count(), 99 * 4);
        assert_eq!(all.take(&0, at(0)), Err(at(10)));
        assert_eq!(all.len(), 100);
    }

    #[test]
    fn new_clients_are_refused_only_when_all_buckets_are_empty() {
        let mut all = RateLimiter::new(RATE, 100);
        for name in 0..100 {
            (0..3).for_each(|_| all.charge(&name, at(0)));
        }
        assert_eq!(all.take(&1000, at(0)), Ok(()));
        assert_eq!(all.take(&1000, at(0)), Err(at(10)));
        assert_eq!(all.take(&1001, at(0)), Ok(()));
    }

    #[test]
    fn full_buckets_are_forgotten() {
        let mut all = RateLimiter::new(RATE, 100);
        (0..100).for_each(|name| all.charge(&name, at(0)));
        all.charge(&1000, at(11));
        assert_eq!(all.len(), 1);
    }

    proptest! {
        /// Whatever the order of requests and the number of buckets: no key ever gets more than a
        /// bucket of its own would give.
        #[test]
        fn no_key_exceeds_its_rate(
            max_keys in 1usize..6,
            calls in proptest::collection::vec((0u8..8, 0u64..8), 0..200),
        ) {
            let mut all = RateLimiter::new(RATE, max_keys);
            let mut now = Duration::ZERO;
            let mut taken: BTreeMap<u8, Vec<Duration>> = BTreeMap::new();
            for (name, later) in calls {
                now += at(later);
                if all.take(&name, now).is_ok() {
                    taken.entry(name).or_default().push(now);
                }
                prop_assert!(all.len() <= max_keys);
                prop_assert_eq!(all.len(), all.order.len());
            }
            for times in taken.values() {
                for (first, from) in times.iter().enumerate() {
                    for (last, to) in times.iter().enumerate().skip(first) {
                        let more = (*to - *from).as_secs() / RATE.every.as_secs();
                        prop_assert!((last - first + 1) as u64 <= u64::from(RATE.burst) + more);
                    }
                }
            }
        }

        /// While there is a bucket for every key, each gets exactly its rate.
        #[test]
        fn with_enough_buckets_every_key_gets_its_rate(
            calls in proptest::collection::vec((0u8..8, 0u64..8), 0..200),
        ) {
            let mut all = RateLimiter::new(RATE, 8);
            let mut alone: BTreeMap<u8, RateLimiter<u8>> = BTreeMap::new();
            let mut now = Duration::ZERO;
            for (name, later) in calls {
                now += at(later);
                let own = alone.entry(name).or_insert_with(|| RateLimiter::new(RATE, 1));
                prop_assert_eq!(all.take(&name, now), own.take(&name, now));
            }
        }
    }
}
