//! The mDNS responder and browser, on the interface of the node's address only.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use mdns_sd::{IfKind, Receiver, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::time::timeout;
use tombolo_api::names::MDNS_SERVICE;
use tombolo_core::discovery::{Announcement, NotAnAnnouncement};
use tombolo_runtime::metrics::{self, Step};
use tracing::{debug, info};

/// How long a cluster may take to answer that it is still there.
const ANSWER: Duration = Duration::from_secs(2);
/// How long it may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);

/// What was heard.
pub(super) enum Heard {
    /// A cluster is there, under this full name.
    Announcement(String, Announcement),
    /// The one of this full name is not.
    Goodbye(String),
    /// Somebody announces what is no cluster.
    Nonsense(NotAnAnnouncement),
}

pub(super) struct Mdns {
    daemon: ServiceDaemon,
    announced: Option<(Announcement, ServiceInfo)>,
    events: Option<Receiver<ServiceEvent>>,
}

impl Mdns {
    /// Silent at first.
    pub fn start(address: IpAddr) -> mdns_sd::Result<Self> {
        let daemon = ServiceDaemon::new()?;
        daemon.disable_interface(IfKind::All)?;
        daemon.enable_interface(IfKind::Addr(address))?;
        Ok(Self { daemon, announced: None, events: None })
    }

    /// Announces this, and nothing else.
    pub fn announce(&mut self, announcement: Option<Announcement>) -> mdns_sd::Result<()> {
        if self.announced.as_ref().map(|(announced, _)| announced) == announcement.as_ref() {
            return Ok(());
        }
        if let Some((before, info)) = self.announced.take()
            && announcement.as_ref().is_none_or(|now| now.cluster != before.cluster)
        {
            info!("this cluster is not announced any more");
            self.daemon.unregister(info.get_fullname())?;
        }
        if let Some(announcement) = announcement {
            info!(url = announcement.auth_url(), group = announcement.group, "announcing");
            let info = service(&announcement)?;
            self.daemon.register(info.clone())?;
            self.announced = Some((announcement, info));
        }
        Ok(())
    }

    /// Says it once more, for those who have not heard it.
    pub fn announce_again(&self) {
        if let Some((_, info)) = &self.announced
            && let Err(error) = self.daemon.register(info.clone())
        {
            debug!("announce again: {error}");
        }
    }

    /// Searches, or not. Says whether the search has begun just now.
    pub fn search(&mut self, search: bool) -> mdns_sd::Result<bool> {
        let begins = search && self.events.is_none();
        if begins {
            self.events = Some(self.daemon.browse(&domain())?);
        } else if !search && self.events.take().is_some() {
            self.daemon.stop_browse(&domain())?;
        }
        Ok(begins)
    }

    /// Waits for the next thing to be heard.
    pub async fn hear(&self) -> Heard {
        let Some(events) = &self.events else { return std::future::pending().await };
        loop {
            match events.recv_async().await {
                Ok(ServiceEvent::ServiceResolved(service)) => return read(&service),
                Ok(ServiceEvent::ServiceRemoved(_, name)) => return Heard::Goodbye(name),
                Ok(other) => debug!(?other),
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Asks a cluster whether it is still there: if it does not answer, its goodbye is heard.
    pub fn ask(&self, name: &str) {
        if let Err(error) = self.daemon.verify(name.to_owned(), ANSWER) {
            debug!(name, "ask: {error}");
        }
    }

    /// Says goodbye.
    pub async fn stop(&mut self) {
        if let Some((_, info)) = self.announced.take()
            && let Ok(done) = self.daemon.unregister(info.get_fullname())
        {
            let _ = timeout(GOODBYE, done.recv_async()).await;
        }
        if let Ok(done) = self.daemon.shutdown() {
            let _ = timeout(GOODBYE, done.recv_async()).await;
        }
    }
}

fn domain() -> String {
    format!("{MDNS_SERVICE}.")
}

fn service(announcement: &Announcement) -> mdns_sd::Result<ServiceInfo> {
    let id = announcement.cluster.cluster_id.as_str();
    let host = format!("{id}.local.");
    let properties = announcement.properties();
    let mut info = ServiceInfo::new(
        &domain(),
        id,
        &host,
        announcement.address,
        announcement.port,
        &properties[..],
    )?;
    // The id is nobody else's: there is no need to wait for objections.
    info.set_requires_probe(false);
    Ok(info)
}

fn read(service: &ResolvedService) -> Heard {
    let start = Instant::now();
    let properties: BTreeMap<String, String> = service
        .get_properties()
        .iter()
        .map(|property| (property.key().to_owned(), property.val_str().to_owned()))
        .collect();
    let mut addresses: Vec<IpAddr> =
        service.get_addresses().iter().map(mdns_sd::ScopedIp::to_ip_addr).collect();
    // IPv4 comes first.
    addresses.sort_unstable();
    let name = service.get_fullname();
    let (address, port) = (addresses.first().copied(), service.get_port());
    let announcement = Announcement::read(name, address, port, &properties);
    metrics::took(Step::Parse, start.elapsed());
    match announcement {
        Ok(announcement) => Heard::Announcement(name.to_owned(), announcement),
        Err(error) => Heard::Nonsense(error),
    }
}
