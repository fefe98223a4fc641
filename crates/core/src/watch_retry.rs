//! The backoff of a failed watch, and the choice of failures to report.
//!
//! The delay doubles with each failure. A successful list does not prove that the watch works: an
//! API server may allow lists and end each watch at once. So the backoff is reset only by a watch
//! that lasted longer than the last delay.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(100);

/// Longest delay after a connection error, a timeout or a broken stream. It is short because
/// controllers can't act until the watch is back.
const LAST: Duration = Duration::from_secs(2);

/// Longest delay after a 401 or 403, which last until somebody grants the permission.
const LAST_REFUSED: Duration = Duration::from_secs(10);

/// The failures of one watch so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct WatchRetry {
    /// Failures in a row.
    failures: u32,
    /// The last delay.
    delay: Duration,
    /// Start of the current watch, unless it has failed.
    since: Option<Instant>,
    /// Whether a failure was reported and its recovery was not.
    is_reported: bool,
}

/// The reaction to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Delay before the next attempt.
    pub delay: Duration,
    /// Whether to report the failure: true only for the first in a row.
    pub is_news: bool,
}

impl WatchRetry {
    /// Records a failure. `is_refused`: a missing permission (401 or 403).
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

    /// Records that the watch works. Returns whether to report its recovery.
    pub fn works(&mut self, now: Instant) -> bool {
        self.since.get_or_insert(now);
        std::mem::take(&mut self.is_reported)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reactions to `failures` in a row. Advances `now` by their delays.
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
    fn a_watch_that_lasted_longer_than_the_last_delay_resets_the_backoff() {
        let (mut retry, now) = (WatchRetry::default(), &mut Instant::now());
        fail(&mut retry, now, 5, false);
        retry.works(*now);
        *now += Duration::from_secs(1);
        retry.works(*now);
        *now += Duration::from_secs(1);
        assert_eq!(retry.failed(*now, false), Retry { delay: FIRST, is_news: true });
    }

    #[test]
    fn a_watch_that_breaks_at_once_does_not_reset_the_backoff() {
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
