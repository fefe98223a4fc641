//! The state of the address service in the API server. There is one writer at a time: every write
//! has the version of the object as a precondition, and a new writer first fences off the former
//! one. It changes the version of every object that the former writer may be writing to (its open
//! shards), so that those writes fail.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use jiff::{SignedDuration, Timestamp};
use kube::Client;
use tombolo_api::{
    ClusterId,
    net::{IpamStorage, IpamStorageSpec, NatMapping, NatMappingSpec, Writer},
};
use tombolo_core::ipam::{Changes, IpamState, NETWORKS, NatMappingShard, StorageShard, WRITER};
use uuid::Uuid;

use super::{
    nat_mapping_writer::{NatMappingWriter, WriterEvent},
    owned_objects::OwnedObjects,
};

/// Shards per batch of writes.
const BATCH: usize = 64;
/// Shards that stay open when another one is opened.
const MAX_OPEN: usize = 32;
/// Shards to open ahead, if the previous opening was less than [`FAST`] ago.
const AHEAD: u32 = 16;
const FAST: Duration = Duration::from_secs(1);
/// NatMappings that may differ from the stored state.
const MAX_STALE: usize = 32;

/// How long empty shards of clusters without a peering are kept as fences against the former
/// writer. Its requests time out after 15 s, and the API server ends them after 60 s.
const FENCE: SignedDuration = SignedDuration::from_mins(3);

/// The state could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The request to the API server failed, or its outcome is unknown.
    #[error("request to the API server")]
    Api(#[from] kube::Error),
    /// Another process is the writer now.
    #[error("another process has become the writer of IpamStorages and NatMappings")]
    Deposed,
    /// The write task was aborted.
    #[error("a write of NatMappings was interrupted")]
    Interrupted,
}

impl StoreError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409)
    }
}

pub(super) struct Store {
    client: Client,
    storages: OwnedObjects<IpamStorage>,
    /// Of each pending NatMapping, at least one shard is open.
    nat_mappings: NatMappingWriter,
    /// The unique id of this writer; `None` before its first claim.
    holder: Option<String>,
    /// Shards that this writer may write to, as recorded in the API server.
    open: BTreeSet<StorageShard>,
    /// Shards that the former writer may still try to create. It can't while they exist.
    fences: BTreeSet<StorageShard>,
    /// When fences of clusters without a peering are deleted.
    fenced_until: Timestamp,
    /// When shards were last opened.
    opened: Instant,
    /// The number of claims by this process.
    claims: u32,
}

/// All stored objects.
pub(super) struct Stored {
    pub(super) storages: Vec<IpamStorage>,
    pub(super) mappings: Vec<NatMapping>,
}

