//! Clusters that could not be met: the longer it has been in vain, the longer they are left alone.
//! Whoever announces many that are not there must not keep us busy.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kube::ResourceExt;
use tombolo_api::discovery::ForeignCluster;
use tombolo_core::discovery::patience;

/// Since when each entry without an identity has been tried in vain.
#[derive(Debug, Default)]
pub(super) struct Vain(Mutex<BTreeMap<String, Tried>>);

#[derive(Debug)]
struct Tried {
    /// What was tried: the entry, and what is wanted of it. Something else deserves to be tried at once.
    what: What,
    since: Instant,
    /// When it is to be tried again, if it is left alone until then.
    again: Option<Instant>,
}

type What = (Option<String>, Option<i64>);

impl Vain {
    /// How long the entry is to be left alone, whatever else has changed of it: each sighting does.
    pub fn left_alone(&self, entry: &ForeignCluster, now: Instant) -> Option<Duration> {
        let all = self.lock();
        let tried = all.get(&entry.name_any()).filter(|tried| tried.what == what(entry))?;
        let left = tried.again?.saturating_duration_since(now);
        (!left.is_zero()).then_some(left)
    }

    /// It was in vain once more, from `began` until `now`. Returns for how long it is left alone, if it is.
    pub fn again(&self, entry: &ForeignCluster, began: Instant, now: Instant) -> Option<Duration> {
        let (mut all, what) = (self.lock(), what(entry));
        let before = all.get(&entry.name_any()).filter(|tried| tried.what == what);
        let since = before.map_or(began, |tried| tried.since);
        let in_vain = now.saturating_duration_since(since);
        let wait = patience(in_vain, now.saturating_duration_since(began));
        all.insert(entry.name_any(), Tried { what, since, again: wait.map(|wait| now + wait) });
        wait
    }

    /// There is no such entry any more, or it was met.
    pub fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Tried>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn what(entry: &ForeignCluster) -> What {
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
    fn who_is_in_vain_for_long_is_left_alone_until_something_else_is_wanted() {
        let (vain, start, milan) = (Vain::default(), Instant::now(), entry("1", 1));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(vain.again(&milan, start, start), None);
        assert_eq!(vain.again(&milan, at(50), at(50)), None);
        assert_eq!(vain.left_alone(&milan, at(50)), None);
        assert_eq!(vain.again(&milan, at(80), at(80)), Some(Duration::from_secs(20)));
        assert_eq!(vain.left_alone(&milan, at(90)), Some(Duration::from_secs(10)));
        assert_eq!(vain.left_alone(&milan, at(100)), None);
        for other in [entry("1", 2), entry("2", 1)] {
            assert_eq!(vain.left_alone(&other, at(90)), None);
        }
        assert_eq!(vain.again(&entry("1", 2), at(90), at(90)), None);
        assert_eq!(vain.left_alone(&entry("1", 2), at(90)), None);
    }

    #[test]
    fn who_was_met_is_not_left_alone_for_what_was_before() {
        let (vain, start, milan) = (Vain::default(), Instant::now(), entry("1", 1));
        let later = start + Duration::from_secs(600);
        vain.again(&milan, start, start);
        vain.forget("milan");
        assert_eq!(vain.again(&milan, later, later), None);
    }
}
