//! Reflects one kind from a namespace to its twin in one peer. A change on either side reconciles
//! the object.

use std::{collections::BTreeSet, sync::Arc};

use kube::{
    Api, Resource, ResourceExt,
    runtime::{reflector::Store, watcher},
};
use tokio::sync::broadcast::error::RecvError;
use tombolo_api::names::ORIGIN_LABEL;
use tombolo_core::reflect::{
    change::{Change, decide},
    endpoint_slice::View,
    metadata::{ReflectionRoute, is_from},
};
use tombolo_runtime::{
    events::Events,
    observe::Watched,
    queue::{self, Queue, queue},
    writer,
};

use super::{
    addresses::{self, Addresses},
    home::{HomeWatch, Touched},
    kind::Kind,
};
use crate::peer::Peer;

const MANAGER: &str = "liqo-kubelet";

/// An object could not be reflected.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("read {0}")]
    Read(String, #[source] kube::Error),
    #[error(
        "{0} already exists and is not a reflected object: delete it, or rename the object in this \
         cluster"
    )]
    Taken(String),
    #[error("write {0}")]
    Write(String, #[source] kube::Error),
    #[error("delete {0}")]
    Delete(String, #[source] kube::Error),
    #[error("translate the endpoint addresses of {0}")]
    Name(String, #[source] addresses::Error),
}

/// Reflects one kind from a namespace to its twin in one peer.
pub struct Flow<K: Kind> {
    peer: Arc<Peer>,
    events: Events,
    home: Arc<HomeWatch<K::Home>>,
    home_namespace: String,
    remote: Api<K::Remote>,
    route: ReflectionRoute,
    addresses: Arc<Addresses>,
}

impl<K: Kind> Flow<K> {
    /// A flow from `home_namespace` to its twin `namespace`.
    pub fn new(
        peer: Arc<Peer>,
        home: Arc<HomeWatch<K::Home>>,
        addresses: Arc<Addresses>,
        home_namespace: &str,
        namespace: &str,
    ) -> Self {
        Self {
            events: Events::new(peer.home.clone(), MANAGER),
            home,
            home_namespace: home_namespace.to_owned(),
            remote: Api::namespaced(peer.remote.client.clone(), namespace),
            route: ReflectionRoute {
                origin: peer.settings.cluster_id.clone(),
                destination: peer.cluster.cluster_id.clone(),
                namespace: namespace.to_owned(),
            },
            addresses,
            peer,
        }
    }

    /// Runs until it is dropped.
    pub async fn run(self) {
        let (queue, asked) = queue();
        let mut touched = self.home.touched.subscribe();
        let ours = format!("{ORIGIN_LABEL}={}", self.route.origin);
        let home = &self.home.objects;
        let (remote_queue, index) = (queue.clone(), home.index().clone());
        let remote = Watched::telling(
            self.remote.clone(),
            watcher::Config::default().labels(&ours),
            move |changed, remote| match changed.into() {
                Touched::One(name) => remote_queue.push(name),
                Touched::All => enqueue_all(&index, remote, &remote_queue),
            },
        );
        let enqueue_all = || enqueue_all(home.index(), remote.index(), &queue);
        let follow_home = async {
            enqueue_all();
            loop {
                match touched.recv().await {
                    Ok(Touched::One(name)) => queue.push(name),
                    Ok(Touched::All) | Err(RecvError::Lagged(_)) => enqueue_all(),
                    Err(RecvError::Closed) => return std::future::pending().await,
                }
            }
        };
        let follow_networks = async {
            let mut networks = self.peer.networks.clone();
            while K::HAS_ADDRESSES && networks.changed().await.is_ok() {
                enqueue_all();
            }
            std::future::pending::<()>().await;
        };
        let work = queue::run("reflection", asked, async |name| {
            home.filled().await;
            remote.filled().await;
            self.reconcile(name, &remote).await
        });
        tokio::join!(follow_home, follow_networks, work);
    }

    async fn reconcile(&self, name: String, remote: &Watched<K::Remote>) -> Result<(), Error> {
        let home = self.home.objects.get(&self.home_namespace, &name);
        let home = home.filter(|home| home.meta().deletion_timestamp.is_none());
        let have = remote.get(&self.route.namespace, &name);
        let networks = *self.peer.networks.borrow();
        let (want, unnamed) = match (&home, &networks) {
            // The copy stays as it is until the networks are known.
            (Some(_), None) if K::HAS_ADDRESSES => return Ok(()),
            (Some(home), Some(networks)) if K::HAS_ADDRESSES => {
                let unnamed = K::unnamed(home, &self.peer.node, networks);
                let user = (self.home_namespace.clone(), name.clone());
                let (mapped, error) = self.addresses.names(&user, &unnamed, Some(networks)).await;
                let view = View { node: &self.peer.node, networks, mapped: &mapped };
                (K::forge(home, &self.route, Some(view)), error)
            }
            (Some(home), _) => (K::forge(home, &self.route, None), None),
            (None, _) if K::HAS_ADDRESSES => {
                let user = (self.home_namespace.clone(), name.clone());
                let (_, error) = self.addresses.names(&user, &BTreeSet::new(), None).await;
                (None, error)
            }
            (None, _) => (None, None),
        };
        self.act(&name, decide(want, have.as_deref()), home.as_deref()).await?;
        unnamed.map_or(Ok(()), |error| Err(Error::Name(self.describe(&name), error)))
    }

    async fn act(
        &self,
        name: &str,
        change: Change<K::Remote>,
        home: Option<&K::Home>,
    ) -> Result<(), Error> {
        match change {
            Change::None => Ok(()),
            Change::Make(object) => self.make(name, object, home).await,
            Change::Correct { uid, to } => self.correct(name, &uid, &to).await,
            Change::Remove { uid } => self.remove(name, &uid).await,
        }
    }

    async fn make(
        &self,
        name: &str,
        object: K::Remote,
        home: Option<&K::Home>,
    ) -> Result<(), Error> {
        // The watch sees only reflected objects.
        let there = match K::IS_COMMON {
            true => {
                let there = self.remote.get_opt(name).await;
                there.map_err(|error| Error::Read(self.describe(name), error))?
            }
            false => None,
        };
        match there {
            None => {
                let made = writer::apply(&self.remote, MANAGER, &object).await;
                made.map(drop).map_err(|error| Error::Write(self.describe(name), error))
            }
            Some(there) if is_from(there.meta(), &self.route.origin) => {
                let uid = there.uid().unwrap_or_default();
                self.correct(name, &uid, &object).await
            }
            Some(_) => {
                let taken = Error::Taken(self.describe(name));
                if let Some(home) = home {
                    self.events.warning(home, "NotReflected", &taken.to_string()).await;
                }
                Err(taken)
            }
        }
    }

    async fn correct(&self, name: &str, uid: &str, to: &K::Remote) -> Result<(), Error> {
        match writer::apply_to(&self.remote, MANAGER, uid, to).await {
            Ok(_) => Ok(()),
            // An immutable field has changed: the object is recreated after its deletion.
            Err(kube::Error::Api(status)) if status.code == 422 => self.remove(name, uid).await,
            Err(error) => Err(Error::Write(self.describe(name), error)),
        }
    }

    async fn remove(&self, name: &str, uid: &str) -> Result<(), Error> {
        let deleted = writer::delete_if_same(&self.remote, name, Some(uid)).await;
        deleted.map_err(|error| Error::Delete(self.describe(name), error))
    }

    fn describe(&self, name: &str) -> String {
        let (kind, namespace) = (K::Remote::kind(&()), &self.route.namespace);
        format!(
            "{kind} {name} in namespace {namespace} of cluster {}",
            self.peer.cluster.cluster_name
        )
    }
}

/// Enqueues the objects of both sides.
fn enqueue_all<H, R>(home: &Store<H>, remote: &Store<R>, queue: &Queue<String>)
where
    H: Resource<DynamicType = ()> + Clone + 'static,
    R: Resource<DynamicType = ()> + Clone + 'static,
{
    let names: BTreeSet<String> = (home.state().iter().map(|object| object.name_any()))
        .chain(remote.state().iter().map(|object| object.name_any()))
        .collect();
    for name in names {
        queue.push(name);
    }
}
