//! Backoff for clusters that can't be reached: the longer attempts have failed, the longer the
//! pause. Announcements of many unreachable clusters must not keep this one busy.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kube::ResourceExt;
use tombolo_api::discovery::ForeignCluster;
use tombolo_core::discovery::connect_backoff;

/// Since when the attempts of each entry have failed.
#[derive(Debug, Default)]
pub(super) struct ConnectBackoff(Mutex<BTreeMap<String, Attempts>>);

#[derive(Debug)]
struct Attempts {
    /// UID and generation of the entry: a changed spec is tried at once.
    target: Target,
    since: Instant,
    /// When to retry, while backing off.
    retry_at: Option<Instant>,
}

type Target = (Option<String>, Option<i64>);

impl ConnectBackoff {
    /// The rest of the pause. Changes of the metadata, as by each announcement, do not end it.
    pub fn remaining(&self, entry: &ForeignCluster, now: Instant) -> Option<Duration> {
        let all = self.lock();
        let attempts =
            all.get(&entry.name_any()).filter(|attempts| attempts.target == target(entry))?;
        let left = attempts.retry_at?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// Records an attempt that failed, from `began` to `now`. Returns the pause, if there is one.
    pub fn failed_attempt(
        &self,
        entry: &ForeignCluster,
        began: Instant,
        now: Instant,
    ) -> Option<Duration> {
        let (mut all, target) = (self.lock(), target(entry));
        let before = all.get(&entry.name_any()).filter(|attempts| attempts.target == target);
        let since = before.map_or(began, |attempts| attempts.since);
        let failing_for = now.saturating_duration_since(since);
        let wait = connect_backoff(failing_for, now.saturating_duration_since(began));
        all.insert(
            entry.name_any(),
            Attempts { target, since, retry_at: wait.map(|wait| now + wait) },
        );
        wait
    }

    /// Forgets an entry that is deleted or authenticated.
    pub fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Attempts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn target(entry: &ForeignCluster) -> Target {
    (entry.uid(), entry.metadata.generation)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(uid: &str, generation: i64) -> ForeignCluster {
        let spec = serde_json::from_str(r#"{"authUrl": "https://milan"}"#).unwrap();
        let mut entry = ForeignCluster::new("milan", spec);
        (entry.metadata.uid, entry.metadata.generation) = (Some(uid.to_owned()), Some(generation));
        entry
    }

    #[test]
    fn the_pause_grows_and_ends_when_the_spec_changes() {
        let (backoff, start, milan) = (ConnectBackoff::default(), Instant::now(), entry("1", 1));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(backoff.failed_attempt(&milan, start, start), None);
        assert_eq!(backoff.failed_attempt(&milan, at(50), at(50)), None);
        assert_eq!(backoff.remaining(&milan, at(50)), None);
        assert_eq!(backoff.failed_attempt(&milan, at(80), at(80)), Some(Duration::from_secs(20)));
        assert_eq!(backoff.remaining(&milan, at(90)), Some(Duration::from_secs(10)));
        assert_eq!(backoff.remaining(&milan, at(100)), None);
        for other in [entry("1", 2), entry("2", 1)] {
            assert_eq!(backoff.remaining(&other, at(90)), None);
        }
        assert_eq!(backoff.failed_attempt(&entry("1", 2), at(90), at(90)), None);
        assert_eq!(backoff.remaining(&entry("1", 2), at(90)), None);
    }

    #[test]
    fn success_resets_the_backoff() {
        let (backoff, start, milan) = (ConnectBackoff::default(), Instant::now(), entry("1", 1));
        let later = start + Duration::from_secs(600);
        backoff.failed_attempt(&milan, start, start);
        backoff.forget("milan");
        assert_eq!(backoff.failed_attempt(&milan, later, later), None);
    }
}
