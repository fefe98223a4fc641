//! `tombolo discovery`: announces this cluster in the local network by mDNS and discovers others
//! there, and discovers clusters that DNS domains list. Each discovered cluster becomes a
//! ForeignCluster, which expires when the cluster is no longer announced or listed.

mod dns;
mod domains;
mod entries;
mod interfaces;
mod mdns;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use anyhow::Context as _;
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tombolo_api::{
    config::{ClusterConfig, DiscoveryConfig},
    names::{AUTH_SERVICE, CLUSTER_CONFIG, NAMESPACE},
};
use tombolo_core::discovery::{
    Announcement, Host, LocalCluster, NeighbourChange, Neighbours, local_networks,
};
use tombolo_runtime::{
    client, health, metrics,
    observe::{Watched, named},
    settings::Settings,
    shutdown::Shutdown,
};
use tracing::{info, warn};

pub use dns::Servers;
use domains::Domains;
use entries::Entries;
use interfaces::Interfaces;
use mdns::{Mdns, MdnsEvent, MdnsEvents, is_queue_full};

const HEALTH_PORT: u16 = 10281;
/// Concurrent mDNS queries whether a neighbour is still there.
const MAX_CONCURRENT_QUERIES: usize = 32;
/// Minimum interval between two passes over expired entries.
const MIN_PASS_INTERVAL: Duration = Duration::from_millis(200);
/// Retry interval of failed writes, and of commands while the queue of the mDNS daemon is full.
const RETRY: Duration = Duration::from_secs(1);
/// Limit of remembered warnings about invalid announcements.
const MAX_WARNINGS: usize = 100;

/// Runs until shutdown.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let probes = health::start(HEALTH_PORT, is_ready, shutdown.clone());
    serve(client, settings, Servers::ResolvConf, ready, shutdown.clone()).await?;
    shutdown.trigger();
    Ok(probes.await??)
}

/// Announces and discovers until shutdown; domains are searched at these DNS servers. `ready` turns
/// true when it has started.
pub async fn serve(
    client: Client,
    settings: Settings,
    servers: Servers,
    ready: watch::Sender<bool>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let config = Watched::new(Api::all(client.clone()), named(CLUSTER_CONFIG));
    let services = Api::namespaced(client.clone(), NAMESPACE);
    let service = Watched::new(services, named(AUTH_SERVICE));
    let domains = Domains::start(client.clone(), servers);
    let entries = Entries::start(client, settings.cluster_id.clone());
    let known = async {
        tokio::join!(config.synced(), service.synced(), entries.synced(), domains.synced())
    };
    shutdown.or(known).await;

    let mut discovery = Discovery {
        settings,
        config,
        service,
        entries,
        domains,
        interfaces: Interfaces::watch().context("watch the interfaces of the node")?,
        mdns: Mdns::start().context("start the mDNS daemon")?,
        networks: Vec::new(),
        neighbours: Neighbours::default(),
        warnings: BTreeMap::new(),
        unwritten: BTreeSet::new(),
        decided: BTreeSet::new(),
        retry_mdns: None,
        searching_since: Timestamp::now(),
        announce: Instant::now(),
        next: Instant::now(),
    };
    ready.send_replace(true);
    let result = tokio::select! {
        () = shutdown.triggered() => Ok(()),
        result = discovery.run() => result,
    };
    discovery.mdns.stop().await;
    result
}

struct Discovery {
    settings: Settings,
    config: Watched<ClusterConfig>,
    service: Watched<Service>,
    entries: Entries,
    domains: Domains,
    interfaces: Interfaces,
    mdns: Mdns,
    /// Addresses of this node in the local networks.
    networks: Vec<IpNet>,
    neighbours: Neighbours,
    /// Invalid announcements by name, and what is wrong with them.
    warnings: BTreeMap<String, String>,
    /// Names of neighbours whose entries are still to be written.
    unwritten: BTreeSet<String>,
    /// UIDs of entries for which `autojoin` has been applied or ruled out.
    decided: BTreeSet<String>,
    /// When to retry a command that the mDNS daemon had no room for.
    retry_mdns: Option<Instant>,
    /// Start of the mDNS search.
    searching_since: Timestamp,
    /// When to repeat the announcement of this cluster.
    announce: Instant,
    /// When to run the timers next.
    next: Instant,
}

