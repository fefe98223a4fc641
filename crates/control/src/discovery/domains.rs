//! The SearchDomains: each is searched again and again, beside everything else.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::{Api, Client, ResourceExt, runtime::watcher};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tombolo_api::{
    ClusterIdentity,
    config::DiscoveryConfig,
    discovery::{ForeignCluster, SearchDomain},
};
use tombolo_core::discovery::{Listed, Search, is_introduced, next_search};
use tombolo_runtime::{observe::Watched, task::Tasks, writer};
use tracing::{debug, info, warn};

use super::{
    dns::{self, Servers},
    entries::{Entries, MANAGER},
};
use crate::foreign_cluster::auth_service::AuthService;

/// Auth services that are asked at the same time.
const AT_ONCE: usize = 16;
/// A search that ends without a result was of what no search can take.
const AFTER_A_CRASH: Duration = Duration::from_secs(30);

pub(super) struct Domains {
    api: Api<SearchDomain>,
    watched: Watched<SearchDomain>,
    changes: watch::Receiver<u64>,
    servers: Servers,
    searched: BTreeMap<Key, Searched>,
    searches: Tasks<(Key, Search)>,
}

/// UID of a SearchDomain, and the domain that it names.
type Key = (String, String);

/// What is known of a domain.
struct Searched {
    /// Since when it is searched.
    since: Timestamp,
    /// When it is searched next; while it is being searched that is not known.
    next: Option<Instant>,
}

impl Domains {
    /// Watches from now on.
    pub fn start(client: Client, servers: Servers) -> Self {
        let api = Api::<SearchDomain>::all(client);
        let watched = Watched::new(api.clone(), watcher::Config::default());
        let (changes, searched) = (watched.changes(), BTreeMap::new());
        Self { api, watched, changes, servers, searched, searches: Tasks::new() }
    }

    /// Waits until they are known.
    pub async fn known(&self) {
        self.watched.filled().await;
    }

    /// UIDs of all that there are.
    pub fn uids(&self) -> BTreeSet<String> {
        self.watched.all().iter().filter_map(|domain| domain.uid()).collect()
    }

    /// Searches whatever it is time for, and waits for the next search that is over. Nothing is
    /// lost if that is waited for no longer.
    pub async fn search(&mut self, entries: &Entries) -> (SearchDomain, Search) {
        loop {
            let next = self.begin(entries);
            tokio::select! {
                Some(done) = self.searches.join_next() => match done {
                    Ok((key, search)) => {
                        if let Some(domain) = self.domain(&key) {
                            return (domain, search);
                        }
                    }
                    Err(_) => {
                        let broken = self.searched.values_mut().filter(|it| it.next.is_none());
                        broken.for_each(|it| it.next = Some(Instant::now() + AFTER_A_CRASH));
                    }
                },
                Ok(()) = self.changes.changed() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// All are to be searched anew: something was configured.
    pub fn search_now(&mut self) {
        let waiting = self.searched.values_mut().filter(|searched| searched.next.is_some());
        waiting.for_each(|searched| searched.next = Some(Instant::now()));
    }

    /// A search is over: writes what was found, and what the domain's status says of it.
    pub async fn note(
        &mut self,
        domain: &SearchDomain,
        search: &Search,
        entries: &Entries,
        config: &DiscoveryConfig,
    ) {
        let (mut names, known, all) = (Vec::new(), entries.all(), self.uids());
        for cluster in search.answer.iter().flat_map(|found| &found.clusters) {
            names.extend(entries.listed(cluster, domain, &all, &known, config).await);
        }
        let now = Timestamp::now();
        let key = key(domain);
        let since = self.searched.get(&key).map_or(now, |searched| searched.since);
        // Only now, so that what has just been found again does not go.
        let expiry = entries.collect_of(domain, since, now).await;
        let next = Some(Instant::now() + next_search(search, expiry, config, now));
        self.searched.insert(key, Searched { since, next });
        names.extend(entries.names_of(domain));
        self.report(domain, search, names, now).await;
    }

    async fn report(
        &self,
        domain: &SearchDomain,
        search: &Search,
        names: Vec<String>,
        now: Timestamp,
    ) {
        let status = search.status(domain, names, now);
        if domain.status.as_ref() == Some(&status) {
            return;
        }
        let name = domain.name_any();
        for said in &status.conditions {
            info!(domain = name, reason = said.reason, "{}", said.message);
        }
        let written = writer::apply_status(&self.api, MANAGER, &name, &status).await;
        if let Err(error) = writer::absent_is_fine(written.map(drop)) {
            warn!(domain = name, "write the status of the SearchDomain: {error}");
        }
    }

    /// Begins the searches that it is time for, and says when it is time for the next.
    fn begin(&mut self, entries: &Entries) -> Option<Instant> {
        let domains: BTreeMap<Key, SearchDomain> = self
            .watched
            .all()
            .iter()
            .filter(|domain| domain.metadata.deletion_timestamp.is_none())
            .map(|domain| (key(domain), (**domain).clone()))
            .collect();
        self.searched.retain(|key, _| domains.contains_key(key));
        let now = Instant::now();
        for (key, domain) in domains {
            let searched = self
                .searched
                .entry(key.clone())
                .or_insert_with(|| Searched { since: Timestamp::now(), next: Some(now) });
            if searched.next.is_some_and(|next| next <= now) {
                searched.next = None;
                let (servers, known) = (self.servers, entries.all());
                let name = format!("search of domain {}", domain.spec.domain);
                self.searches.spawn(name, async move {
                    let mut search = dns::search(servers, &domain.spec.domain).await;
                    if let Ok(found) = &mut search.answer {
                        let clusters = std::mem::take(&mut found.clusters);
                        found.clusters = introduce(clusters, &domain, &known).await;
                    }
                    (key, search)
                });
            }
        }
        self.searched.values().filter_map(|searched| searched.next).min()
    }

    fn domain(&self, key: &Key) -> Option<SearchDomain> {
        let all = self.watched.all();
        let domain = all.iter().find(|domain| self::key(domain) == *key)?;
        self.searched.contains_key(key).then(|| (**domain).clone())
    }
}

fn key(domain: &SearchDomain) -> Key {
    (domain.uid().unwrap_or_default(), domain.spec.domain.clone())
}

/// Asks those who they are of whom nobody has said it, or who have to show their certificate.
async fn introduce(
    clusters: Vec<Listed>,
    domain: &SearchDomain,
    known: &[ForeignCluster],
) -> Vec<Listed> {
    let ask = async |mut cluster: Listed| {
        if is_introduced(&cluster, domain, known) {
            return cluster;
        }
        match AuthService::new(&cluster.auth_url, cluster.fingerprint).info().await {
            Ok((info, shown)) => {
                let (cluster_id, cluster_name) = (info.cluster_id, info.cluster_name);
                cluster.introduce(ClusterIdentity { cluster_id, cluster_name }, shown);
            }
            // Its entry will say so.
            Err(error) => debug!(record = cluster.record, "{error}"),
        }
        cluster
    };
    stream::iter(clusters).map(ask).buffered(AT_ONCE).collect().await
}
