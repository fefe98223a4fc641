//! The ForeignClusters, as discovery sees and changes them.

use std::{
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
use tombolo_core::discovery::{
    Here, Listed, MOST_FOUND, Neighbour, Neighbours, Searcher, Sighting, Sightings, entry_listed,
    entry_seen, is_found_in, is_orphan, is_undecided, kind, listed, may_be_joined, superseded,
};
use tombolo_runtime::{
    metrics::{self, Step},
    observe::Watched,
    writer,
};
use tracing::{info, warn};

use crate::foreign_cluster;

pub(super) const MANAGER: &str = "liqo-discovery";
/// Those who make entries: what they have set nobody has asked for.
const MAKERS: [&str; 2] = [MANAGER, foreign_cluster::MANAGER];
/// When to try again to delete what could not be deleted.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Entries that are written or deleted at the same time.
const AT_ONCE: usize = 16;

pub(super) struct Entries {
    api: Api<ForeignCluster>,
    known: Watched<ForeignCluster>,
    us: ClusterId,
    sightings: Mutex<Sightings>,
    /// Entries with which somebody wants a peering, by UID, and the versions that say so.
    wanted: Mutex<BTreeMap<String, Option<String>>>,
    /// Whether it has been said that there are too many.
    is_full: AtomicBool,
}

impl Entries {
    /// Watches from now on.
    pub fn start(client: Client, us: ClusterId) -> Self {
        let api = Api::<ForeignCluster>::all(client);
        let known = Watched::new(api.clone(), watcher::Config::default());
        Self {
            api,
            known,
            us,
            sightings: Mutex::default(),
            wanted: Mutex::default(),
            is_full: AtomicBool::new(false),
        }
    }

    /// Told of whenever one has changed.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.known.changes()
    }

    /// Waits until they are known.
    pub async fn known(&self) {
        self.known.filled().await;
    }

    /// These clusters are there in the local network. Says of which that is still to be written.
    pub async fn seen<'a>(
        &self,
        neighbours: impl Iterator<Item = (&'a String, &'a Neighbour)>,
        here: &Here<'_>,
    ) -> BTreeSet<String> {
        let (mut known, now) = (self.known.all(), Timestamp::now());
        let sightings: Vec<(String, Sighting)> = neighbours
            .map(|(name, neighbour)| {
                let sighting = neighbour.sighting(&known, here, now);
                if let Some(entry) = entry_seen(&neighbour.announcement, &known, here) {
                    let ttl = neighbour.announcement.ttl;
                    lock(&self.sightings).note(entry, neighbour.seen, ttl);
                }
                if let Sighting::New(entry) = &sighting {
                    // So that two of one name do not become one.
                    known.push(Arc::new((**entry).clone()));
                }
                (name.clone(), sighting)
            })
            .collect();
        let write = async |(name, sighting): (String, Sighting)| {
            (self.write(sighting).await == Written::NotYet).then_some(name)
        };
        let writes = stream::iter(sightings).map(write).buffer_unordered(AT_ONCE);
        writes.filter_map(async |name| name).collect().await
    }

    /// Each cluster is to be joined: so are those of these that were found before, unless somebody has
    /// ever said whether to. Says of which of all entries, by UID, that is decided now; of those in
    /// `decided` it was before.
    pub async fn join<'a>(
        &self,
        neighbours: impl Iterator<Item = (&'a String, &'a Neighbour)>,
        here: &Here<'_>,
        decided: &BTreeSet<String>,
    ) -> BTreeSet<String> {
        let known = self.known.all();
        let open: Vec<(String, String)> = neighbours
            .filter_map(|(_, it)| entry_seen(&it.announcement, &known, here))
            .filter(|entry| kind(entry) == DiscoveryType::Lan && !entry.spec.join)
            .filter_map(|entry| Some((entry.name_any(), entry.uid()?)))
            .filter(|(_, uid)| !decided.contains(uid))
            .collect();
        let joins = |entry: &ForeignCluster| here.joins(entry, &MAKERS);
        let decide = async |(name, uid): (String, String)| match self.decide(&name, joins).await {
            Ok(is_decided) => is_decided.then_some(uid),
            Err(error) => {
                warn!(cluster = name, "join the cluster: {error}");
                None
            }
        };
        let decisions = stream::iter(open).map(decide).buffer_unordered(AT_ONCE);
        let mut all: BTreeSet<String> = decisions.filter_map(async |uid| uid).collect().await;
        all.extend(known.iter().filter_map(|it| it.uid()).filter(|uid| decided.contains(uid)));
        all
    }

    /// A domain lists a cluster, and these are known. Says which entry of that domain there is now.
    pub async fn listed(
        &self,
        cluster: &Listed,
        domain: &SearchDomain,
        domains: &BTreeSet<String>,
        known: &[ForeignCluster],
        config: &DiscoveryConfig,
    ) -> Option<String> {
        for entry in superseded(cluster, domain, known, &self.us) {
            let name = entry.name_any();
            info!(cluster = name, "it has another entry, or is this very cluster");
            self.delete(entry).await;
        }
        let autojoin = domain.spec.autojoin.unwrap_or(config.autojoin);
        let (searcher, now) =
            (Searcher { us: &self.us, domain, domains, autojoin }, Timestamp::now());
        let sighting = listed(cluster, &searcher, known, now);
        if let Some(entry) = entry_listed(cluster, domain, known)
            && matches!(sighting, Sighting::Again(_) | Sighting::Unchanged)
        {
            lock(&self.sightings).note(entry, now, cluster.ttl);
            // Before it is taken over: then it is not known any more that it was not of this domain.
            if autojoin && kind(entry) != DiscoveryType::Wan && !self.is_joined(entry).await {
                return None;
            }
        }
        match self.write(sighting).await {
            Written::Entry(name) => Some(name),
            Written::Nothing | Written::NotYet => None,
        }
    }

    /// Joins a cluster unless somebody has ever said whether to. Says whether that is decided.
    async fn is_joined(&self, entry: &ForeignCluster) -> bool {
        let name = entry.name_any();
        let decided = self.decide(&name, |entry| may_be_joined(entry, &MAKERS)).await;
        decided.unwrap_or_else(|error| {
            warn!(cluster = name, "join the cluster: {error}");
            false
        })
    }

    /// Deletes what has expired of the local network, and of domains that are not there any more, and
    /// says when the next one will have. Whoever is there stays, whatever its entry says.
    pub async fn collect_lan(
        &self,
        there: &Neighbours,
        here: &Here<'_>,
        domains: &BTreeSet<String>,
        watching: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let known = self.known.all();
        let stays = |(_, it): (_, &Neighbour)| entry_seen(&it.announcement, &known, here);
        let stays: BTreeSet<Option<&str>> =
            there.iter().filter_map(stays).map(|entry| entry.metadata.name.as_deref()).collect();
        lock(&self.sightings).keep_only(&known);
        let uids: BTreeSet<_> = known.iter().filter_map(|it| it.metadata.uid.as_ref()).collect();
        lock(&self.wanted).retain(|uid, _| uids.contains(uid));
        let goes = |entry: &ForeignCluster| {
            let is_lan = kind(entry) == DiscoveryType::Lan;
            is_lan && !stays.contains(&entry.metadata.name.as_deref()) || is_orphan(entry, domains)
        };
        self.collect(goes, watching, now).await
    }

    /// Deletes what of a domain has expired, and says when the next one will have.
    pub async fn collect_of(
        &self,
        domain: &SearchDomain,
        watching: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        self.collect(|entry| is_found_in(entry, domain), watching, now).await
    }

    /// Names of the entries of a domain.
    pub fn names_of(&self, domain: &SearchDomain) -> Vec<String> {
        let known = self.all();
        let of_it = known.iter().filter(|entry| is_found_in(entry, domain));
        of_it
            .filter(|entry| entry.metadata.deletion_timestamp.is_none())
            .map(ResourceExt::name_any)
            .collect()
    }

    /// Deletes what has expired, and says when the next one will have, or is to be tried again.
    async fn collect(
        &self,
        is_one: impl Fn(&ForeignCluster) -> bool,
        watching: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let (mut next, mut expired) = (None, Vec::new());
        for entry in self.known.all() {
            let expiry = lock(&self.sightings).expire_at(&entry, watching, now);
            let Some(expiry) = expiry else { continue };
            if entry.metadata.deletion_timestamp.is_some() || !is_one(&entry) {
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
                info!(cluster = name, "not seen for longer than its announcement holds");
                self.delete(&entry).await
            };
            if is_settled { None } else { retry }
        };
        let again = stream::iter(expired).map(delete).buffer_unordered(AT_ONCE);
        let again: Vec<Timestamp> = again.filter_map(async |time| time).collect().await;
        next.into_iter().chain(again).min()
    }

    /// Whether somebody wants a peering with that cluster, and it is not only that each is joined.
    async fn is_wanted(&self, entry: &ForeignCluster) -> bool {
        let (Some(uid), version) = (entry.uid(), entry.resource_version()) else { return false };
        if !entry.spec.join || lock(&self.wanted).get(&uid) == Some(&version) {
            return entry.spec.join;
        }
        // Who has set what is not among what is watched.
        let now = match self.api.get_opt(&entry.name_any()).await {
            Ok(now) => now,
            Err(error) => {
                warn!(cluster = entry.name_any(), "see who wants a peering with it: {error}");
                return true;
            }
        };
        // If it is another one, or has changed, then it is not deleted.
        let is_wanted = now
            .is_some_and(|now| now.resource_version() == version && !is_undecided(&now, &MAKERS));
        if is_wanted {
            lock(&self.wanted).insert(uid, version);
        }
        is_wanted
    }

    /// Says whether it is gone.
    async fn delete(&self, entry: &ForeignCluster) -> bool {
        let name = entry.name_any();
        match writer::delete_if_unchanged(&self.api, entry).await {
            // It was seen again, or somebody has changed it: that is looked at first.
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => warn!(cluster = name, "delete the ForeignCluster: {error}"),
            Ok(()) => {
                info!(cluster = name, "deleted the ForeignCluster");
                return true;
            }
        }
        false
    }

    /// Writes what a sighting leads to.
    async fn write(&self, sighting: Sighting) -> Written {
        let (entry, done) = match sighting {
            Sighting::LeftAlone | Sighting::Unchanged => return Written::Nothing,
            Sighting::TooSoon => return Written::NotYet,
            Sighting::TooMany => {
                if !self.is_full.swap(true, Ordering::Relaxed) {
                    warn!(
                        "{MOST_FOUND} clusters of the local network are known: no others become so"
                    );
                }
                return Written::Nothing;
            }
            Sighting::New(entry) => (entry.name_any(), self.make(&entry).await),
            Sighting::Again(entry) => (entry.name_any(), self.refresh(&entry).await.map(|()| true)),
        };
        match done {
            Ok(true) => Written::Entry(entry),
            Ok(false) => Written::NotYet,
            Err(error) => {
                warn!(cluster = entry, "write the ForeignCluster: {error}");
                Written::NotYet
            }
        }
    }

    /// All that are known.
    pub fn all(&self) -> Vec<ForeignCluster> {
        self.known.all().iter().map(|entry| (**entry).clone()).collect()
    }

    /// Joins a cluster unless somebody has ever said whether to. Says whether that is decided: not if
    /// the entry has changed meanwhile.
    async fn decide(
        &self,
        name: &str,
        joins: impl Fn(&ForeignCluster) -> bool,
    ) -> kube::Result<bool> {
        let Some(entry) = self.api.get_opt(name).await? else { return Ok(false) };
        if !joins(&entry) {
            return Ok(true);
        }
        let joined = self.merge(&entry, json!({ "spec": { "join": true } })).await?;
        if joined {
            info!(cluster = name, "each cluster is to be joined now: so is this one");
        }
        Ok(joined)
    }

    /// Pins another certificate, and says whether it has: not if the entry has changed meanwhile.
    async fn pin(&self, entry: &ForeignCluster, to: Fingerprint) -> kube::Result<bool> {
        let noted = entry.annotations().get(PINNED_ANNOTATION);
        let patch = json!({
            "metadata": { "annotations": { PINNED_ANNOTATION: noted } },
            "spec": { "fingerprint": to },
        });
        let pinned = self.merge(entry, patch).await?;
        if pinned {
            info!(cluster = entry.name_any(), "it has another certificate");
        }
        Ok(pinned)
    }

    /// Changes an entry, and says whether it has: not if the entry has changed meanwhile.
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

    /// Says whether it was made.
    async fn make(&self, entry: &ForeignCluster) -> kube::Result<bool> {
        let params =
            PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
        let start = Instant::now();
        match self.api.create(&params, entry).await {
            // One of that name is there, only not seen here yet.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(error),
            Ok(made) => {
                metrics::took(Step::Create, start.elapsed());
                self.is_full.store(false, Ordering::Relaxed);
                info!(cluster = made.name_any(), "made a ForeignCluster");
                Ok(true)
            }
        }
    }

    /// Applies what was seen. Whether to peer is not among it: that is somebody else's to say.
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
        // Deleted meanwhile: it is not made again of what was seen before.
        writer::absent_is_fine(applied.map(drop))
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was written.
#[derive(PartialEq, Eq)]
enum Written {
    /// The entry of this name.
    Entry(String),
    /// There was nothing to write.
    Nothing,
    /// It has to be tried again.
    NotYet,
}
