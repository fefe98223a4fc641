//! The SearchDomains: each is searched periodically, in a task of its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
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
use tombolo_core::{
    discovery::{ListedCluster, Search, is_identified, next_search},
    view::Domain,
};
use tombolo_runtime::{observe::Watched, task::Tasks, writer};
use tracing::{debug, info, warn};

use super::{
    dns::{self, Servers},
    entries::{Entries, MANAGER, views},
};
use crate::foreign_cluster::auth_service::AuthService;

/// Concurrent queries of auth services.
const MAX_CONCURRENT: usize = 16;
/// Retry interval after a search has panicked.
const PANIC_RETRY: Duration = Duration::from_secs(30);

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

/// State of a domain.
struct Searched {
    /// Time of the first search.
    since: Timestamp,
    /// Time of the next search; `None` during a search.
    next: Option<Instant>,
}

impl Domains {
    /// Starts watching the SearchDomains.
    pub fn start(client: Client, servers: Servers) -> Self {
        let api = Api::<SearchDomain>::all(client);
        let watched = Watched::new(api.clone(), watcher::Config::default());
        let (changes, searched) = (watched.changes(), BTreeMap::new());
        Self { api, watched, changes, servers, searched, searches: Tasks::new() }
    }

    /// Waits until the SearchDomains are listed.
    pub async fn synced(&self) {
        self.watched.synced().await;
    }

    /// UIDs of all SearchDomains.
    pub fn uids(&self) -> BTreeSet<String> {
        self.watched.all().iter().filter_map(|domain| domain.uid()).collect()
    }

    /// Starts the searches that are due, and waits for the next result. Cancel safe.
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
                        // Which search has panicked is unknown: retry all that are running.
                        let broken = self.searched.values_mut().filter(|it| it.next.is_none());
                        broken.for_each(|it| it.next = Some(Instant::now() + PANIC_RETRY));
                    }
                },
                Ok(()) = self.changes.changed() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            }
        }
    }

    /// Searches all domains again, because the configuration has changed.
    pub fn search_now(&mut self) {
        let waiting = self.searched.values_mut().filter(|searched| searched.next.is_some());
        waiting.for_each(|searched| searched.next = Some(Instant::now()));
    }

    /// Handles the result of a search: writes the discovered clusters and the status of the domain.
    pub async fn handle(
        &mut self,
        domain: &SearchDomain,
        search: &Search,
        entries: &Entries,
        config: &DiscoveryConfig,
    ) {
        let clusters = search.answer.iter().flat_map(|found| &found.clusters);
        let mut names = entries.listed(clusters, domain, &self.uids(), config).await;
        let now = Timestamp::now();
        let key = key(domain);
        let since = self.searched.get(&key).map_or(now, |searched| searched.since);
        // After the writes, so that clusters found again do not expire.
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
        let status = search.status(&Domain::from_resource(domain), names, now);
        if domain.status.as_ref() == Some(&status) {
            return;
        }
        let name = domain.name_any();
        for condition in &status.conditions {
            info!(domain = name, reason = condition.reason, "{}", condition.message);
        }
        let written = writer::apply_status(&self.api, MANAGER, &name, &status).await;
        if let Err(error) = writer::absent_is_fine(written.map(drop)) {
            warn!(domain = name, "can't write the status of the SearchDomain: {error}");
        }
    }

    /// Starts the searches that are due, and returns when the next one is.
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
                        found.clusters = identify(clusters, &domain, &known).await;
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

/// Queries the auth services of clusters whose id is unknown, or whose certificate has to be
/// compared.
async fn identify(
    clusters: Vec<ListedCluster>,
    domain: &SearchDomain,
    entries: &[Arc<ForeignCluster>],
) -> Vec<ListedCluster> {
    let (domain, known) = (Domain::from_resource(domain), views(entries));
    let query = async |mut cluster: ListedCluster| {
        if is_identified(&cluster, &domain, &known) {
            return cluster;
        }
        match AuthService::new(&cluster.auth_url, cluster.fingerprint).info().await {
            Ok((info, shown)) => {
                let (cluster_id, cluster_name) = (info.cluster_id, info.cluster_name);
                cluster.identify(ClusterIdentity { cluster_id, cluster_name }, shown);
            }
            // The condition of its ForeignCluster will have the error.
            Err(error) => debug!(record = cluster.record, "{error}"),
        }
        cluster
    };
    stream::iter(clusters).map(query).buffered(MAX_CONCURRENT).collect().await
}