impl Discovery {
    async fn run(&mut self) -> anyhow::Result<()> {
        let (mut configs, mut services) = (self.config.changes(), self.service.changes());
        let mut entries = self.entries.changes();
        self.follow_changes(true).await?;
        loop {
            let retry = self.retry_mdns;
            tokio::select! {
                changed = configs.changed() => {
                    if changed.is_ok() { self.follow_changes(true).await?; }
                    self.domains.search_now();
                }
                changed = services.changed() => {
                    if changed.is_ok() { self.follow_changes(true).await?; }
                }
                changed = self.interfaces.changed() => {
                    changed.context("watch the interfaces of the node")?;
                    self.follow_changes(false).await?;
                }
                () = sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {
                    self.follow_changes(true).await?;
                }
                events = self.mdns.receive() => {
                    self.handle(events.context("receive mDNS events")?).await;
                }
                // A peering that kept an entry from expiring may be over.
                Ok(()) = entries.changed() => self.next = self.next.min(Instant::now() + RETRY),
                (domain, search) = self.domains.search(&self.entries) => {
                    let config = self.settings();
                    self.domains.handle(&domain, &search, &self.entries, &config).await;
                }
                () = sleep_until(self.next) => self.run_timers().await,
            }
        }
    }

    fn settings(&self) -> DiscoveryConfig {
        self.config.only().map(|config| config.spec.discovery.clone()).unwrap_or_default()
    }

    /// Refreshes the interfaces, and applies the configuration if the addresses or something else
    /// has changed. Retries later if the queue of the mDNS daemon is full.
    async fn follow_changes(&mut self, something_else: bool) -> anyhow::Result<()> {
        let is_due = self.retry_mdns.take().is_some() || something_else;
        match self.try_to_follow_changes(is_due).await {
            Err(error) if is_queue_full(&error) => {
                warn!("{error:#}");
                self.retry_mdns = Some(Instant::now() + RETRY);
                Ok(())
            }
            done => done,
        }
    }

    async fn try_to_follow_changes(&mut self, is_due: bool) -> anyhow::Result<()> {
        if self.refresh_interfaces().await? || is_due {
            self.adjust()?;
        }
        Ok(())
    }

    /// Uses the current interfaces for mDNS. Returns whether our addresses there have changed.
    async fn refresh_interfaces(&mut self) -> anyhow::Result<bool> {
        let config = self.settings();
        let Settings { host_ip, pod_cidr, service_cidr, .. } = &self.settings;
        let inner = [pod_cidr.net(), service_cidr.net()];
        let host =
            Host { address: *host_ip, cluster_networks: &inner, interfaces: &config.interfaces };
        let interfaces = self.interfaces.list().await.context("list the interfaces of the node")?;
        let interfaces = local_networks(&interfaces, &host);
        self.mdns.set_interfaces(&interfaces).context("set the interfaces of the mDNS daemon")?;
        let networks: Vec<IpNet> =
            interfaces.iter().flat_map(|it| it.addresses.iter().copied()).collect();
        let changed = networks != self.networks;
        if changed {
            let names: Vec<&str> = interfaces.iter().map(|it| it.name.as_str()).collect();
            info!(interfaces = names.join(", "), "using these interfaces for mDNS");
            self.networks = networks;
        }
        Ok(changed)
    }

    /// Announces and searches as currently configured.
    fn adjust(&mut self) -> anyhow::Result<()> {
        let config = self.settings();
        let announcement = self.service.only().and_then(|service| {
            let addresses = self.networks.iter().map(IpNet::addr);
            Announcement::of(self.settings.cluster(), addresses, &service, &config)
        });
        self.mdns.announce(announcement).context("announce this cluster")?;
        self.announce = self.announce.min(Instant::now() + period(&config));
        let begins = self.mdns.search(config.enabled).context("browse for clusters by mDNS")?;
        if begins {
            self.searching_since = Timestamp::now();
        }
        // Without a search no goodbyes are received.
        if begins || !config.enabled {
            self.clear_neighbours();
        }
        if !config.autojoin {
            self.decided.clear();
        }
        // The group may have changed, and with it which neighbours matter.
        self.unwritten.extend(self.neighbours.iter().map(|(name, _)| name.clone()));
        self.next = Instant::now();
        Ok(())
    }

    /// Forgets all neighbours: their goodbyes may have been lost.
    fn clear_neighbours(&mut self) {
        self.neighbours.clear();
        metrics::set_announced_clusters(0);
    }

