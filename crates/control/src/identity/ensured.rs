//! Identities that this process has written recently: they are not written again at every change of
//! a record.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use tombolo_core::identity::Stage;

use super::RESYNC;

/// Stage and time of the last write, by UID of the record.
#[derive(Debug, Default)]
pub(super) struct Ensured(Mutex<BTreeMap<String, (Stage, Instant)>>);

impl Ensured {
    /// Records that all objects of the identity are written for this stage.
    pub fn note(&self, record: &Secret, stage: Stage) {
        self.lock().insert(uid(record), (stage, Instant::now()));
    }

    /// Whether the identity was written recently for this stage.
    pub fn is_recent(&self, record: &Secret, stage: Stage) -> bool {
        let last = self.lock().get(&uid(record)).copied();
        last.is_some_and(|(then, at)| then == stage && at.elapsed() < RESYNC)
    }

    /// Forgets an identity that is being revoked.
    pub fn forget(&self, record: &Secret) {
        self.lock().remove(&uid(record));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (Stage, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn uid(record: &Secret) -> String {
    record.uid().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(uid: &str) -> Secret {
        let mut secret = Secret::default();
        secret.metadata.uid = Some(uid.to_owned());
        secret
    }

    #[test]
    fn another_record_or_stage_is_written_again() {
        let ensured = Ensured::default();
        assert!(!ensured.is_recent(&record("1"), Stage::Known));
        ensured.note(&record("1"), Stage::Known);
        assert!(ensured.is_recent(&record("1"), Stage::Known));
        assert!(!ensured.is_recent(&record("1"), Stage::Peered));
        assert!(!ensured.is_recent(&record("2"), Stage::Known));
        ensured.forget(&record("1"));
        assert!(!ensured.is_recent(&record("1"), Stage::Known));
    }
}
