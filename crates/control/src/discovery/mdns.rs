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
use tombolo_core::discovery::{ANSWER, Announcement, Interface, NotAnAnnouncement};
use tombolo_runtime::{
    metrics::{self, Step},
    task::Task,
};
use tracing::{debug, info, warn};

/// How long it may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// After so long it is listened again, if too much was said at once.
const AGAIN: Duration = Duration::from_secs(1);
/// As many names wait to be looked at.
const MOST_WAITING: usize = 2000;

/// What was heard under a name.
pub(super) enum Heard {
    /// A cluster is there.
    Announcement(Announcement),
    /// It is not.
    Goodbye,
    /// What is announced is no cluster.
    Nonsense(NotAnAnnouncement),
}

/// What was heard lately.
#[derive(Default)]
pub(super) struct News {
    /// Something was not heard: who was there before may not be there any more. All who are will be
    /// heard anew.
    pub missed: bool,
    /// Under each name, what was heard last.
    pub heard: BTreeMap<String, Heard>,
}

pub(super) struct Mdns {
    daemon: ServiceDaemon,
    /// Index and address of each interface that is spoken on. The daemon looks here, too.
    spoken_on: Arc<Mutex<BTreeSet<(u32, IpAddr)>>>,
    announced: Option<Announced>,
    search: Option<Task>,
    inbox: Arc<Inbox>,
}

struct Announced {
    announcement: Announcement,
    name: String,
    /// How often it was said. It is said too, as what is the same as before is not heard.
    times: u32,
}

impl Mdns {
    /// Silent at first, and on no interface.
    pub fn start() -> mdns_sd::Result<Self> {
        let daemon = ServiceDaemon::new()?;
        let spoken_on: Arc<Mutex<BTreeSet<_>>> = Arc::default();
        let chosen = spoken_on.clone();
        let is_chosen = IfPredicate::new(move |interface| {
            interface.index.is_some_and(|index| lock(&chosen).contains(&(index, interface.ip())))
        });
        daemon.disable_interface(IfKind::All)?;
        daemon.enable_interface(IfKind::Predicate(is_chosen))?;
        Ok(Self { daemon, spoken_on, announced: None, search: None, inbox: Arc::default() })
    }

    /// Speaks on these interfaces, and at no other of their addresses. When one has gone the daemon
    /// finds out within seconds.
    pub fn speak_on(&self, interfaces: &[Interface]) -> mdns_sd::Result<()> {
        let all = interfaces.iter();
        *lock(&self.spoken_on) = all
            .flat_map(|it| it.addresses.iter().map(|address| (it.index, address.addr())))
            .collect();
        // None more than before: but then it looks.
        self.daemon.enable_interface(Vec::<IfKind>::new())
    }

    /// Announces this, and nothing else.
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
                    "announcing"
                );
                self.announced = Some(Announced { announcement, name, times });
            }
            None => {
                if let Some(before) = &self.announced {
                    self.daemon.unregister(&before.name)?;
                    info!("this cluster is not announced any more");
                    self.announced = None;
                }
            }
        }
        Ok(())
    }

    /// Says it once more: that this cluster is still there.
    pub fn announce_again(&mut self) {
        let Some(announced) = &mut self.announced else { return };
        announced.times = announced.times.wrapping_add(1);
        let service = service(&announced.announcement, announced.times);
        if let Err(error) = service.and_then(|service| self.daemon.register(service)) {
            debug!("announce again: {error}");
        }
    }

    /// Searches, or not. Says whether the search has begun just now.
    pub fn search(&mut self, search: bool) -> mdns_sd::Result<bool> {
        let begins = search && self.search.is_none();
        if begins {
            let events = self.daemon.browse(&domain())?;
            let listen = listen(self.daemon.clone(), events, self.inbox.clone());
            self.search = Some(Task::spawn("mDNS search", listen));
        } else if !search && self.search.is_some() {
            self.daemon.stop_browse(&domain())?;
            self.search = None;
            *lock(&self.inbox.news) = News::default();
        }
        Ok(begins)
    }

    /// Waits until something has been heard. Nothing will be any more after an error.
    pub async fn hear(&self) -> mdns_sd::Result<News> {
        self.inbox.take().await
    }

    /// Asks a cluster whether it is still there: if it does not answer, its goodbye is heard. Says
    /// whether it could be asked.
    pub fn ask(&self, name: &str) -> bool {
        let asked = self.daemon.verify(name.to_owned(), ANSWER.unsigned_abs());
        if let Err(error) = &asked {
            debug!(name, "ask: {error}");
        }
        asked.is_ok()
    }

    /// Says goodbye.
    pub async fn stop(&mut self) {
        if let Some(announced) = self.announced.take()
            && let Ok(done) = self.daemon.unregister(&announced.name)
        {
            let _ = timeout(GOODBYE, done.recv_async()).await;
        }
        if let Ok(done) = self.daemon.shutdown() {
            let _ = timeout(GOODBYE, done.recv_async()).await;
        }
    }
}

