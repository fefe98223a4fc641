//! How often the status of a ForeignCluster is written: it holds what another cluster says, and each
//! write brings the entry here again. Whoever says something else each time must not keep us busy.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// What differs only in its words waits until this long after the last write.
const PAUSE: Duration = Duration::from_secs(30);

/// What differs in more waits as well, once so many writes came with less than that between them.
const MOST_IN_A_ROW: u32 = 16;

/// When the status of each entry was written last.
#[derive(Debug, Default)]
pub(super) struct Pace(Mutex<BTreeMap<String, Written>>);

#[derive(Clone, Copy, Debug)]
struct Written {
    last: Instant,
    in_a_row: u32,
}

impl Pace {
    /// How long the status of the entry of this name has to wait to be written, if it has to.
    pub fn wait(&self, name: &str, only_words: bool, now: Instant) -> Option<Duration> {
        let written = *self.lock().get(name)?;
        let left = PAUSE.saturating_sub(now.saturating_duration_since(written.last));
        let waits = only_words || written.in_a_row >= MOST_IN_A_ROW;
        (waits && !left.is_zero()).then_some(left)
    }

    /// It is written.
    pub fn wrote(&self, name: &str, now: Instant) {
        let mut all = self.lock();
        let before = all.get(name).filter(|it| now.saturating_duration_since(it.last) < PAUSE);
        let in_a_row = before.map_or(1, |it| it.in_a_row.saturating_add(1));
        all.insert(name.to_owned(), Written { last: now, in_a_row });
    }

    /// There is no such entry any more.
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
    fn other_words_are_written_once_in_a_while_and_what_else_differs_at_once() {
        let (pace, start) = (Pace::default(), Instant::now());
        let later = start + Duration::from_secs(10);
        assert_eq!(pace.wait("milan", true, start), None);
        pace.wrote("milan", start);
        assert_eq!(pace.wait("milan", true, later), Some(Duration::from_secs(20)));
        assert_eq!(pace.wait("milan", false, later), None);
        assert_eq!(pace.wait("milan", true, start + PAUSE), None);
        assert_eq!(pace.wait("naples", true, later), None);
        pace.forget("milan");
        assert_eq!(pace.wait("milan", true, later), None);
    }

    #[test]
    fn who_is_never_of_one_mind_is_not_written_all_the_time() {
        let (pace, start) = (Pace::default(), Instant::now());
        for _ in 0..MOST_IN_A_ROW {
            assert_eq!(pace.wait("milan", false, start), None);
            pace.wrote("milan", start);
        }
        assert_eq!(pace.wait("milan", false, start), Some(PAUSE));
        assert_eq!(pace.wait("milan", false, start + PAUSE), None);
        pace.wrote("milan", start + PAUSE);
        assert_eq!(pace.wait("milan", false, start + PAUSE), None);
    }
}
