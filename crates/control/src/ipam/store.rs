//! What the address service knows, in the API server, and the right to write it. There is one writer
//! at a time: every write says which version of an object it is about, and whoever begins to write
//! first changes all that the one before may be writing to, so that those writes fail.

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
use tombolo_core::ipam::{Changes, IpamState, NETWORKS, Part, Told, WRITER};
use uuid::Uuid;

use super::{
    kept::Kept,
    teller::{Teller, Turn},
};

/// How many parts are written at a time.
const AT_ONCE: usize = 64;
/// How many parts stay open when another one is opened.
const OPEN: usize = 32;
/// How many parts are opened ahead, and since when that is worth while.
const AHEAD: u32 = 16;
const FAST: Duration = Duration::from_secs(1);
/// How many NatMappings may be behind what is stored.
const BEHIND: usize = 32;

/// How long clusters without a peering are kept from having networks by a write of the one before.
/// Nobody waits for an answer for longer than 15 s, no API server works on one for longer than 60 s.
const FENCED: SignedDuration = SignedDuration::from_mins(3);

/// It can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The API server did not do it, or did not say so.
    #[error("the API server")]
    Api(#[from] kube::Error),
    /// Another process has begun to write.
    #[error("another process writes the addresses in use now")]
    Deposed,
    /// This process stopped in the middle of a write.
    #[error("a write was cut off")]
    Cut,
}

impl StoreError {
    fn is_conflict(&self) -> bool {
        matches!(self, Self::Api(kube::Error::Api(status)) if status.code == 409)
    }
}

pub(super) struct Store {
    client: Client,
    storages: Kept<IpamStorage>,
    /// Of those it owes, the first part or another one is open.
    teller: Teller,
    /// This process, among all that ever write; nothing before it has begun to.
    holder: Option<String>,
    /// What may be written to: the API server knows.
    open: BTreeSet<Part>,
    /// What the writer before this one may still want to make. As long as it is there, it can't.
    fences: BTreeSet<Part>,
    /// Until when it may, where there is no peering.
    fenced_until: Timestamp,
    /// When parts were opened last.
    opened: Instant,
    /// How often this process has made sure that it is the only one.
    claims: u32,
}

/// All that is stored.
pub(super) struct Stored {
    pub(super) storages: Vec<IpamStorage>,
    pub(super) mappings: Vec<NatMapping>,
}

