//! When a watch that has failed is started again, and which failures are reported.
//!
//! The delay doubles with each failure. A list that succeeds is no proof that the watch holds: an
//! API server may allow lists and end each watch at once. So the delay starts from the first one
//! again only after a watch that held longer than the last delay.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);

/// Longest delay after a connection error, a timeout or a broken stream. It is short: until the
/// watch is back, nobody knows what to write.
const LAST: Duration = Duration::from_secs(2);

/// Longest delay after a refusal, which ends only when somebody grants the right.
const LAST_REFUSED: Duration = Duration::from_secs(10);

/// The failures of one watch so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchRetry {
    /// Failures in a row.
    failures: u32,
    /// The last delay.
    delay: Duration,
    /// Since when the watch has worked, unless it has failed since.
    since: Option<Instant>,
    /// Whether a failure was reported whose end was not.
    is_reported: bool,
}

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// How long to wait before the next attempt.
    pub delay: Duration,
    /// Whether to report the failure: only the first in a row is.
    pub is_news: bool,
}

impl WatchRetry {
    /// Notes a failure. `is_refused` tells a missing right (401 or 403) from other causes.
    pub fn failed(&mut self, now: Instant, is_refused: bool) -> Retry {
        let worked = self.since.take().map(|since| now.saturating_duration_since(since));
        if worked.is_some_and(|worked| worked > self.delay) {
            self.failures = 0;
        }
        let last = if is_refused { LAST_REFUSED } else { LAST };
        self.delay = FIRST.saturating_mul(1 << self.failures.min(16)).min(last);
        let is_news = self.failures == 0;
        self.is_reported |= is_news;
        self.failures = self.failures.saturating_add(1);
        Retry { delay: self.delay, is_news }
    }

    /// Notes that the watch works. Returns whether to report that it does again.
    pub fn works(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        std::mem::take(&mut self.is_reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What becomes of `failures` in a row, and when they are over.
    fn fail(
        retry: &mut WatchRetry,
        now: &mut Instant,
        failures: usize,
        refused: bool,
    ) -> Vec<Retry> {
        let fail = |_| {
            let failed = retry.failed(*now, refused);
            *now += failed.delay;
            failed
        };
        (0..failures).map(fail).collect()
    }

    fn millis(all: &[Retry]) -> Vec<u128> {
        all.iter().map(|retry| retry.delay.as_millis()).collect()
    }

    #[test]
    fn the_delay_doubles_up_to_a_limit_that_is_higher_for_refusals() {
        let now = &mut Instant::now();
        let lost = fail(&mut WatchRetry::default(), now, 8, false);
        assert_eq!(millis(&lost), [100, 200, 400, 800, 1600, 2000, 2000, 2000]);
        let refused = fail(&mut WatchRetry::default(), now, 100, true);
        assert_eq!(millis(&refused[..8]), [100, 200, 400, 800, 1600, 3200, 6400, 10_000]);
        assert_eq!(refused[99].delay, LAST_REFUSED);
    }

    #[test]
    fn only_the_first_failure_and_the_recovery_are_reported() {
        let (mut retry, now) = (WatchRetry::default(), &mut Instant::now());
        assert!(!retry.works(*now), "nothing was wrong");
        *now += Duration::from_secs(60);
        let news: Vec<_> = fail(&mut retry, now, 3, true).iter().map(|it| it.is_news).collect();
        assert_eq!(news, [true, false, false]);
        assert!(retry.works(*now));
        assert!(!retry.works(*now), "once");
    }

    #[test]
    fn a_watch_that_held_for_a_while_is_started_again_soon() {
        let (mut retry, now) = (WatchRetry::default(), &mut Instant::now());
        fail(&mut retry, now, 5, false);
        retry.works(*now);
        *now += Duration::from_secs(1);
        retry.works(*now);
        *now += Duration::from_secs(1);
        assert_eq!(retry.failed(*now, false), Retry { delay: FIRST, is_news: true });
    }

    #[test]
    fn one_that_breaks_as_soon_as_it_works_is_not_started_all_the_time() {
        let (mut retry, mut now) = (WatchRetry::default(), Instant::now());
        let (mut failures, mut reports) = (0, 0);
        let end = now + Duration::from_secs(60);
        while now < end {
            reports += usize::from(retry.works(now));
            let failed = retry.failed(now, false);
            reports += usize::from(failed.is_news);
            now += failed.delay;
            failures += 1;
        }
        assert!(failures < 40, "{failures} times in a minute");
        assert_eq!(reports, 2);
    }
}
