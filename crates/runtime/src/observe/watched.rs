//! The objects of one kind, kept at hand by a watch that tells whoever listens what has changed.

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::StreamExt;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        reflector::{self, ObjectRef, Store},
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tombolo_core::watch_retry::{Retry, WatchRetry};
use tracing::{debug, info, warn};

use crate::{chain::Chain, queue::Queue, task::Task};

/// What can be watched.
pub trait Object:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

/// Namespace, empty where there is none, and name.
pub type Key = (String, String);

/// Where an object is.
pub fn key<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Only the object of this name.
pub fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// What has changed.
#[derive(Debug)]
pub enum Changed<'a, K> {
    /// One object.
    One(&'a K),
    /// Any of them: nobody has looked for a while, or ever.
    Any,
}

impl<K> Clone for Changed<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Changed<'_, K> {}

/// Objects of one kind, kept up to date until this is dropped.
pub struct Watched<K: Object> {
    index: Store<K>,
    /// How often something has changed; the first time is when all has been seen.
    changes: watch::Receiver<u64>,
    listeners: Listeners<K>,
    _task: Task,
}

impl<K: Object> Debug for Watched<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watched<{}>", K::kind(&()))
    }
}

impl<K: Object> Watched<K> {
    /// Watches what `api` has.
    pub fn new(api: Api<K>, config: watcher::Config) -> Self {
        let (index, writer) = reflector::store();
        let (count, changes) = watch::channel(0);
        let listeners = Listeners::default();
        let keep =
            keep(api, config, Kept { index: index.clone(), writer, count }, listeners.clone());
        let task = Task::spawn(format!("watch {}", K::kind(&())), keep);
        Self { index, changes, listeners, _task: task }
    }