    async fn handle(&mut self, events: MdnsEvents) {
        let now = Timestamp::now();
        if events.lost {
            self.clear_neighbours();
            self.searching_since = now;
        }
        let mut seen = BTreeSet::new();
        for (name, event) in events.by_name {
            match event {
                MdnsEvent::Announcement(it)
                    if it.cluster.cluster_id == self.settings.cluster_id => {}
                MdnsEvent::Announcement(it) => {
                    let cluster = it.cluster.clone();
                    match self.neighbours.announced(&name, it, now) {
                        NeighbourChange::TooMany => {
                            self.warn_once(name, "too many clusters are announced".to_owned());
                            continue;
                        }
                        NeighbourChange::Updated => {
                            let (cluster, id) = (&cluster.cluster_name, &cluster.cluster_id);
                            info!(%cluster, %id, "discovered a cluster by mDNS");
                        }
                        NeighbourChange::Unchanged => {}
                    }
                    self.warnings.remove(&name);
                    seen.insert(name);
                }
                MdnsEvent::Goodbye => {
                    self.warnings.remove(&name);
                    self.remove_neighbour(&name);
                }
                MdnsEvent::Invalid(what) => {
                    self.remove_neighbour(&name);
                    self.warn_once(name, what.to_string());
                }
            }
        }
        metrics::set_announced_clusters(self.neighbours.iter().count());
        self.write(&seen).await;
    }

    fn remove_neighbour(&mut self, name: &str) {
        if let Some(gone) = self.neighbours.remove(name) {
            let cluster = gone.announcement.cluster.cluster_name;
            info!(%cluster, "the cluster is no longer announced");
            self.next = Instant::now();
        }
    }

    /// Logs a warning once, however often it is announced.
    fn warn_once(&mut self, name: String, what: String) {
        let is_known = self.warnings.get(&name) == Some(&what);
        if !is_known && self.warnings.len() < MAX_WARNINGS {
            warn!(name, "can't use an mDNS announcement: {what}");
            self.warnings.insert(name, what);
        }
    }

    /// Writes the entries of the neighbours with these names.
    async fn write(&mut self, names: &BTreeSet<String>) {
        let config = self.settings();
        let (us, networks) = (&self.settings.cluster_id, &self.networks[..]);
        let local = LocalCluster { us, networks, config: &config };
        let there = self.neighbours.iter().filter(|(name, _)| names.contains(*name));
        let there: Vec<_> = there.collect();
        let unwritten = self.entries.announced(there.iter().copied(), &local).await;
        self.unwritten.extend(unwritten);
        if config.autojoin {
            self.decided = self.entries.join(there.into_iter(), &local, &self.decided).await;
        }
        let now = Timestamp::now();
        let due = self.neighbours.next_due().map(|time| until(time, now).max(MIN_PASS_INTERVAL));
        let retry = (!self.unwritten.is_empty()).then_some(RETRY);
        if let Some(soon) = due.into_iter().chain(retry).min() {
            self.next = self.next.min(Instant::now() + soon);
        }
    }

    /// Repeats the announcement of this cluster, queries silent neighbours, deletes expired
    /// entries, and schedules the next run.
    async fn run_timers(&mut self) {
        let config = self.settings();
        let now = Timestamp::now();
        if self.announce <= Instant::now() {
            self.mdns.announce_again();
            self.announce = Instant::now() + period(&config);
        }
        let mut due = std::mem::take(&mut self.unwritten);
        due.extend(self.neighbours.confirmed(now));
        for name in self.neighbours.start_queries(now, MAX_CONCURRENT_QUERIES) {
            if !self.mdns.verify(&name) {
                self.neighbours.cancel_query(&name);
            }
        }
        let (us, networks) = (&self.settings.cluster_id, &self.networks[..]);
        let local = LocalCluster { us, networks, config: &config };
        let (entries, domains, since) = (&self.entries, self.domains.uids(), self.searching_since);
        let expiry = entries.collect_lan(&self.neighbours, &local, &domains, since, now).await;
        self.next = self.announce;
        if let Some(expiry) = expiry {
            self.next = self.next.min(Instant::now() + until(expiry, now).max(MIN_PASS_INTERVAL));
        }
        self.write(&due).await;
    }
}

/// Announcement interval: a receiver may miss one or two before the TTL expires.
fn period(config: &DiscoveryConfig) -> Duration {
    Duration::from_secs(config.ttl_seconds.into()) / 3
}

fn until(time: Timestamp, now: Timestamp) -> Duration {
    time.duration_since(now).try_into().unwrap_or_default()
}