/// Whether the daemon has too much to do, and has to be told again.
pub(super) fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>() == Some(&Error::Again)
}

/// What was heard and not looked at yet. However long that takes, the daemon does not wait.
#[derive(Default)]
struct Inbox {
    news: Mutex<News>,
    /// Why nothing is heard any more.
    broken: Mutex<Option<Error>>,
    bell: Notify,
}

impl Inbox {
    /// Says whether there was room for it.
    fn put(&self, name: &str, heard: Heard) -> bool {
        let all = &mut lock(&self.news).heard;
        let has_room = all.len() < MOST_WAITING || all.contains_key(name);
        if has_room {
            all.insert(name.to_owned(), heard);
            self.bell.notify_one();
        }
        has_room
    }

    /// What was heard before does not count.
    fn miss(&self) {
        *lock(&self.news) = News { missed: true, heard: BTreeMap::new() };
        self.bell.notify_one();
    }

    fn fail(&self, error: Error) {
        *lock(&self.broken) = Some(error);
        self.bell.notify_one();
    }

    async fn take(&self) -> mdns_sd::Result<News> {
        loop {
            if let Some(error) = lock(&self.broken).take() {
                return Err(error);
            }
            let news = std::mem::take(&mut *lock(&self.news));
            if news.missed || !news.heard.is_empty() {
                return Ok(news);
            }
            self.bell.notified().await;
        }
    }
}

async fn listen(daemon: ServiceDaemon, mut events: Receiver<ServiceEvent>, inbox: Arc<Inbox>) {
    loop {
        while let Ok(event) = events.recv_async().await {
            let has_room = match event {
                ServiceEvent::ServiceResolved(service) => {
                    inbox.put(service.get_fullname(), read(&service))
                }
                ServiceEvent::ServiceRemoved(_, name) => inbox.put(&name, Heard::Goodbye),
                other => {
                    debug!(?other);
                    true
                }
            };
            if !has_room {
                break;
            }
        }
        warn!("too much was said at once in the local network: listening again");
        // A goodbye may have been among it, and is not said twice.
        inbox.miss();
        events = loop {
            sleep(AGAIN).await;
            match daemon.browse(&domain()) {
                Ok(again) => break again,
                Err(Error::Again) => {}
                Err(error) => return inbox.fail(error),
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
    let addresses = service.get_addresses().iter().map(ScopedIp::to_ip_addr);
    let (name, port) = (service.get_fullname(), service.get_port());
    let announcement = Announcement::read(name, addresses, port, &properties);
    metrics::took(Step::Parse, start.elapsed());
    match announcement {
        Ok(announcement) => Heard::Announcement(announcement),
        Err(error) => Heard::Nonsense(error),
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_does_not_fit_is_missed_and_nothing_from_before_counts() {
        let inbox = Inbox::default();
        for number in 0..MOST_WAITING {
            assert!(inbox.put(&number.to_string(), Heard::Goodbye));
        }
        assert!(inbox.put("7", Heard::Goodbye), "it is among them");
        assert!(!inbox.put("one more", Heard::Goodbye));
        inbox.miss();
        assert!(inbox.put("later", Heard::Goodbye));
        let news = inbox.take().await.unwrap();
        assert!(news.missed && news.heard.keys().eq(["later"]));
        assert!(inbox.put("later", Heard::Goodbye));
        assert!(!inbox.take().await.unwrap().missed);
    }

    #[tokio::test]
    async fn that_nothing_is_heard_any_more_is_said() {
        let inbox = Inbox::default();
        inbox.fail(Error::DaemonShutdown);
        assert!(inbox.take().await.is_err());
    }
}
