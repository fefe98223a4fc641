//! Tells the gateways which addresses stand for what: the NatMappings, which follow from what is
//! stored. They are written a little later, for many answers at a time.

use std::{collections::BTreeSet, time::Duration};

use tokio::time::{Instant, sleep_until};
use tombolo_api::{
    ClusterId,
    net::{NatMapping, NatMappingSpec},
};
use tombolo_core::ipam::Told;
use tombolo_runtime::task::Task;

use super::{kept::Kept, store::StoreError};

/// How long it takes at least from one time to the next. The first change after that is told at once.
const PACE: Duration = Duration::from_millis(100);

pub(super) struct Teller {
    /// Here, unless they are being written.
    kept: Option<Kept<NatMapping>>,
    /// Those that do not say yet what they should.
    behind: BTreeSet<Told>,
    /// Peers of which none may say what it should.
    peers: BTreeSet<ClusterId>,
    /// Those that are being written.
    writing: BTreeSet<Told>,
    task: Option<Task<Written>>,
    /// When the next ones may be written.
    next: Instant,
}

/// The objects, and whether they were written.
type Written = (Kept<NatMapping>, Result<(), StoreError>);

/// What there is to do.
pub(super) enum Turn {
    /// It is time to tell what has changed.
    Tell,
    /// What was told has arrived, or not.
    Told(Result<(), StoreError>),
}

impl Teller {
    /// One that has nothing to tell yet.
    pub(super) fn new(kept: Kept<NatMapping>) -> Self {
        Self {
            kept: Some(kept),
            behind: BTreeSet::new(),
            peers: BTreeSet::new(),
            writing: BTreeSet::new(),
            task: None,
            next: Instant::now(),
        }
    }

    /// These do not say any more what they should.
    pub(super) fn note(&mut self, told: impl IntoIterator<Item = Told>) {
        self.behind.extend(told);
    }

    /// Nor may those of this peer, whichever are there.
    pub(super) fn note_all_of(&mut self, peer: ClusterId) {
        self.peers.insert(peer);
    }

    /// How many do not say yet what they should.
    pub(super) fn behind(&self) -> usize {
        self.behind.len()
    }

    /// Whether this one is yet to be written, or is being written.
    pub(super) fn owes(&self, told: &Told) -> bool {
        self.behind.contains(told) || self.writing.contains(told)
    }

    /// Whether any does not say yet what it should.
    pub(super) fn is_behind(&self) -> bool {
        self.task.is_some() || self.has_to_tell()
    }

    /// The same as [`Self::turn`], for those who do not want to wait for what else may change.
    pub(super) async fn turn_now(&mut self) -> Turn {
        self.next = Instant::now();
        self.turn().await
    }

    /// Waits until there is something to do. Whoever stops waiting misses nothing.
    pub(super) async fn turn(&mut self) -> Turn {
        let has_to_tell = self.has_to_tell();
        match &mut self.task {
            Some(task) => {
                let ended = task.await;
                self.task = None;
                self.writing.clear();
                Turn::Told(match ended {
                    Ok((kept, outcome)) => {
                        self.kept = Some(kept);
                        outcome
                    }
                    Err(_) => Err(StoreError::Cut),
                })
            }
            None if has_to_tell => {
                sleep_until(self.next).await;
                Turn::Tell
            }
            None => std::future::pending().await,
        }
    }

    /// Those that are to be written now: nobody else does until they are.
    pub(super) fn take(&mut self) -> BTreeSet<Told> {
        let peers = std::mem::take(&mut self.peers);
        let known = self.kept.iter().flat_map(Kept::names).filter_map(Told::from_name);
        self.behind.extend(known.filter(|told| peers.contains(told.cluster())));
        self.writing = std::mem::take(&mut self.behind);
        self.writing.clone()
    }

    /// Begins to write those that were taken.
    pub(super) fn begin(&mut self, changes: Vec<(String, Option<NatMappingSpec>)>) {
        self.next = Instant::now() + PACE;
        let Some(mut kept) = self.kept.take() else { return };
        let write = async move {
            let outcome = kept.write(changes).await;
            (kept, outcome)
        };
        self.task = Some(Task::spawn("write NatMappings", write));
    }

    fn has_to_tell(&self) -> bool {
        !self.behind.is_empty() || !self.peers.is_empty()
    }
}
