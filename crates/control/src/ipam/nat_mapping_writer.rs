//! Writes the NatMappings, which are derived from the stored state, for the gateways. The changes
//! of many requests are written together, a little after the answers.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep_until};
use tombolo_api::{
    ClusterId,
    net::{NatMapping, NatMappingSpec},
};
use tombolo_core::ipam::NatMappingShard;
use tombolo_runtime::task::Task;

use super::{owned_objects::OwnedObjects, store::StoreError};

/// Minimum time between two writes. The first change after it is written at once.
const PACE: Duration = Duration::from_millis(100);

pub(super) struct NatMappingWriter {
    /// `None` during a write.
    objects: Option<OwnedObjects<NatMapping>>,
    /// NatMappings that differ from the state.
    stale: BTreeSet<NatMappingShard>,
    /// Peers whose existing NatMappings are all stale.
    peers: BTreeSet<ClusterId>,
    /// NatMappings of the current write.
    writing: BTreeSet<NatMappingShard>,
    task: Option<Task<Written>>,
    /// The earliest time of the next write.
    next: Instant,
}

/// The objects, and the result of their write.
type Written = (OwnedObjects<NatMapping>, Result<(), StoreError>);

/// What the owner of the state has to react to.
pub(super) enum WriterEvent {
    /// Stale NatMappings are due to be written.
    Due,
    /// A write has ended.
    Done(Result<(), StoreError>),
}

impl NatMappingWriter {
    /// A writer without stale NatMappings.
    pub(super) fn new(objects: OwnedObjects<NatMapping>) -> Self {
        Self {
            objects: Some(objects),
            stale: BTreeSet::new(),
            peers: BTreeSet::new(),
            writing: BTreeSet::new(),
            task: None,
            next: Instant::now(),
        }
    }

    /// Marks NatMappings that differ from the state.
    pub(super) fn mark_stale(&mut self, shards: impl IntoIterator<Item = NatMappingShard>) {
        self.stale.extend(shards);
    }

    /// Marks all existing NatMappings of a peer.
    pub(super) fn mark_peer_stale(&mut self, peer: ClusterId) {
        self.peers.insert(peer);
    }

    /// The number of marked NatMappings.
    pub(super) fn stale_count(&self) -> usize {
        self.stale.len()
    }

    /// Whether this NatMapping is marked or being written.
    pub(super) fn is_pending(&self, shard: &NatMappingShard) -> bool {
        self.stale.contains(shard) || self.writing.contains(shard)
    }

    /// Whether any NatMapping is marked or being written.
    pub(super) fn has_pending(&self) -> bool {
        self.task.is_some() || self.has_stale()
    }

    /// Like [`Self::next_event`], but without the minimum time between writes.
    pub(super) async fn next_event_now(&mut self) -> WriterEvent {
        self.next = Instant::now();
        self.next_event().await
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn next_event(&mut self) -> WriterEvent {
        let has_stale = self.has_stale();
        match &mut self.task {
            Some(task) => {
                let ended = task.await;
                self.task = None;
                self.writing.clear();
                WriterEvent::Done(match ended {
                    Ok((objects, outcome)) => {
                        self.objects = Some(objects);
                        outcome
                    }
                    Err(_) => Err(StoreError::Interrupted),
                })
            }
            None if has_stale => {
                sleep_until(self.next).await;
                WriterEvent::Due
            }
            None => std::future::pending().await,
        }
    }

    /// Takes the stale NatMappings to write them.
    pub(super) fn take(&mut self) -> BTreeSet<NatMappingShard> {
        let peers = std::mem::take(&mut self.peers);
        let known = self
            .objects
            .iter()
            .flat_map(OwnedObjects::names)
            .filter_map(NatMappingShard::from_name);
        self.stale.extend(known.filter(|shard| peers.contains(shard.cluster())));
        self.writing = std::mem::take(&mut self.stale);
        self.writing.clone()
    }

    /// Starts to write the NatMappings that were taken.
    pub(super) fn start_write(&mut self, changes: Vec<(String, Option<NatMappingSpec>)>) {
        self.next = Instant::now() + PACE;
        let Some(mut objects) = self.objects.take() else { return };
        let write = async move {
            let outcome = objects.write(changes).await;
            (objects, outcome)
        };
        self.task = Some(Task::spawn("write NatMappings", write));
    }

    fn has_stale(&self) -> bool {
        !self.stale.is_empty() || !self.peers.is_empty()
    }
}
