//! The objects of one kind in memory, kept up to date by a watch that notifies listeners.

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

/// A kind that can be watched.
pub trait Object:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K> Object for K where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

/// Namespace and name of an object. The namespace of cluster-scoped objects is empty.
pub type Key = (String, String);

/// The key of an object.
pub fn key<K: Resource>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

/// Selects the object with this name.
pub fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

/// A change of the index.
#[derive(Debug)]
pub enum Changed<'a, K> {
    /// One object has changed or is gone.
    One(&'a K),
    /// Any object may have changed: the objects were listed again, or for the first time.
    Any,
}

impl<K> Clone for Changed<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Changed<'_, K> {}

/// Objects of one kind, kept up to date until `self` is dropped.
pub struct Watched<K: Object> {
    index: Store<K>,
    /// Number of changes. The first list of all objects is the first change.
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
    /// Watches the objects of `api`.
    pub fn new(api: Api<K>, config: watcher::Config) -> Self {
        let (index, writer) = reflector::store();
        let (count, changes) = watch::channel(0);
        let listeners = Listeners::default();
        let follow =
            follow(api, config, Target { index: index.clone(), writer, count }, listeners.clone());
        let task = Task::spawn(format!("watch {}", K::kind(&())), follow);
        Self { index, changes, listeners, _task: task }
    }

    /// Watches the objects of `api` with a listener: see [`Self::notify`].
    pub fn notifying(
        api: Api<K>,
        config: watcher::Config,
        listener: impl FnMut(Changed<'_, K>, &Store<K>) + Send + 'static,
    ) -> Self {
        let watched = Self::new(api, config);
        watched.notify(listener);
        watched
    }

    /// Notifies a listener: now if the index is synced, and after each change of the index.
    pub fn notify(&self, mut listener: impl FnMut(Changed<'_, K>, &Store<K>) + Send + 'static) {
        self.notify_while(move |changed, index| {
            listener(changed, index);
            true
        });
    }

    /// Enqueues the `keys` of all objects, and those of each object that changes or is deleted,
    /// until the queue is closed.
    pub fn enqueue<Key, Keys>(&self, queue: &Queue<Key>, keys: impl Fn(&K) -> Keys + Send + 'static)
    where
        Key: Send + 'static,
        Keys: IntoIterator<Item = Key>,
    {
        let queue = queue.clone();
        self.notify_while(move |changed, index| {
            let enqueue = |object: &K| keys(object).into_iter().for_each(|key| queue.enqueue(key));
            match changed {
                Changed::One(object) => enqueue(object),
                Changed::Any => index.state().iter().for_each(|object| enqueue(object)),
            }
            !queue.is_closed()
        });
    }

    /// Notifies a listener until it returns false.
    pub(super) fn notify_while(
        &self,
        mut listener: impl FnMut(Changed<'_, K>, &Store<K>) -> bool + Send + 'static,
    ) {
        let mut listeners = self.listeners.lock();
        if !self.is_synced() || listener(Changed::Any, &self.index) {
            listeners.push(Box::new(listener));
        }
    }

    /// Waits until the objects have been listed once.
    pub async fn synced(&self) {
        synced(&self.changes).await;
    }

    /// Whether the objects have been listed once.
    pub fn is_synced(&self) -> bool {
        *self.changes.borrow() > 0
    }

    /// Number of changes: wakes its receivers at each, the first list included.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.clone()
    }

    /// The object with this name. The namespace of cluster-scoped objects is empty.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let mut object = ObjectRef::new(name);
        if !namespace.is_empty() {
            object = object.within(namespace);
        }
        self.index.get(&object)
    }

    /// The object, if only one is watched.
    pub fn only(&self) -> Option<Arc<K>> {
        self.all().pop()
    }

    /// All objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.index.state()
    }

    /// All objects in a namespace.
    pub fn within(&self, namespace: &str) -> Vec<Arc<K>> {
        self.index.state_filter(|object| object.namespace().as_deref() == Some(namespace))
    }

    /// The index. It can outlive `self`, but then it is no longer updated.
    pub fn index(&self) -> &Store<K> {
        &self.index
    }
}

/// Wakes all callers, unlike `wait_until_ready` of the index, which wakes only the last one.
pub(super) async fn synced(changes: &watch::Receiver<u64>) {
    // An error means that the watch has ended, and so has its owner.
    let _ = changes.clone().wait_for(|changes| *changes > 0).await;
}

type Listener<K> = Box<dyn FnMut(Changed<'_, K>, &Store<K>) -> bool + Send>;

/// Listeners of changes. One that returns false is removed.
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

    fn notify(&self, changed: Changed<'_, K>, index: &Store<K>) {
        self.lock().retain_mut(|listener| listener(changed, index));
    }
}

/// The index that a watch updates.
struct Target<K: Object> {
    index: Store<K>,
    writer: reflector::store::Writer<K>,
    count: watch::Sender<u64>,
}

async fn follow<K: Object>(
    api: Api<K>,
    config: watcher::Config,
    mut target: Target<K>,
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
                    true => warn!(%kind, retry_in = ?delay, "watch failed: {error}"),
                    false => debug!(%kind, retry_in = ?delay, "watch still fails: {error}"),
                }
                sleep(delay).await;
                continue;
            }
        };
        let before = match &event {
            Event::InitDone => target.index.state(),
            _ => Vec::new(),
        };
        target.writer.apply_watcher_event(&event);
        let changed = match &event {
            Event::Apply(object) | Event::Delete(object) => Changed::One(object),
            Event::InitDone => Changed::Any,
            // Listed, but not in the index before the list is complete.
            Event::Init | Event::InitApply(_) => continue,
        };
        if retry.works(Instant::now().into_std()) {
            info!(%kind, "watch works again");
        }
        target.count.send_modify(|count| *count += 1);
        // Deleted while the watch was interrupted.
        for gone in before {
            if target.index.get(&ObjectRef::from_obj(&*gone)).is_none() {
                listeners.notify(Changed::One(&*gone), &target.index);
            }
        }
        listeners.notify(changed, &target.index);
    }
}

/// Whether the API server refuses the request. A quick retry doesn't help then.
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

    /// An API server that refuses lists, watches or nothing, and counts requests.
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
                // A watch without events.
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
        assert!(watched.is_synced());
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_list_is_retried_with_backoff_and_logged_once() {
        refused(Server { refuses_lists: true.into(), ..Server::default() }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_watch_is_retried_with_backoff_and_logged_once() {
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
        watched.synced().await;
        sleep(Duration::from_secs(60)).await;
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:#?}");
        assert!(lines[1].contains("works again"), "{lines:#?}");
    }
}
