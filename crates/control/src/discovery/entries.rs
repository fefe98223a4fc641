//! The ForeignClusters that discovery reads and writes.

use std::{
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use futures::{StreamExt, stream};
use jiff::{SignedDuration, Timestamp};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
    runtime::watcher,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tombolo_api::{
    ClusterId, Fingerprint,
    config::DiscoveryConfig,
    discovery::{DiscoveryType, ForeignCluster, SearchDomain},
    names::PINNED_ANNOTATION,
};
use tombolo_core::{
    discovery::{
        EntryChange, Expiries, ListedCluster, LocalCluster, MAX_DISCOVERED, Neighbour, Neighbours,
        SearchContext, entry_announced, entry_listed, is_found_in, is_orphaned, is_superseded,
        is_undecided, listed, may_be_joined,
    },
    view::{Domain, Entry},
};
use tombolo_runtime::{
    metrics::{self, Step},
    observe::Watched,
    writer,
};
use tracing::{info, warn};

use crate::foreign_cluster;

pub(super) const MANAGER: &str = "liqo-discovery";
/// Field managers that create entries: what they set was not requested by a user.
const CREATORS: [&str; 2] = [MANAGER, foreign_cluster::MANAGER];
/// Retry interval of failed deletions.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Concurrent writes and deletions.
const MAX_CONCURRENT: usize = 16;

pub(super) struct Entries {
    api: Api<ForeignCluster>,
    known: Watched<ForeignCluster>,
    us: ClusterId,
    expiries: Mutex<Expiries>,
    /// Entries for which a user wants a peering, by UID, and the resource versions that show it.
    wanted: Mutex<BTreeMap<String, Option<String>>>,
    /// Whether the limit has been logged.
    is_full: AtomicBool,
}

impl Entries {
    /// Starts watching the ForeignClusters.
    pub fn start(client: Client, us: ClusterId) -> Self {
        let api = Api::<ForeignCluster>::all(client);
        let known = Watched::new(api.clone(), watcher::Config::default());
        Self {
            api,
            known,
            us,
            expiries: Mutex::default(),
            wanted: Mutex::default(),
            is_full: AtomicBool::new(false),
        }
    }

    /// Signals every change of a ForeignCluster.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.known.changes()
    }

    /// Waits until the ForeignClusters are listed.
    pub async fn synced(&self) {
        self.known.synced().await;
    }

    /// Writes the entries of clusters announced in the local network. Returns the names of those
    /// that are still to be written.
    pub async fn announced<'a>(
        &self,
        neighbours: impl Iterator<Item = (&'a String, &'a Neighbour)>,
        local: &LocalCluster<'_>,
    ) -> BTreeSet<String> {
        let changes = self.changes_by(&neighbours.collect::<Vec<_>>(), local);
        let write = async |(name, change): (String, EntryChange)| {
            (self.write(change).await == WriteOutcome::Retry).then_some(name)
        };
        let writes = stream::iter(changes).map(write).buffer_unordered(MAX_CONCURRENT);
        writes.filter_map(async |name| name).collect().await
    }

    /// The changes for these neighbours, by name. Records that they were announced.
    fn changes_by(
        &self,
        neighbours: &[(&String, &Neighbour)],
        local: &LocalCluster<'_>,
    ) -> Vec<(String, EntryChange)> {
        let (entries, now) = (self.known.all(), Timestamp::now());
        let created = vec![OnceCell::new(); neighbours.len()];
        let mut known = views(&entries);
        let changes = neighbours.iter().zip(&created).map(|((name, neighbour), created)| {
            let change = neighbour.entry_change(&known, local, now);
            if let Some(entry) = entry_announced(&neighbour.announcement, &known, local) {
                let ttl = neighbour.announcement.ttl;
                lock(&self.expiries).record(entry, neighbour.seen, ttl);
            }
            if let EntryChange::Create(entry) = &change {
                // So that two clusters of the same name get different entries.
                let entry = created.get_or_init(|| ForeignCluster::clone(entry));
                known.push(Entry::from_resource(entry));
            }
            ((*name).clone(), change)
        });
        changes.collect()
    }

    /// Applies `autojoin` to neighbours that were discovered earlier, unless a user has ever set
    /// `spec.join`. `decided` has the UIDs of entries that were decided before; returns those that
    /// are decided now.
    pub async fn join<'a>(
        &self,
        neighbours: impl Iterator<Item = (&'a String, &'a Neighbour)>,
        local: &LocalCluster<'_>,
        decided: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let entries = self.known.all();
        let known = views(&entries);
        let open: Vec<(String, String)> = neighbours
            .filter_map(|(_, it)| entry_announced(&it.announcement, &known, local))
            .filter(|entry| entry.kind == DiscoveryType::Lan && !entry.join)
            .filter_map(|entry| Some((entry.name.to_owned(), entry.uid?.to_owned())))
            .filter(|(_, uid)| !decided.contains(uid))
            .collect();
        let joins = |entry: &Entry<'_>| local.joins(entry, &CREATORS);
        let decide = async |(name, uid): (String, String)| match self.decide(&name, joins).await {
            Ok(is_decided) => is_decided.then_some(uid),
            Err(error) => {
                warn!(cluster = name, "can't set spec.join of the ForeignCluster: {error}");
                None
            }
        };
        let decisions = stream::iter(open).map(decide).buffer_unordered(MAX_CONCURRENT);
        let mut all: BTreeSet<String> = decisions.filter_map(async |uid| uid).collect().await;
        let there = known.iter().filter_map(|it| it.uid).filter(|uid| decided.contains(*uid));
        all.extend(there.map(str::to_owned));
        all
    }

    /// Writes the entries of the clusters that a domain lists. Returns the names of the entries
    /// that were written.
    pub async fn listed(
        &self,
        clusters: impl Iterator<Item = &ListedCluster>,
        domain: &SearchDomain,
        domains: &BTreeSet<String>,
        config: &DiscoveryConfig,
    ) -> Vec<String> {
        let entries = self.known.all();
        let (known, domain) = (views(&entries), &Domain::from_resource(domain));
        let autojoin = domain.autojoin.unwrap_or(config.autojoin);
        let context = SearchContext { us: &self.us, domain, domains, autojoin };
        let mut names = Vec::new();
        for cluster in clusters {
            for (entry, view) in entries.iter().zip(&known) {
                if is_superseded(view, cluster, &context, &known) {
                    let name = view.name;
                    info!(
                        cluster = name,
                        "deleting a ForeignCluster that is a duplicate or this cluster"
                    );
                    self.delete(entry).await;
                }
            }
            names.extend(self.write_listed(cluster, &context, &known).await);
        }
        names
    }

    /// Writes the entry of a listed cluster. Returns the name of the entry if it was written.
    async fn write_listed(
        &self,
        cluster: &ListedCluster,
        context: &SearchContext<'_>,
        known: &[Entry<'_>],
    ) -> Option<String> {
        let now = Timestamp::now();
        let change = listed(cluster, context, known, now);
        if let Some(entry) = entry_listed(cluster, context.domain, known)
            && matches!(change, EntryChange::Update(_) | EntryChange::Unchanged)
        {
            lock(&self.expiries).record(entry, now, cluster.ttl);
            // Before the entry is assigned to this domain: afterwards its origin is lost.
            let is_taken_over = entry.kind != DiscoveryType::Wan;
            if context.autojoin && is_taken_over && !self.set_join(entry.name).await {
                return None;
            }
        }
        match self.write(change).await {
            WriteOutcome::Entry(name) => Some(name),
            WriteOutcome::Nothing | WriteOutcome::Retry => None,
        }
    }

    /// Sets `spec.join` unless a user has ever set it. Returns `false` if it has to be retried.
    async fn set_join(&self, name: &str) -> bool {
        let decided = self.decide(name, |entry| may_be_joined(entry, &CREATORS)).await;
        decided.unwrap_or_else(|error| {
            warn!(cluster = name, "can't set spec.join of the ForeignCluster: {error}");
            false
        })
    }

    /// Deletes expired entries of the local network, and of domains that no longer exist. Entries
    /// of current neighbours stay. Returns the time of the next expiry.
    pub async fn collect_lan(
        &self,
        there: &Neighbours,
        local: &LocalCluster<'_>,
        domains: &BTreeSet<String>,
        searching_since: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let entries = self.known.all();
        let known = views(&entries);
        let stays = |(_, it): (_, &Neighbour)| entry_announced(&it.announcement, &known, local);
        let stays: BTreeSet<&str> =
            there.iter().filter_map(stays).map(|entry| entry.name).collect();
        lock(&self.expiries).keep_only(&known);
        let uids: BTreeSet<&str> = known.iter().filter_map(|it| it.uid).collect();
        lock(&self.wanted).retain(|uid, _| uids.contains(uid.as_str()));
        let goes = |entry: &Entry<'_>| {
            let is_lan = entry.kind == DiscoveryType::Lan;
            is_lan && !stays.contains(entry.name) || is_orphaned(entry, domains)
        };
        self.collect(goes, searching_since, now).await
    }

    /// Deletes expired entries of a domain. Returns the time of the next expiry.
    pub async fn collect_of(
        &self,
        domain: &SearchDomain,
        searching_since: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let domain = Domain::from_resource(domain);
        self.collect(|entry| is_found_in(entry, &domain), searching_since, now).await
    }

    /// Names of the entries of a domain.
    pub fn names_of(&self, domain: &SearchDomain) -> Vec<String> {
        let (entries, domain) = (self.known.all(), Domain::from_resource(domain));
        let is_one = |entry: &Entry<'_>| is_found_in(entry, &domain) && entry.deleted.is_none();
        let known = views(&entries).into_iter().filter(is_one);
        known.map(|entry| entry.name.to_owned()).collect()
    }

    /// Deletes expired entries. Returns the time of the next expiry, or of a retry.
    async fn collect(
        &self,
        is_one: impl Fn(&Entry<'_>) -> bool,
        searching_since: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let (mut next, mut expired) = (None, Vec::new());
        for entry in self.known.all() {
            let view = Entry::from_resource(&entry);
            let expiry = lock(&self.expiries).expire_at(&view, searching_since, now);
            let Some(expiry) = expiry else { continue };
            if view.deleted.is_some() || !is_one(&view) {
                continue;
            }
            if expiry > now {
                next = Some(next.map_or(expiry, |next: Timestamp| next.min(expiry)));
            } else {
                expired.push(entry);
            }
        }
        let retry = now.checked_add(RETRY).ok();
        let delete = async |entry: Arc<ForeignCluster>| {
            let is_settled = self.is_wanted(&entry).await || {
                let name = entry.name_any();
                info!(cluster = name, "the announcement or DNS record has expired");
                self.delete(&entry).await
            };
            if is_settled { None } else { retry }
        };
        let again = stream::iter(expired).map(delete).buffer_unordered(MAX_CONCURRENT);
        let again: Vec<Timestamp> = again.filter_map(async |time| time).collect().await;
        next.into_iter().chain(again).min()
    }

    /// Whether a user wants a peering with that cluster, and `join` was not set by `autojoin` only.
    async fn is_wanted(&self, entry: &ForeignCluster) -> bool {
        let (Some(uid), version) = (entry.uid(), entry.resource_version()) else { return false };
        if !entry.spec.join || lock(&self.wanted).get(&uid) == Some(&version) {
            return entry.spec.join;
        }
        // The watch drops managedFields.
        let now = match self.api.get_opt(&entry.name_any()).await {
            Ok(now) => now,
            Err(error) => {
                warn!(cluster = entry.name_any(), "can't read who has set spec.join: {error}");
                return true;
            }
        };
        // An entry that was replaced or has changed is not deleted anyway.
        let is_wanted = now.is_some_and(|now| {
            now.resource_version() == version
                && !is_undecided(&Entry::from_resource(&now), &CREATORS)
        });
        if is_wanted {
            lock(&self.wanted).insert(uid, version);
        }
        is_wanted
    }

    /// Returns whether the entry is deleted.
    async fn delete(&self, entry: &ForeignCluster) -> bool {
        let name = entry.name_any();
        match writer::delete_if_unchanged(&self.api, entry).await {
            // It was announced again, or somebody has changed it: it is checked again first.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => warn!(cluster = name, "can't delete the ForeignCluster: {error}"),
            Ok(()) => {
                info!(cluster = name, "deleted the ForeignCluster");
                return true;
            }
        }
        false
    }

    /// Applies a change.
    async fn write(&self, change: EntryChange) -> WriteOutcome {
        let (entry, done) = match change {
            EntryChange::Ignored | EntryChange::Unchanged => return WriteOutcome::Nothing,
            EntryChange::Deferred => return WriteOutcome::Retry,
            EntryChange::TooMany => {
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    warn!(
                        "ignoring new clusters: the limit of {MAX_DISCOVERED} for mDNS is reached"
                    );
                }
                return WriteOutcome::Nothing;
            }
            EntryChange::Create(entry) => (entry.name_any(), self.create(&entry).await),
            EntryChange::Update(entry) => {
                (entry.name_any(), self.refresh(&entry).await.map(|()| true))
            }
        };
        match done {
            Ok(true) => WriteOutcome::Entry(entry),
            Ok(false) => WriteOutcome::Retry,
            Err(error) => {
                warn!(cluster = entry, "can't write the ForeignCluster: {error}");
                WriteOutcome::Retry
            }
        }
    }

    /// All ForeignClusters.
    pub fn all(&self) -> Vec<Arc<ForeignCluster>> {
        self.known.all()
    }

    /// Sets `spec.join` unless a user has ever set it. Returns whether that is decided: not if the
    /// entry has changed concurrently.
    async fn decide(&self, name: &str, joins: impl Fn(&Entry<'_>) -> bool) -> kube::Result<bool> {
        let Some(entry) = self.api.get_opt(name).await? else { return Ok(false) };
        if !joins(&Entry::from_resource(&entry)) {
            return Ok(true);
        }
        let joined = self.merge(&entry, json!({ "spec": { "join": true } })).await?;
        if joined {
            info!(cluster = name, "set spec.join by autojoin");
        }
        Ok(joined)
    }

    /// Pins another certificate. Returns `false` if the entry has changed concurrently.
    async fn pin(&self, entry: &ForeignCluster, to: Fingerprint) -> kube::Result<bool> {
        let noted = entry.annotations().get(PINNED_ANNOTATION);
        let patch = json!({
            "metadata": { "annotations": { PINNED_ANNOTATION: noted } },
            "spec": { "fingerprint": to },
        });
        let pinned = self.merge(entry, patch).await?;
        if pinned {
            info!(cluster = entry.name_any(), "changed the pinned certificate");
        }
        Ok(pinned)
    }

    /// Patches an entry. Returns `false` if the entry has changed concurrently.
    async fn merge(&self, entry: &ForeignCluster, mut patch: Value) -> kube::Result<bool> {
        patch["metadata"]["uid"] = json!(entry.uid());
        patch["metadata"]["resourceVersion"] = json!(entry.resource_version());
        let params =
            PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        match self.api.patch(&entry.name_any(), &params, &Patch::Merge(patch)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether the entry was created.
    async fn create(&self, entry: &ForeignCluster) -> kube::Result<bool> {
        let params =
            PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let start = Instant::now();
        match self.api.create(&params, entry).await {
            // An entry of that name exists, which the watch does not show yet.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
            Ok(created) => {
                metrics::observe_step(Step::Create, start.elapsed());
                self.is_full.store(false, Ordering::Relaxed);
                info!(cluster = created.name_any(), "created a ForeignCluster");
                Ok(true)
            }
        }
    }

    /// Applies an update. `spec.join` is not part of it: that belongs to the user.
    async fn refresh(&self, entry: &ForeignCluster) -> kube::Result<()> {
        if let Some(fingerprint) = entry.spec.fingerprint
            && !self.pin(entry, fingerprint).await?
        {
            return Ok(());
        }
        let mut value = serde_json::to_value(entry).map_err(kube::Error::SerdeError)?;
        if let Some(spec) = value["spec"].as_object_mut() {
            spec.remove("join");
            spec.remove("fingerprint");
        }
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
            metadata["annotations"].as_object_mut().map(|all| all.remove(PINNED_ANNOTATION));
        }
        let params = PatchParams::apply(MANAGER).force();
        let applied = self.api.patch(&entry.name_any(), &params, &Patch::Apply(value)).await;
        // Deleted concurrently: not created again from outdated data.
        writer::absent_is_fine(applied.map(drop))
    }
}

/// The views of these entries.
pub(super) fn views(entries: &[Arc<ForeignCluster>]) -> Vec<Entry<'_>> {
    entries.iter().map(|entry| Entry::from_resource(entry)).collect()
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Outcome of a write.
#[derive(PartialEq, Eq)]
enum WriteOutcome {
    /// The entry of this name was written.
    Entry(String),
    /// There was nothing to write.
    Nothing,
    /// To be retried.
    Retry,
}