    /// Watches, and tells of each change once the index, which it shows, has it.
    pub fn telling(
        api: Api<K>,
        config: watcher::Config,
        tell: impl FnMut(Changed<'_, K>, &Store<K>) + Send + 'static,
    ) -> Self {
        let watched = Self::new(api, config);
        watched.tell(tell);
        watched
    }

    /// Tells of what is there, and from now on of each change once the index, which it shows, has it.
    pub fn tell(&self, mut tell: impl FnMut(Changed<'_, K>, &Store<K>) + Send + 'static) {
        self.tell_while(move |changed, index| {
            tell(changed, index);
            true
        });
    }

    /// Asks for a look at what `keys` says of each object: of those that are there, and of each that
    /// changes or goes, as long as somebody looks.
    pub fn feed<Key, Keys>(&self, queue: &Queue<Key>, keys: impl Fn(&K) -> Keys + Send + 'static)
    where
        Key: Send + 'static,
        Keys: IntoIterator<Item = Key>,
    {
        let queue = queue.clone();
        self.tell_while(move |changed, index| {
            let ask = |object: &K| keys(object).into_iter().for_each(|key| queue.push(key));
            match changed {
                Changed::One(object) => ask(object),
                Changed::Any => index.state().iter().for_each(|object| ask(object)),
            }
            !queue.is_closed()
        });
    }

    /// Tells until the listener says that it wants to hear no more.
    pub(super) fn tell_while(
        &self,
        mut tell: impl FnMut(Changed<'_, K>, &Store<K>) -> bool + Send + 'static,
    ) {
        let mut listeners = self.listeners.lock();
        if !self.is_filled() || tell(Changed::Any, &self.index) {
            listeners.push(Box::new(tell));
        }
    }

    /// Waits until all that is there has been seen once.
    pub async fn filled(&self) {
        filled(&self.changes).await;
    }

    /// Whether all that is there has been seen at least once.
    pub fn is_filled(&self) -> bool {
        *self.changes.borrow() > 0
    }

    /// Says when something has changed, or was seen for the first time.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The object of this name; the namespace is empty where there is none.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let mut object = ObjectRef::new(name);
        if !namespace.is_empty() {
            object = object.within(namespace);
        }
        self.index.get(&object)
    }

    /// The object, where only one is watched.
    pub fn only(&self) -> Option<Arc<K>> {
        self.all().pop()
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.index.state()
    }

    /// All objects of a namespace.
    pub fn within(&self, namespace: &str) -> Vec<Arc<K>> {
        self.index.state_filter(|object| object.namespace().as_deref() == Some(namespace))
    }

    /// All objects, for those who outlive this; they are up to date as long as this is there.
    pub fn index(&self) -> &Store<K> {
        &self.index
    }
}

/// Unlike the index's own `wait_until_ready`, which wakes the last who asked, it wakes all.
pub(super) async fn filled(changes: &watch::Receiver<u64>) {
    // It fails when the watch has ended, which it does with whoever has it.
    let _ = changes.clone().wait_for(|changes| *changes > 0).await;
}

type Listener<K> = Box<dyn FnMut(Changed<'_, K>, &Store<K>) -> bool + Send>;

/// Who hears of changes.
struct Listeners<K: Object>(Arc<Mutex<Vec<Listener<K>>>>);

impl<K: Object> Default for Listeners<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Object> Clone for Listeners<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Object> Listeners<K> {
    fn lock(&self) -> MutexGuard<'_, Vec<Listener<K>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, changed: Changed<'_, K>, index: &Store<K>) {
        self.lock().retain_mut(|tell| tell(changed, index));
    }
}

/// What a watch keeps up to date.
struct Kept<K: Object> {
    index: Store<K>,
    writer: reflector::store::Writer<K>,
    count: watch::Sender<u64>,
}

async fn keep<K: Object>(
    api: Api<K>,
    config: watcher::Config,
    mut kept: Kept<K>,
    listeners: Listeners<K>,
) {
    let events =
        watcher::watcher(api, config).modify(|object: &mut K| object.managed_fields_mut().clear());
    let mut events = std::pin::pin!(events);
    let (kind, mut retry) = (K::kind(&()), WatchRetry::default());
    while let Some(event) = events.next().await {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                let Retry { delay, is_news } =
                    retry.failed(Instant::now().into_std(), is_refused(&error));
                let error = Chain(&error);
                match is_news {
                    true => warn!(%kind, "a watch failed, and is tried again: {error}"),
                    false => debug!(%kind, retry_in = ?delay, "the watch still fails: {error}"),
                }
                sleep(delay).await;
                continue;
            }
        };
        let before = match &event {
            Event::InitDone => kept.index.state(),
            _ => Vec::new(),
        };
        kept.writer.apply_watcher_event(&event);
        let changed = match &event {
            Event::Apply(object) | Event::Delete(object) => Changed::One(object),
            Event::InitDone => Changed::Any,
            // Listed, but not in the index before the list is complete.
            Event::Init | Event::InitApply(_) => continue,
        };
        if retry.works(Instant::now().into_std()) {
            info!(%kind, "the watch works again");
        }
        kept.count.send_modify(|count| *count += 1);
        // Those that went while nobody watched.
        for gone in before {
            if kept.index.get(&ObjectRef::from_obj(&*gone)).is_none() {
                listeners.tell(Changed::One(&*gone), &kept.index);
            }
        }
        listeners.tell(changed, &kept.index);
    }
}

/// Whether the API server has refused: the right is missing, and trying again soon won't help.
fn is_refused(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    let code = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => status.code,
        _ => return false,
    };
    matches!(code, 401 | 403)
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, AtomicUsize, Ordering},
        time::Duration,
    };

    use http::{Request, Response};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{Client, client::Body};
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::log_record::LogRecord;

    /// An API server that refuses lists, watches or nothing, and what was asked of it.
    #[derive(Default)]
    struct Server {
        refuses_lists: AtomicBool,
        refuses_watches: AtomicBool,
        requests: AtomicUsize,
    }

    impl Server {
        fn client(self: &Arc<Self>) -> Client {
            let server = self.clone();
            let answer = move |request: Request<Body>| {
                let server = server.clone();
                let query = request.uri().query().unwrap_or_default();
                let is_watch = query.contains("watch=true");
                async move { Ok::<_, kube::Error>(server.answer(is_watch).await) }
            };
            Client::new(service_fn(answer), "default")
        }

        async fn answer(&self, is_watch: bool) -> Response<Body> {
            self.requests.fetch_add(1, Ordering::Relaxed);
            let refuses = if is_watch { &self.refuses_watches } else { &self.refuses_lists };
            let (code, body) = match refuses.load(Ordering::Relaxed) {
                true => {
                    let (status, reason) = ("Failure", "Forbidden");
                    (
                        403,
                        json!({ "status": status, "reason": reason, "code": 403, "message": "no" }),
                    )
                }
                // Nothing ever happens.
                false if is_watch => std::future::pending().await,
                false => (200, json!({ "metadata": { "resourceVersion": "1" }, "items": [] })),
            };
            let answer = Response::builder().status(code);
            answer.body(Body::from(body.to_string().into_bytes())).expect("an answer")
        }

        fn requests(&self) -> usize {
            self.requests.load(Ordering::Relaxed)
        }
    }

    async fn refused(server: Server) {
        let (server, log) = (Arc::new(server), LogRecord::default());
        let _guard = log.start();
        let api = Api::<ConfigMap>::default_namespaced(server.client());
        let watched = Watched::new(api, watcher::Config::default());
        sleep(Duration::from_secs(300)).await;
        let requests = server.requests();
        assert!(requests < 50, "{requests} requests in five minutes");
        assert_eq!(log.lines().len(), 1, "{:#?}", log.lines());
        assert!(log.lines()[0].contains("ConfigMap"), "{:#?}", log.lines());

        server.refuses_lists.store(false, Ordering::Relaxed);
        sleep(Duration::from_secs(11)).await;
        assert!(watched.is_filled());
    }

    #[tokio::test(start_paused = true)]
    async fn a_list_that_is_refused_is_asked_for_less_and_less_and_logged_once() {
        refused(Server { refuses_lists: true.into(), ..Server::default() }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_refused_is_asked_for_less_and_less_and_logged_once() {
        refused(Server { refuses_watches: true.into(), ..Server::default() }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_recovery_is_logged_once() {
        let server = Arc::new(Server { refuses_lists: true.into(), ..Server::default() });
        let log = LogRecord::default();
        let _guard = log.start();
        let api = Api::<ConfigMap>::default_namespaced(server.client());
        let watched = Watched::new(api, watcher::Config::default());
        sleep(Duration::from_secs(60)).await;
        server.refuses_lists.store(false, Ordering::Relaxed);
        watched.filled().await;
        sleep(Duration::from_secs(60)).await;
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[1].contains("works again"), "{lines:#?}");
    }
}
