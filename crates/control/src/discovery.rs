//! `tombolo discovery`: finds other clusters in the local network, by mDNS, and is found by them;
//! finds those that DNS domains list. What it finds becomes a ForeignCluster, and goes again when
//! it is seen no more.

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
use tombolo_core::discovery::{Announcement, Here, Host, Neighbours, News, local_networks};
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
use mdns::{Heard, Mdns, News as MdnsNews, is_busy};

const HEALTH_PORT: u16 = 10281;
/// Clusters that are asked at the same time whether they are still there.
const ASKED_AT_ONCE: usize = 32;
/// Shortest pause between two looks at what time has changed.
const PAUSE: Duration = Duration::from_millis(200);
/// When to write again what could not be written, and to tell mDNS again what it could not take.
const RETRY: Duration = Duration::from_secs(1);
/// As many are remembered of those who announce what can't be used.
const MOST_COMPLAINTS: usize = 100;

/// Runs until the end is asked for.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let probes = health::start(HEALTH_PORT, is_ready, shutdown.clone());
    serve(client, settings, Servers::OfThisMachine, ready, shutdown.clone()).await?;
    shutdown.ask();
    Ok(probes.await??)
}

/// Announces and searches, domains at these DNS servers, until the end is asked for; `ready` says
/// when it has begun.
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
    let known =
        async { tokio::join!(config.filled(), service.filled(), entries.known(), domains.known()) };
    shutdown.or(known).await;

    let mut discovery = Discovery {
        settings,
        config,
        service,
        entries,
        domains,
        interfaces: Interfaces::watch().context("watch the interfaces of the node")?,
        mdns: Mdns::start().context("speak mDNS")?,
        networks: Vec::new(),
        neighbours: Neighbours::default(),
        complaints: BTreeMap::new(),
        unwritten: BTreeSet::new(),
        decided: BTreeSet::new(),
        again: None,
        watching: Timestamp::now(),
        announce: Instant::now(),
        next: Instant::now(),
    };
    ready.send_replace(true);
    let result = tokio::select! {
        () = shutdown.asked() => Ok(()),
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
    /// Our addresses in the local networks.
    networks: Vec<IpNet>,
    neighbours: Neighbours,
    /// Who announces what can't be used, and what is wrong with it.
    complaints: BTreeMap<String, String>,
    /// Whose entries are still to be written.
    unwritten: BTreeSet<String>,
    /// Of which entries, by UID, it is decided whether to join them, while each is to be joined.
    decided: BTreeSet<String>,
    /// When to tell mDNS again what it could not take.
    again: Option<Instant>,
    /// Since when they are looked for.
    watching: Timestamp,
    /// When to announce this cluster again.
    announce: Instant,
    /// When to look at what time has changed.
    next: Instant,
}

impl Discovery {
    async fn run(&mut self) -> anyhow::Result<()> {
        let (mut configs, mut services) = (self.config.changes(), self.service.changes());
        let mut entries = self.entries.changes();
        self.follow(true).await?;
        loop {
            let again = self.again;
            tokio::select! {
                changed = configs.changed() => {
                    if changed.is_ok() { self.follow(true).await?; }
                    self.domains.search_now();
                }
                changed = services.changed() => {
                    if changed.is_ok() { self.follow(true).await?; }
                }
                changed = self.interfaces.changed() => {
                    changed.context("watch the interfaces of the node")?;
                    self.follow(false).await?;
                }
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {
                    self.follow(true).await?;
                }
                news = self.mdns.hear() => {
                    self.note(news.context("listen to the local network")?).await;
                }
                // There may be no peering any more that has kept one.
                Ok(()) = entries.changed() => self.next = self.next.min(Instant::now() + RETRY),
                (domain, search) = self.domains.search(&self.entries) => {
                    let config = self.settings();
                    self.domains.note(&domain, &search, &self.entries, &config).await;
                }
                () = sleep_until(self.next) => self.look_after().await,
            }
        }
    }

    fn settings(&self) -> DiscoveryConfig {
        self.config.only().map(|config| config.spec.discovery.clone()).unwrap_or_default()
    }

    /// Looks around, and adjusts if our addresses have changed or something else has. If mDNS has
    /// too much to do for that, it is told again.
    async fn follow(&mut self, something_else: bool) -> anyhow::Result<()> {
        let is_due = self.again.take().is_some() || something_else;
        match self.try_to_follow(is_due).await {
            Err(error) if is_busy(&error) => {
                warn!("{error:#}");
                self.again = Some(Instant::now() + RETRY);
                Ok(())
            }
            done => done,
        }
    }

    async fn try_to_follow(&mut self, is_due: bool) -> anyhow::Result<()> {
        if self.look_around().await? || is_due {
            self.adjust()?;
        }
        Ok(())
    }

    /// Speaks on the interfaces that there are now. Says whether our addresses there have changed.
    async fn look_around(&mut self) -> anyhow::Result<bool> {
        let config = self.settings();
        let Settings { host_ip, pod_cidr, service_cidr, .. } = &self.settings;
        let inner = [pod_cidr.net(), service_cidr.net()];
        let host = Host { address: *host_ip, inner: &inner, wanted: &config.interfaces };
        let interfaces = self.interfaces.list().await.context("list the interfaces of the node")?;
        let interfaces = local_networks(&interfaces, &host);
        self.mdns.speak_on(&interfaces).context("choose the interfaces for mDNS")?;
        let networks: Vec<IpNet> =
            interfaces.iter().flat_map(|it| it.addresses.iter().copied()).collect();
        let changed = networks != self.networks;
        if changed {
            let names: Vec<&str> = interfaces.iter().map(|it| it.name.as_str()).collect();
            info!(interfaces = names.join(", "), "these lead to local networks");
            self.networks = networks;
        }
        Ok(changed)
    }

