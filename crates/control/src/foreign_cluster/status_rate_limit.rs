//! Limits how often the status of a ForeignCluster is written. The status contains messages of
//! another cluster, and each write triggers a reconciliation: a cluster that answers differently
//! each time must not keep this one busy.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// A status that differs only in its message is written at most once in this interval.
const MIN_INTERVAL: Duration = Duration::from_secs(30);

/// Other changes are written at once, until there were so many with shorter intervals in between.
const MAX_BURST: u32 = 16;

/// The last status writes, by entry.
#[derive(Debug, Default)]
pub(super) struct StatusRateLimit(Mutex<BTreeMap<String, Written>>);

#[derive(Clone, Copy, Debug)]
struct Written {
    last: Instant,
    burst: u32,
}

impl StatusRateLimit {
    /// How long to wait before the status of this entry may be written. `None`: write now.
    pub fn wait(&self, name: &str, message_only: bool, now: Instant) -> Option<Duration> {
        let written = *self.lock().get(name)?;
        let left = MIN_INTERVAL.saturating_sub(now.saturating_duration_since(written.last));
        let waits = message_only || written.burst >= MAX_BURST;
        (waits && !left.is_zero()).then_some(left)
    }

    /// Records a write.
    pub fn record_write(&self, name: &str, now: Instant) {
        let mut all = self.lock();
        let before =
            all.get(name).filter(|it| now.saturating_duration_since(it.last) < MIN_INTERVAL);
        let burst = before.map_or(1, |it| it.burst.saturating_add(1));
        all.insert(name.to_owned(), Written { last: now, burst });
    }

    /// Forgets an entry that is deleted.
    pub fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Written>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_message_waits_and_a_new_reason_is_written_at_once() {
        let (rate_limit, start) = (StatusRateLimit::default(), Instant::now());
        let later = start + Duration::from_secs(10);
        assert_eq!(rate_limit.wait("milan", true, start), None);
        rate_limit.record_write("milan", start);
        assert_eq!(rate_limit.wait("milan", true, later), Some(Duration::from_secs(20)));
        assert_eq!(rate_limit.wait("milan", false, later), None);
        assert_eq!(rate_limit.wait("milan", true, start + MIN_INTERVAL), None);
        assert_eq!(rate_limit.wait("naples", true, later), None);
        rate_limit.forget("milan");
        assert_eq!(rate_limit.wait("milan", true, later), None);
    }

    #[test]
    fn a_status_that_keeps_changing_is_throttled() {
        let (rate_limit, start) = (StatusRateLimit::default(), Instant::now());
        for _ in 0..MAX_BURST {
            assert_eq!(rate_limit.wait("milan", false, start), None);
            rate_limit.record_write("milan", start);
        }
        assert_eq!(rate_limit.wait("milan", false, start), Some(MIN_INTERVAL));
        assert_eq!(rate_limit.wait("milan", false, start + MIN_INTERVAL), None);
        rate_limit.record_write("milan", start + MIN_INTERVAL);
        assert_eq!(rate_limit.wait("milan", false, start + MIN_INTERVAL), None);
    }
}
