//! The mDNS responder and browser.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use mdns_sd::{
    Error, IfKind, IfPredicate, Receiver, ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent,
    ServiceInfo,
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tombolo_api::names::MDNS_SERVICE;
use tombolo_core::discovery::{ANSWER_TIMEOUT, Announcement, Interface, NotAnAnnouncement};
use tombolo_runtime::{
    metrics::{self, Step},
    task::Task,
};
use tracing::{debug, info, warn};

/// Time limit for the goodbye packets.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay before browsing again after events were lost.
const RESTART_DELAY: Duration = Duration::from_secs(1);
/// Maximum number of names with unprocessed events.
const MAX_PENDING: usize = 2000;

/// The last event of a name.
pub(super) enum MdnsEvent {
    /// A cluster is announced.
    Announcement(Announcement),
    /// It is no longer announced.
    Goodbye,
    /// The announcement is invalid.
    Invalid(NotAnAnnouncement),
}

/// Events since the last call.
#[derive(Default)]
pub(super) struct MdnsEvents {
    /// Events were lost, possibly goodbyes: what was known before is outdated. All clusters that
    /// are still there are reported again.
    pub lost: bool,
    /// The last event by name.
    pub by_name: BTreeMap<String, MdnsEvent>,
}

pub(super) struct Mdns {
    daemon: ServiceDaemon,
    /// Index and address of each interface in use. The daemon reads it, too.
    interfaces: Arc<Mutex<BTreeSet<(u32, IpAddr)>>>,
    announced: Option<Announced>,
    search: Option<Task>,
    queue: Arc<EventQueue>,
}

struct Announced {
    announcement: Announcement,
    name: String,
    /// Number of announcements. Part of the TXT record, because receivers ignore an unchanged
    /// record.
    times: u32,
}

impl Mdns {
    /// Starts on no interface, without announcing or searching.
    pub fn start() -> mdns_sd::Result<Self> {
        let daemon = ServiceDaemon::new()?;
        let interfaces: Arc<Mutex<BTreeSet<_>>> = Arc::default();
        let chosen = interfaces.clone();
        let is_chosen = IfPredicate::new(move |interface| {
            interface.index.is_some_and(|index| lock(&chosen).contains(&(index, interface.ip())))
        });
        daemon.disable_interface(IfKind::All)?;
        daemon.enable_interface(IfKind::Predicate(is_chosen))?;
        Ok(Self { daemon, interfaces, announced: None, search: None, queue: Arc::default() })
    }

    /// Uses these interfaces and addresses only. The daemon notices removed interfaces within
    /// seconds.
    pub fn set_interfaces(&self, interfaces: &[Interface]) -> mdns_sd::Result<()> {
        let all = interfaces.iter();
        *lock(&self.interfaces) = all
            .flat_map(|it| it.addresses.iter().map(|address| (it.index, address.addr())))
            .collect();
        // Enables no further interface, but makes the daemon list the interfaces again.
        self.daemon.enable_interface(Vec::<IfKind>::new())
    }

    /// Announces this and nothing else.
    pub fn announce(&mut self, announcement: Option<Announcement>) -> mdns_sd::Result<()> {
        let before = self.announced.as_ref().map(|announced| &announced.announcement);
        if before == announcement.as_ref() {
            return Ok(());
        }
        match announcement {
            Some(announcement) => {
                let times = self.announced.as_ref().map_or(0, |it| it.times.wrapping_add(1));
                let service = service(&announcement, times)?;
                let name = service.get_fullname().to_owned();
                self.daemon.register(service)?;
                let addresses = &announcement.addresses;
                info!(
                    ?addresses,
                    port = announcement.port,
                    group = announcement.group,
                    "announcing this cluster"
                );
                self.announced = Some(Announced { announcement, name, times });
            }
            None => {
                if let Some(before) = &self.announced {
                    self.daemon.unregister(&before.name)?;
                    info!("no longer announcing this cluster");
                    self.announced = None;
                }
            }
        }
        Ok(())
    }

    /// Repeats the announcement.
    pub fn announce_again(&mut self) {
        let Some(announced) = &mut self.announced else { return };
        announced.times = announced.times.wrapping_add(1);
        let service = service(&announced.announcement, announced.times);
        if let Err(error) = service.and_then(|service| self.daemon.register(service)) {
            debug!("can't repeat the announcement: {error}");
        }
    }

    /// Starts or stops the search. Returns whether it has started just now.
    pub fn search(&mut self, search: bool) -> mdns_sd::Result<bool> {
        let begins = search && self.search.is_none();
        if begins {
            let events = self.daemon.browse(&domain())?;
            let listen = listen(self.daemon.clone(), events, self.queue.clone());
            self.search = Some(Task::spawn("mDNS search", listen));
        } else if !search && self.search.is_some() {
            self.daemon.stop_browse(&domain())?;
            self.search = None;
            *lock(&self.queue.pending) = MdnsEvents::default();
        }
        Ok(begins)
    }

    /// Waits for events. An error is final.
    pub async fn receive(&self) -> mdns_sd::Result<MdnsEvents> {
        self.queue.take().await
    }

    /// Queries whether a cluster is still there: without an answer its goodbye is reported. Returns
    /// whether the query was sent.
    pub fn verify(&self, name: &str) -> bool {
        let queried = self.daemon.verify(name.to_owned(), ANSWER_TIMEOUT.unsigned_abs());
        if let Err(error) = &queried {
            debug!(name, "can't query: {error}");
        }
        queried.is_ok()
    }