impl Store {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
            storages: Kept::new(client.clone()),
            teller: Teller::new(Kept::new(client.clone())),
            holder: None,
            open: BTreeSet::new(),
            fences: BTreeSet::new(),
            fenced_until: Timestamp::MIN,
            opened: Instant::now(),
            claims: 0,
        }
    }

    /// Becomes the only writer, or makes sure that it still is, and reads all that is stored. From
    /// then on nothing that was sent before can change it any more, by whomever.
    pub(super) async fn claim(&mut self, now: Timestamp) -> Result<Stored, StoreError> {
        loop {
            match self.try_claim(now).await {
                Err(error) if error.is_conflict() => {}
                other => return other,
            }
        }
    }

    /// Writes what has changed in the state, but for what follows from it: the gateways are told of
    /// that in their turn, or here where it is much.
    pub(super) async fn write(
        &mut self,
        state: &mut IpamState,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let Changes { networks, mut parts, told } = state.take_changes();
        for peer in gone(&parts, state) {
            parts.extend(self.left_of(&peer, state));
            self.teller.note_all_of(peer);
        }
        parts.extend(self.lift_fences(state, now));
        let parts: Vec<Part> = parts.into_iter().collect();
        for some in parts.chunks(AT_ONCE) {
            self.write_parts(state, some).await?;
        }
        let told: Vec<Told> = told.into_iter().collect();
        for some in told.chunks(BEHIND) {
            if self.teller.behind() + some.len() > BEHIND {
                self.tell_all(state).await?;
            }
            self.teller.note(some.iter().cloned());
        }
        // At last: the networks of peers may have been in it, too.
        if networks {
            let spec = state.networks_storage();
            self.storages.write(vec![(NETWORKS.to_owned(), Some(spec))]).await?;
        }
        Ok(())
    }

    /// Until when there are objects of clusters without a peering, only to keep others from making them.
    pub(super) fn fences_end(&self, state: &IpamState) -> Option<Timestamp> {
        let is_peer = |part: &Part| state.subnets(part.cluster()).is_some();
        let is_all_peers = self.fences.iter().all(is_peer);
        (!is_all_peers).then_some(self.fenced_until)
    }

    /// Nobody has to be kept any more from making these, which have no peering and are there.
    fn lift_fences(&mut self, state: &IpamState, now: Timestamp) -> Vec<Part> {
        if now < self.fenced_until {
            return Vec::new();
        }
        let is_over = |part: &Part| state.subnets(part.cluster()).is_none();
        let lifted = self.fences.extract_if(.., is_over);
        lifted.filter(|part| self.storages.knows(&part.storage())).collect()
    }

    /// What is there of a peer that is gone, though nothing is in it.
    fn left_of(&self, peer: &ClusterId, state: &IpamState) -> Vec<Part> {
        let parts = self.storages.names().filter_map(Part::from_storage);
        let of_peer = parts.filter(|part| part.cluster() == peer);
        of_peer.filter(|part| state.storage(part).is_none()).collect()
    }

    async fn write_parts(&mut self, state: &IpamState, parts: &[Part]) -> Result<(), StoreError> {
        self.open(parts).await?;
        let is_peer = |part: &Part| state.subnets(part.cluster()).is_some();
        let stays = |part: &Part| {
            self.fences.contains(part) && (matches!(part, Part::Networks(_)) || is_peer(part))
        };
        let storages = parts.iter().map(|part| {
            let empty = || stays(part).then(IpamStorageSpec::default);
            (part.storage(), state.storage(part).or_else(empty))
        });
        self.storages.write(storages.collect()).await
    }

    /// Waits until the gateways are to be told something, or were. Whoever stops waiting misses
    /// nothing.
    pub(super) async fn turn(&mut self) -> Turn {
        self.teller.turn().await
    }

    /// Begins to tell the gateways what they do not know yet.
    pub(super) async fn tell(&mut self, state: &IpamState) -> Result<(), StoreError> {
        let told = self.teller.take();
        let is_open =
            |told: &&Told| self.open.iter().any(|part| part.told().as_ref() == Some(told));
        let closed: Vec<Part> =
            told.iter().filter(|told| !is_open(told)).map(Told::first).collect();
        self.open(&closed).await?;
        let fenced: BTreeSet<Told> = self.fences.iter().filter_map(Part::told).collect();
        let changes = told.into_iter().map(|told| {
            let stays = fenced.contains(&told) && state.subnets(told.cluster()).is_some();
            let empty = || stays.then(|| nothing_mapped(&told));
            (told.name(), state.nat_mapping(&told).or_else(empty))
        });
        self.teller.begin(changes.collect());
        Ok(())
    }

    /// Tells the gateways all that they do not know yet.
    pub(super) async fn tell_all(&mut self, state: &IpamState) -> Result<(), StoreError> {
        while self.teller.is_behind() {
            match self.teller.turn_now().await {
                Turn::Tell => self.tell(state).await?,
                Turn::Told(outcome) => outcome?,
            }
        }
        Ok(())
    }

    /// Nothing is written any more: the next one has nothing to keep from it.
    pub(super) async fn close(&mut self, state: &IpamState) -> Result<(), StoreError> {
        self.tell_all(state).await?;
        self.open.clear();
        self.say_who_writes(self.holder.clone()).await
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
        self.say_who_writes(Some(holder.clone())).await?;
        // Not before: who never was the one can't have been deposed.
        self.holder = Some(holder);

        let mut mappings = Kept::new(self.client.clone());
        let mut stored =
            Stored { storages: self.storages.read().await?, mappings: mappings.read().await? };
        let mark = format!("{}/{}", self.holder.as_deref().unwrap_or_default(), self.claims);
        for part in &self.open {
            if !self.storages.knows(&part.storage()) {
                stored.storages.push(IpamStorage::new(&part.storage(), IpamStorageSpec::default()));
            }
        }
        let told: BTreeSet<Told> = self.open.iter().filter_map(Part::told).collect();
        for told in told.iter().filter(|told| !mappings.knows(&told.name())) {
            stored.mappings.push(NatMapping::new(&told.name(), nothing_mapped(told)));
        }
        let open: BTreeSet<_> =
            self.open.iter().map(Part::storage).chain([NETWORKS.into()]).collect();
        self.storages.touch(&stored.storages, &open, &mark).await?;
        let open: BTreeSet<_> = told.iter().map(Told::name).collect();
        mappings.touch(&stored.mappings, &open, &mark).await?;
        self.confirm().await?;
        self.teller = Teller::new(mappings);
        self.fences.extend(self.open.iter().cloned());
        self.fenced_until = now + FENCED;
        Ok(stored)
    }

    /// Nobody has begun to write while this one did: whoever begins later gives all that is open yet
    /// another version.
    async fn confirm(&mut self) -> Result<(), StoreError> {
        let found = self.storages.get(WRITER).await?;
        let writer = found.and_then(|storage| storage.spec.writer).unwrap_or_default();
        let is_it = Some(&writer.holder) == self.holder.as_ref() && writer.claims == self.claims;
        if is_it { Ok(()) } else { Err(StoreError::Deposed) }
    }

    /// Before parts are written to, the API server knows that they may be. Addresses are given one
    /// after the other: where new parts follow each other fast, some are opened at once.
    async fn open(&mut self, parts: &[Part]) -> Result<(), StoreError> {
        if parts.iter().all(|part| self.open.contains(part)) {
            return Ok(());
        }
        if self.open.len() + parts.len() > OPEN {
            let teller = &self.teller;
            self.open.retain(|part| part.told().is_some_and(|told| teller.owes(&told)));
        }
        self.open.extend(parts.iter().cloned());
        if self.opened.elapsed() < FAST {
            let new = parts.iter().filter(|part| !self.storages.knows(&part.storage()));
            self.open.extend(new.flat_map(|part| part.following(AHEAD)));
        }
        self.opened = Instant::now();
        self.say_who_writes(self.holder.clone()).await
    }

    async fn say_who_writes(&mut self, holder: Option<String>) -> Result<(), StoreError> {
        let writer = Writer {
            holder: holder.unwrap_or_default(),
            claims: self.claims,
            open: self.open.iter().map(Part::to_string).collect(),
        };
        let spec = IpamStorageSpec { writer: Some(writer), ..IpamStorageSpec::default() };
        self.storages.write(vec![(WRITER.to_owned(), Some(spec))]).await
    }
}

/// The peers whose networks are to be forgotten.
fn gone(changed: &BTreeSet<Part>, state: &IpamState) -> Vec<ClusterId> {
    let networks = changed.iter().filter_map(|part| match part {
        Part::Networks(peer) => Some(peer),
        Part::Endpoints(..) => None,
    });
    networks.filter(|peer| state.subnets(peer).is_none()).cloned().collect()
}

fn nothing_mapped(told: &Told) -> NatMappingSpec {
    NatMappingSpec { cluster_id: told.cluster().clone(), cluster_mappings: BTreeMap::new() }
}

#[cfg(test)]
mod tests;
