//! `tombolo discovery`: finds other clusters in the local network, by mDNS, and is found by them;
//! finds those that DNS domains list. What it finds becomes a ForeignCluster, and goes again when
//! it is seen no more.

mod dns;
mod domains;
mod entries;
mod mdns;

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
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
use tombolo_core::discovery::Announcement;
use tombolo_runtime::{
    client, health,
    observe::{Watched, named},
    settings::Settings,
    shutdown::Shutdown,
};
use tracing::{info, warn};

pub use dns::Servers;
use domains::Domains;
use entries::Entries;
use mdns::{Heard, Mdns};

const HEALTH_PORT: u16 = 10281;

/// Runs until the end is asked for.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let probes = tokio::spawn(health::serve(HEALTH_PORT, is_ready, shutdown.clone()));
    serve(client, settings, Servers::OfThisMachine, ready, shutdown.clone()).await?;
    shutdown.ask();
    probes.await?.with_context(|| format!("answer probes on port {HEALTH_PORT}"))
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
    shutdown.or(async { tokio::join!(config.filled(), service.filled(), entries.known()) }).await;

    let address = settings.host_ip;
    let mdns = Mdns::start(address).with_context(|| format!("speak mDNS at {address}"))?;
    let mut discovery = Discovery {
        settings,
        config,
        service,
        entries,
        domains,
        mdns,
        found: BTreeMap::new(),
        watching: Timestamp::now(),
    };
    ready.send_replace(true);
    let result = discovery.run(&shutdown).await;
    discovery.mdns.stop().await;
    result
}

struct Discovery {
    settings: Settings,
    config: Watched<ClusterConfig>,
    service: Watched<Service>,
    entries: Entries,
    domains: Domains,
    mdns: Mdns,
    /// Who is there, by the full name of its announcement.
    found: BTreeMap<String, Announcement>,
    /// Since when they are looked for.
    watching: Timestamp,
}

impl Discovery {
    async fn run(&mut self, shutdown: &Shutdown) -> anyhow::Result<()> {
        let (mut configs, mut services) = (self.config.changes(), self.service.changes());
        self.adjust()?;
        let mut next = Instant::now();
        loop {
            tokio::select! {
                () = shutdown.asked() => return Ok(()),
                changed = configs.changed() => {
                    if changed.is_ok() { self.adjust()?; }
                    next = Instant::now();
                    self.domains.search_now();
                }
                changed = services.changed() => {
                    if changed.is_ok() { self.adjust()?; }
                }
                heard = self.mdns.hear() => self.note(heard).await,
                (domain, search) = self.domains.search(&self.entries) => {
                    let config = self.settings();
                    self.domains.note(&domain, &search, &self.entries, &config).await;
                }
                () = sleep_until(next) => next = Instant::now() + self.look_after().await,
            }
        }
    }

    fn settings(&self) -> DiscoveryConfig {
        self.config.only().map(|config| config.spec.discovery.clone()).unwrap_or_default()
    }

    /// Announces and searches as the configuration says now.
    fn adjust(&mut self) -> anyhow::Result<()> {
        let config = self.settings();
        let (cluster, address) = (self.settings.cluster(), self.settings.host_ip);
        let announcement = self
            .service
            .only()
            .and_then(|service| Announcement::of(cluster, address, &service, &config));
        self.mdns.announce(announcement).context("announce this cluster")?;
        let begins = self.mdns.search(config.enabled).context("search for clusters")?;
        if begins {
            self.watching = Timestamp::now();
        }
        // Without a search no goodbye is heard.
        if begins || !config.enabled {
            self.found.clear();
        }
        Ok(())
    }

    async fn note(&mut self, heard: Heard) {
        match heard {
            Heard::Announcement(name, announcement) => {
                if self.found.insert(name, announcement.clone()).as_ref() != Some(&announcement) {
                    info!(cluster = %announcement.cluster.cluster_name, id = %announcement.cluster.cluster_id,
                        url = announcement.auth_url(), "heard of a cluster");
                }
                self.entries.seen(&announcement, &self.settings()).await;
            }
            Heard::Goodbye(name) => {
                if let Some(gone) = self.found.remove(&name) {
                    info!(cluster = %gone.cluster.cluster_name, "the cluster is not announced any more");
                }
            }
            Heard::Nonsense(what) => warn!("{what}"),
        }
    }

    /// Looks after the entries of the local network, and says when to do so again. Who was asked the last time and is
    /// still there is seen anew, and asked again; what has expired goes.
    async fn look_after(&mut self) -> Duration {
        let config = self.settings();
        for (name, announcement) in &self.found {
            self.entries.seen(announcement, &config).await;
            self.mdns.ask(name);
        }
        self.mdns.announce_again();
        let now = Timestamp::now();
        let expiry = self.entries.collect_lan(self.watching, now).await;
        let shortest = self.found.values().map(|found| found.ttl).chain([config.ttl_seconds]).min();
        let pause = Duration::from_secs(shortest.unwrap_or(1).into()) / 3;
        let until_expiry = expiry.map(|time| time.duration_since(now).unsigned_abs());
        until_expiry.map_or(pause, |until| until.min(pause)).max(Duration::from_millis(200))
    }
}