    /// Announces and searches as the configuration says now.
    fn adjust(&mut self) -> anyhow::Result<()> {
        let config = self.settings();
        let announcement = self.service.only().and_then(|service| {
            let addresses = self.networks.iter().map(IpNet::addr);
            Announcement::of(self.settings.cluster(), addresses, &service, &config)
        });
        self.mdns.announce(announcement).context("announce this cluster")?;
        self.announce = self.announce.min(Instant::now() + period(&config));
        let begins = self.mdns.search(config.enabled).context("search for clusters")?;
        if begins {
            self.watching = Timestamp::now();
        }
        // Without a search no goodbye is heard.
        if begins || !config.enabled {
            self.forget();
        }
        if !config.autojoin {
            self.decided.clear();
        }
        // They may mean something else now.
        self.unwritten.extend(self.neighbours.iter().map(|(name, _)| name.clone()));
        self.next = Instant::now();
        Ok(())
    }

    /// Whoever was there may go unheard.
    fn forget(&mut self) {
        self.neighbours.clear();
        metrics::announced(0);
    }

    async fn note(&mut self, news: MdnsNews) {
        let now = Timestamp::now();
        if news.missed {
            self.forget();
            self.watching = now;
        }
        let mut seen = BTreeSet::new();
        for (name, heard) in news.heard {
            match heard {
                Heard::Announcement(it) if it.cluster.cluster_id == self.settings.cluster_id => {}
                Heard::Announcement(it) => {
                    let cluster = it.cluster.clone();
                    match self.neighbours.hear(&name, it, now) {
                        News::TooMany => {
                            self.complain(name, "there are too many clusters".to_owned());
                            continue;
                        }
                        News::New => {
                            let (cluster, id) = (&cluster.cluster_name, &cluster.cluster_id);
                            info!(%cluster, %id, "heard of a cluster");
                        }
                        News::Known => {}
                    }
                    self.complaints.remove(&name);
                    seen.insert(name);
                }
                Heard::Goodbye => {
                    self.complaints.remove(&name);
                    self.lose(&name);
                }
                Heard::Nonsense(what) => {
                    self.lose(&name);
                    self.complain(name, what.to_string());
                }
            }
        }
        metrics::announced(self.neighbours.iter().count());
        self.write(&seen).await;
    }

    fn lose(&mut self, name: &str) {
        if let Some(gone) = self.neighbours.lose(name) {
            let cluster = gone.announcement.cluster.cluster_name;
            info!(%cluster, "the cluster is not announced any more");
            self.next = Instant::now();
        }
    }

    /// Once, however often it is announced.
    fn complain(&mut self, name: String, what: String) {
        let is_known = self.complaints.get(&name) == Some(&what);
        if !is_known && self.complaints.len() < MOST_COMPLAINTS {
            warn!(name, "in the local network: {what}");
            self.complaints.insert(name, what);
        }
    }

    /// Writes that those of these names who are there were seen.
    async fn write(&mut self, names: &BTreeSet<String>) {
        let config = self.settings();
        let (us, networks) = (&self.settings.cluster_id, &self.networks[..]);
        let here = Here { us, networks, config: &config };
        let there = self.neighbours.iter().filter(|(name, _)| names.contains(*name));
        let there: Vec<_> = there.collect();
        let unwritten = self.entries.seen(there.iter().copied(), &here).await;
        self.unwritten.extend(unwritten);
        if config.autojoin {
            self.decided = self.entries.join(there.into_iter(), &here, &self.decided).await;
        }
        let now = Timestamp::now();
        let due = self.neighbours.next().map(|time| until(time, now).max(PAUSE));
        let retry = (!self.unwritten.is_empty()).then_some(RETRY);
        if let Some(soon) = due.into_iter().chain(retry).min() {
            self.next = self.next.min(Instant::now() + soon);
        }
    }

    /// Looks after what time changes, and notes when to do so again: this cluster is announced anew,
    /// who was silent is asked, what has expired goes.
    async fn look_after(&mut self) {
        let config = self.settings();
        let now = Timestamp::now();
        if self.announce <= Instant::now() {
            self.mdns.announce_again();
            self.announce = Instant::now() + period(&config);
        }
        let mut due = std::mem::take(&mut self.unwritten);
        due.extend(self.neighbours.answered(now));
        for name in self.neighbours.ask(now, ASKED_AT_ONCE) {
            if !self.mdns.ask(&name) {
                self.neighbours.not_asked(&name);
            }
        }
        let (us, networks) = (&self.settings.cluster_id, &self.networks[..]);
        let here = Here { us, networks, config: &config };
        let (entries, domains, since) = (&self.entries, self.domains.uids(), self.watching);
        let expiry = entries.collect_lan(&self.neighbours, &here, &domains, since, now).await;
        self.next = self.announce;
        if let Some(expiry) = expiry {
            self.next = self.next.min(Instant::now() + until(expiry, now).max(PAUSE));
        }
        self.write(&due).await;
    }
}

/// How often this cluster is announced: who misses it once or twice still knows.
fn period(config: &DiscoveryConfig) -> Duration {
    Duration::from_secs(config.ttl_seconds.into()) / 3
}

fn until(time: Timestamp, now: Timestamp) -> Duration {
    time.duration_since(now).try_into().unwrap_or_default()
}