    /// Sends the goodbye packets and stops.
    pub async fn stop(&mut self) {
        if let Some(announced) = self.announced.take()
            && let Ok(done) = self.daemon.unregister(&announced.name)
        {
            let _ = timeout(GOODBYE_TIMEOUT, done.recv_async()).await;
        }
        if let Ok(done) = self.daemon.shutdown() {
            let _ = timeout(GOODBYE_TIMEOUT, done.recv_async()).await;
        }
    }
}

/// Whether the queue of the daemon is full, so that the command has to be retried.
pub(super) fn is_queue_full(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>() == Some(&Error::Again)
}

/// Events that are not processed yet. The daemon never blocks on it.
#[derive(Default)]
struct EventQueue {
    pending: Mutex<MdnsEvents>,
    /// Why there will be no more events.
    broken: Mutex<Option<Error>>,
    arrived: Notify,
}

impl EventQueue {
    /// Returns whether there was room.
    fn push(&self, name: &str, event: MdnsEvent) -> bool {
        let all = &mut lock(&self.pending).by_name;
        let has_room = all.len() < MAX_PENDING || all.contains_key(name);
        if has_room {
            all.insert(name.to_owned(), event);
            self.arrived.notify_one();
        }
        has_room
    }

    /// Drops all events: they are incomplete.
    fn mark_lost(&self) {
        *lock(&self.pending) = MdnsEvents { lost: true, by_name: BTreeMap::new() };
        self.arrived.notify_one();
    }

    fn fail(&self, error: Error) {
        *lock(&self.broken) = Some(error);
        self.arrived.notify_one();
    }

    async fn take(&self) -> mdns_sd::Result<MdnsEvents> {
        loop {
            if let Some(error) = lock(&self.broken).take() {
                return Err(error);
            }
            let events = std::mem::take(&mut *lock(&self.pending));
            if events.lost || !events.by_name.is_empty() {
                return Ok(events);
            }
            self.arrived.notified().await;
        }
    }
}

async fn listen(daemon: ServiceDaemon, mut events: Receiver<ServiceEvent>, queue: Arc<EventQueue>) {
    loop {
        while let Ok(event) = events.recv_async().await {
            let has_room = match event {
                ServiceEvent::ServiceResolved(service) => {
                    queue.push(service.get_fullname(), read(&service))
                }
                ServiceEvent::ServiceRemoved(_, name) => queue.push(&name, MdnsEvent::Goodbye),
                other => {
                    debug!(?other);
                    true
                }
            };
            if !has_room {
                break;
            }
        }
        warn!("mDNS events were lost: browsing again");
        // A goodbye may have been lost, and is not repeated.
        queue.mark_lost();
        events = loop {
            sleep(RESTART_DELAY).await;
            match daemon.browse(&domain()) {
                Ok(again) => break again,
                Err(Error::Again) => {}
                Err(error) => return queue.fail(error),
            }
        };
    }
}

fn domain() -> String {
    format!("{MDNS_SERVICE}.")
}

fn service(announcement: &Announcement, times: u32) -> mdns_sd::Result<ServiceInfo> {
    let id = announcement.cluster.cluster_id.as_str();
    let host = format!("{id}.local.");
    let addresses: Vec<IpAddr> = announcement.addresses.iter().copied().collect();
    let mut properties = announcement.properties();
    properties.push(("times", times.to_string()));
    let mut info =
        ServiceInfo::new(&domain(), id, &host, &addresses[..], announcement.port, &properties[..])?;
    // The id is unique: no need to probe for conflicts (RFC 6762, section 8.1).
    info.set_requires_probe(false);
    Ok(info)
}

fn read(service: &ResolvedService) -> MdnsEvent {
    let start = Instant::now();
    let properties: BTreeMap<String, String> = service
        .get_properties()
        .iter()
        .map(|property| (property.key().to_owned(), property.val_str().to_owned()))
        .collect();
    let addresses = service.get_addresses().iter().map(ScopedIp::to_ip_addr);
    let (name, port) = (service.get_fullname(), service.get_port());
    let announcement = Announcement::read(name, addresses, port, &properties);
    metrics::observe_step(Step::Parse, start.elapsed());
    match announcement {
        Ok(announcement) => MdnsEvent::Announcement(announcement),
        Err(error) => MdnsEvent::Invalid(error),
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_overflow_drops_all_earlier_events() {
        let queue = EventQueue::default();
        for number in 0..MAX_PENDING {
            assert!(queue.push(&number.to_string(), MdnsEvent::Goodbye));
        }
        assert!(queue.push("7", MdnsEvent::Goodbye), "it is among them");
        assert!(!queue.push("one more", MdnsEvent::Goodbye));
        queue.mark_lost();
        assert!(queue.push("later", MdnsEvent::Goodbye));
        let events = queue.take().await.unwrap();
        assert!(events.lost && events.by_name.keys().eq(["later"]));
        assert!(queue.push("later", MdnsEvent::Goodbye));
        assert!(!queue.take().await.unwrap().lost);
    }

    #[tokio::test]
    async fn a_failure_of_the_daemon_is_reported() {
        let queue = EventQueue::default();
        queue.fail(Error::DaemonShutdown);
        assert!(queue.take().await.is_err());
    }
}