impl Store {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            storages: OwnedObjects::new(client.clone()),
            nat_mappings: NatMappingWriter::new(OwnedObjects::new(client.clone())),
            holder: None,
            open: BTreeSet::new(),
            fences: BTreeSet::new(),
            fenced_until: Timestamp::MIN,
            opened: Instant::now(),
            claims: 0,
        }
    }

    /// Becomes the only writer, or verifies that it still is, and reads all stored objects. No
    /// earlier request of any process can change them afterwards.
    pub(super) async fn claim(&mut self, now: Timestamp) -> Result<Stored, StoreError> {
        loop {
            match self.try_claim(now).await {
                Err(error) if error.is_conflict() => {}
                other => return other,
            }
        }
    }

    /// Writes the changes of the state. NatMappings are only marked as stale, unless there are too
    /// many of them.
    pub(super) async fn write(
        &mut self,
        state: &mut IpamState,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Changes { networks, mut shards, nat_mappings } = state.take_changes();
        for peer in gone(&shards, state) {
            shards.extend(self.leftover_shards(&peer, state));
            self.nat_mappings.mark_peer_stale(peer);
        }
        shards.extend(self.lift_fences(state, now));
        let shards: Vec<StorageShard> = shards.into_iter().collect();
        for batch in shards.chunks(BATCH) {
            self.write_shards(state, batch).await?;
        }
        let nat_mappings: Vec<NatMappingShard> = nat_mappings.into_iter().collect();
        for batch in nat_mappings.chunks(MAX_STALE) {
            if self.nat_mappings.stale_count() + batch.len() > MAX_STALE {
                self.flush_nat_mappings(state).await?;
            }
            self.nat_mappings.mark_stale(batch.iter().cloned());
        }
        // Last: in earlier versions this object also had the CIDRs of peers, now in the shards.
        if networks {
            let spec = state.networks_storage();
            self.storages.write(vec![(NETWORKS.to_owned(), Some(spec))]).await?;
        }
        Ok(())
    }

    /// When the next fences can be deleted, if any belong to clusters without a peering.
    pub(super) fn fences_end(&self, state: &IpamState) -> Option<Timestamp> {
        let is_peer = |shard: &StorageShard| state.subnets(shard.cluster()).is_some();
        let is_all_peers = self.fences.iter().all(is_peer);
        (!is_all_peers).then_some(self.fenced_until)
    }

    /// Removes expired fences. Returns the shards of clusters without a peering that still exist.
    fn lift_fences(&mut self, state: &IpamState, now: Timestamp) -> Vec<StorageShard> {
        if now < self.fenced_until {
            return Vec::new();
        }
        let is_over = |shard: &StorageShard| state.subnets(shard.cluster()).is_none();
        let lifted = self.fences.extract_if(.., is_over);
        lifted.filter(|shard| self.storages.knows(&shard.storage())).collect()
    }

    /// The existing empty shards of a former peer.
    fn leftover_shards(&self, peer: &ClusterId, state: &IpamState) -> Vec<StorageShard> {
        let shards = self.storages.names().filter_map(StorageShard::from_storage);
        let of_peer = shards.filter(|shard| shard.cluster() == peer);
        of_peer.filter(|shard| state.storage(shard).is_none()).collect()
    }

    async fn write_shards(
        &mut self,
        state: &IpamState,
        shards: &[StorageShard],
    ) -> Result<(), StoreError> {
        self.open(shards).await?;
        let is_peer = |shard: &StorageShard| state.subnets(shard.cluster()).is_some();
        let stays = |shard: &StorageShard| {
            self.fences.contains(shard)
                && (matches!(shard, StorageShard::Networks(_)) || is_peer(shard))
        };
        let storages = shards.iter().map(|shard| {
            let empty = || stays(shard).then(IpamStorageSpec::default);
            (shard.storage(), state.storage(shard).or_else(empty))
        });
        self.storages.write(storages.collect()).await
    }

    /// Waits for the next event of the NatMapping writer. Cancel safe.
    pub(super) async fn next_event(&mut self) -> WriterEvent {
        self.nat_mappings.next_event().await
    }

    /// Starts to write the stale NatMappings.
    pub(super) async fn start_nat_mapping_write(
        &mut self,
        state: &IpamState,
    ) -> Result<(), StoreError> {
        let stale = self.nat_mappings.take();
        let is_open = |stale: &&NatMappingShard| {
            self.open.iter().any(|shard| shard.nat_mapping().as_ref() == Some(stale))
        };
        let closed: Vec<StorageShard> = stale
            .iter()
            .filter(|stale| !is_open(stale))
            .map(NatMappingShard::first_shard)
            .collect();
        self.open(&closed).await?;
        let fenced: BTreeSet<NatMappingShard> =
            self.fences.iter().filter_map(StorageShard::nat_mapping).collect();
        let changes = stale.into_iter().map(|shard| {
            let stays = fenced.contains(&shard) && state.subnets(shard.cluster()).is_some();
            let empty = || stays.then(|| empty_nat_mapping(&shard));
            (shard.name(), state.nat_mapping(&shard).or_else(empty))
        });
        self.nat_mappings.start_write(changes.collect());
        Ok(())
    }

    /// Writes all stale NatMappings and waits until they are written.
    pub(super) async fn flush_nat_mappings(&mut self, state: &IpamState) -> Result<(), StoreError> {
        while self.nat_mappings.has_pending() {
            match self.nat_mappings.next_event_now().await {
                WriterEvent::Due => self.start_nat_mapping_write(state).await?,
                WriterEvent::Done(outcome) => outcome?,
            }
        }
        Ok(())
    }

    /// Ends writing: flushes the NatMappings and closes all shards, so that the next writer has
    /// nothing to fence.
    pub(super) async fn close(&mut self, state: &IpamState) -> Result<(), StoreError> {
        self.flush_nat_mappings(state).await?;
        self.open.clear();
        self.record_writer(self.holder.clone()).await
    }

    async fn try_claim(&mut self, now: Timestamp) -> Result<Stored, StoreError> {
        let found = self.storages.get(WRITER).await?;
        let before = found.and_then(|storage| storage.spec.writer).unwrap_or_default();
        let holder = match self.holder.clone() {
            Some(holder) if holder != before.holder => return Err(StoreError::Deposed),
            Some(holder) => holder,
            None => Uuid::new_v4().to_string(),
        };
        self.claims += 1;
        self.open = before.open.iter().filter_map(|name| name.parse().ok()).collect();
        self.record_writer(Some(holder.clone())).await?;
        // Not earlier: a process that never was the writer can't be deposed.
        self.holder = Some(holder);

        let mut mappings = OwnedObjects::new(self.client.clone());
        let mut stored =
            Stored { storages: self.storages.read().await?, mappings: mappings.read().await? };
        let mark = format!("{}/{}", self.holder.as_deref().unwrap_or_default(), self.claims);
        for shard in &self.open {
            if !self.storages.knows(&shard.storage()) {
                stored
                    .storages
                    .push(IpamStorage::new(&shard.storage(), IpamStorageSpec::default()));
            }
        }
        let nat_mappings: BTreeSet<NatMappingShard> =
            self.open.iter().filter_map(StorageShard::nat_mapping).collect();
        for shard in nat_mappings.iter().filter(|shard| !mappings.knows(&shard.name())) {
            stored.mappings.push(NatMapping::new(&shard.name(), empty_nat_mapping(shard)));
        }
        let open: BTreeSet<_> =
            self.open.iter().map(StorageShard::storage).chain([NETWORKS.into()]).collect();
        self.storages.touch(&stored.storages, &open, &mark).await?;
        let open: BTreeSet<_> = nat_mappings.iter().map(NatMappingShard::name).collect();
        mappings.touch(&stored.mappings, &open, &mark).await?;
        self.confirm().await?;
        self.nat_mappings = NatMappingWriter::new(mappings);
        self.fences.extend(self.open.iter().cloned());
        self.fenced_until = now + FENCE;
        Ok(stored)
    }

    /// Verifies that no other process has claimed meanwhile. A later claim changes the versions of
    /// all open shards again.
    async fn confirm(&mut self) -> Result<(), StoreError> {
        let found = self.storages.get(WRITER).await?;
        let writer = found.and_then(|storage| storage.spec.writer).unwrap_or_default();
        let is_it = Some(&writer.holder) == self.holder.as_ref() && writer.claims == self.claims;
        if is_it { Ok(()) } else { Err(StoreError::Deposed) }
    }

    /// Records shards as open, before the first write to them. Addresses are allocated in order, so
    /// when new shards follow each other fast, some are opened ahead.
    async fn open(&mut self, shards: &[StorageShard]) -> Result<(), StoreError> {
        if shards.iter().all(|shard| self.open.contains(shard)) {
            return Ok(());
        }
        if self.open.len() + shards.len() > MAX_OPEN {
            let nat_mappings = &self.nat_mappings;
            let is_pending = |shard: &NatMappingShard| nat_mappings.is_pending(shard);
            self.open.retain(|shard| shard.nat_mapping().as_ref().is_some_and(is_pending));
        }
        self.open.extend(shards.iter().cloned());
        if self.opened.elapsed() < FAST {
            let new = shards.iter().filter(|shard| !self.storages.knows(&shard.storage()));
            self.open.extend(new.flat_map(|shard| shard.following(AHEAD)));
        }
        self.opened = Instant::now();
        self.record_writer(self.holder.clone()).await
    }

    async fn record_writer(&mut self, holder: Option<String>) -> Result<(), StoreError> {
        let writer = Writer {
            holder: holder.unwrap_or_default(),
            claims: self.claims,
            open: self.open.iter().map(StorageShard::to_string).collect(),
        };
        let spec = IpamStorageSpec { writer: Some(writer), ..IpamStorageSpec::default() };
        self.storages.write(vec![(WRITER.to_owned(), Some(spec))]).await
    }
}

/// The former peers among the changed shards.
fn gone(changed: &BTreeSet<StorageShard>, state: &IpamState) -> Vec<ClusterId> {
    let networks = changed.iter().filter_map(|shard| match shard {
        StorageShard::Networks(peer) => Some(peer),
        StorageShard::Endpoints(..) => None,
    });
    networks.filter(|peer| state.subnets(peer).is_none()).cloned().collect()
}

fn empty_nat_mapping(shard: &NatMappingShard) -> NatMappingSpec {
    NatMappingSpec { cluster_id: shard.cluster().clone(), cluster_mappings: BTreeMap::new() }
}

#[cfg(test)]
mod tests;
