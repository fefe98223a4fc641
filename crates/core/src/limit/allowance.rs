//! How often each caller may do something: a bucket of tokens for each, of which only the time is
//! kept at which it is full again. There are so many buckets and no more. When all are in use, a new
//! caller gets the one that is fullest as it is, and not a full one: so nobody gets more by coming
//! under many names, and whose bucket was given away finds one that is no fuller than his own.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How much is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// At once.
    pub burst: u32,
    /// After that, one more each time that so long has passed.
    pub every: Duration,
}

/// What is left of the allowances of many callers. All times are since one and the same beginning.
#[derive(Clone, Debug)]
pub struct Allowances<K> {
    rate: Rate,
    most: usize,
    /// When each is back at its full allowance. Who is not named is already.
    full_at: BTreeMap<K, Duration>,
    /// The same, by time.
    order: BTreeSet<(Duration, K)>,
}

impl<K: Ord + Clone> Allowances<K> {
    /// The same for each; at most so many are kept apart.
    pub fn new(rate: Rate, most: usize) -> Self {
        Self { rate, most, full_at: BTreeMap::new(), order: BTreeSet::new() }
    }

    /// Takes one, or says in how long there will be one.
    pub fn take(&mut self, key: &K, now: Duration) -> Result<(), Duration> {
        self.left(key, now)?;
        self.charge(key, now);
        Ok(())
    }

    /// Whether there is one left, or in how long there will be.
    pub fn left(&self, key: &K, now: Duration) -> Result<(), Duration> {
        let then = self.full_at(key, now) + self.rate.every;
        let latest = now + self.rate.every * self.rate.burst;
        if then > latest { Err(then - latest) } else { Ok(()) }
    }

    /// Takes one, also one that is not there yet: it will be missing later.
    pub fn charge(&mut self, key: &K, now: Duration) {
        while let Some((full_at, _)) = self.order.first()
            && *full_at <= now
        {
            self.forget_first();
        }
        let then = self.full_at(key, now) + self.rate.every;
        match self.full_at.insert(key.clone(), then) {
            Some(before) => {
                self.order.remove(&(before, key.clone()));
            }
            None if self.full_at.len() > self.most => self.forget_first(),
            None => {}
        }
        self.order.insert((then, key.clone()));
    }

    /// How many are kept apart right now.
    pub fn len(&self) -> usize {
        self.full_at.len()
    }

    /// Whether everybody has the full allowance, as far as was noticed.
    pub fn is_empty(&self) -> bool {
        self.full_at.is_empty()
    }

    fn full_at(&self, key: &K, now: Duration) -> Duration {
        let inherited = || {
            let full = self.full_at.len() >= self.most;
            self.order.first().filter(|_| full).map(|(full_at, _)| full_at)
        };
        self.full_at.get(key).or_else(inherited).copied().unwrap_or(now).max(now)
    }

    fn forget_first(&mut self) {
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
    fn there_are_some_at_once_and_then_one_at_a_time() {
        let mut all = Allowances::new(RATE, 10);
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
    fn what_was_taken_too_early_is_missing_later() {
        let mut all = Allowances::new(RATE, 10);
        (0..6).for_each(|_| all.charge(&"a", at(0)));
        assert_eq!(all.left(&"a", at(0)), Err(at(30)));
        assert_eq!(all.left(&"a", at(30)), Ok(()));
    }

    #[test]
    fn who_comes_under_many_names_gets_no_more_by_it() {
        let mut all = Allowances::new(RATE, 100);
        (0..4).for_each(|_| all.charge(&0, at(0)));
        // All other buckets have to be as empty as the own one before that is given away, and then
        // no bucket has anything left.
        let names = (1..10_000).map(|name| all.take(&name, at(0)).is_ok());
        assert_eq!(names.filter(|taken| *taken).count(), 99 * 4);
        assert_eq!(all.take(&0, at(0)), Err(at(10)));
        assert_eq!(all.len(), 100);
    }

    #[test]
    fn others_are_kept_out_only_when_all_buckets_are_empty() {
        let mut all = Allowances::new(RATE, 100);
        for name in 0..100 {
            (0..3).for_each(|_| all.charge(&name, at(0)));
        }
        assert_eq!(all.take(&1000, at(0)), Ok(()));
        assert_eq!(all.take(&1000, at(0)), Err(at(10)));
        assert_eq!(all.take(&1001, at(0)), Ok(()));
    }

    #[test]
    fn nothing_is_remembered_of_who_has_the_full_allowance() {
        let mut all = Allowances::new(RATE, 100);
        (0..100).for_each(|name| all.charge(&name, at(0)));
        all.charge(&1000, at(11));
        assert_eq!(all.len(), 1);
    }

    proptest! {
        /// However they come, and however few buckets there are: nobody gets more than one bucket
        /// of its own would give, at any time.
        #[test]
        fn nobody_gets_more_than_allowed(
            most in 1usize..6,
            calls in proptest::collection::vec((0u8..8, 0u64..8), 0..200),
        ) {
            let mut all = Allowances::new(RATE, most);
            let mut now = Duration::ZERO;
            let mut taken: BTreeMap<u8, Vec<Duration>> = BTreeMap::new();
            for (name, later) in calls {
                now += at(later);
                if all.take(&name, now).is_ok() {
                    taken.entry(name).or_default().push(now);
                }
                prop_assert!(all.len() <= most);
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

        /// Who is alone, or has company that fits, gets exactly what is allowed.
        #[test]
        fn where_there_is_room_everybody_gets_what_is_allowed(
            calls in proptest::collection::vec((0u8..8, 0u64..8), 0..200),
        ) {
            let mut all = Allowances::new(RATE, 8);
            let mut alone: BTreeMap<u8, Allowances<u8>> = BTreeMap::new();
            let mut now = Duration::ZERO;
            for (name, later) in calls {
                now += at(later);
                let own = alone.entry(name).or_insert_with(|| Allowances::new(RATE, 1));
                prop_assert_eq!(all.take(&name, now), own.take(&name, now));
            }
        }
    }
}
