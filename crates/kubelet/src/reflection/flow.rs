//! Reflects one kind from one namespace to its twin in one peer. A change on either side reconciles
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

/// The action that failed.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("get {0}")]
    Read(String, #[source] kube::Error),
    #[error(
        "{0} exists already and is not a reflected object: delete it, or rename the object in the \
         home namespace"
    )]
    Taken(String),
    #[error("write {0}")]
    Write(String, #[source] kube::Error),
    #[error("delete {0}")]
    Delete(String, #[source] kube::Error),
    #[error("translate the endpoint addresses of {0}")]
    Translate(String, #[source] addresses::Error),
}

/// The reflection of one kind from one namespace to its twin in one peer.
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
    /// A flow from a namespace to its twin.
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

    /// Runs until it is aborted.
    pub async fn run(self) {
        let (queue, requests) = queue();
        let mut touched = self.home.touched.subscribe();
        let ours = format!("{ORIGIN_LABEL}={}", self.route.origin);
        let home = &self.home.objects;
        let (notify, index) = (queue.clone(), home.index().clone());
        let remote = Watched::notifying(
            self.remote.clone(),
            watcher::Config::default().labels(&ours),
            move |changed, remote| match changed.into() {
                Touched::One(name) => notify.enqueue(name),
                Touched::All => enqueue_all(&index, remote, &notify),
            },
        );
        let enqueue_everything = || enqueue_all(home.index(), remote.index(), &queue);
        let follow_home = async {
            enqueue_everything();
            loop {
                match touched.recv().await {
                    Ok(Touched::One(name)) => queue.enqueue(name),
                    Ok(Touched::All) | Err(RecvError::Lagged(_)) => enqueue_everything(),
                    Err(RecvError::Closed) => return std::future::pending().await,
                }
            }
        };
        let follow_networks = async {
            let mut networks = self.peer.networks.clone();
            while K::HAS_ADDRESSES && networks.changed().await.is_ok() {
                enqueue_everything();
            }
            std::future::pending::<()>().await;
        };
        let work = queue::run("reflection", requests, async |name| {
            home.synced().await;
            remote.synced().await;
            self.reconcile(name, &remote).await
        });
        tokio::join!(follow_home, follow_networks, work);
    }

    async fn reconcile(&self, name: String, remote: &Watched<K::Remote>) -> Result<(), Error> {
        let home = self.home.objects.get(&self.home_namespace, &name);
        let home = home.filter(|home| home.meta().deletion_timestamp.is_none());
        let have = remote.get(&self.route.namespace, &name);
        let networks = *self.peer.networks.borrow();
        let (want, error) = match (&home, &networks) {
            // The remote object stays until the networks are known.
            (Some(_), None) if K::HAS_ADDRESSES => return Ok(()),
            (Some(home), Some(networks)) if K::HAS_ADDRESSES => {
                let untranslated = K::untranslated(home, &self.peer.node, networks);
                let user = (self.home_namespace.clone(), name.clone());
                let (mapped, error) =
                    self.addresses.translate(&user, &untranslated, Some(networks)).await;
                let view = View { node: &self.peer.node, networks, mapped: &mapped };
                (K::forge(home, &self.route, Some(view)), error)
            }
            (Some(home), _) => (K::forge(home, &self.route, None), None),
            (None, _) if K::HAS_ADDRESSES => {
                let user = (self.home_namespace.clone(), name.clone());
                let (_, error) = self.addresses.translate(&user, &BTreeSet::new(), None).await;
                (None, error)
            }
            (None, _) => (None, None),
        };
        self.act(&name, decide(want, have.as_deref()), home.as_deref()).await?;
        error.map_or(Ok(()), |error| Err(Error::Translate(self.what(&name), error)))
    }

    async fn act(
        &self,
        name: &str,
        change: Change<K::Remote>,
        home: Option<&K::Home>,
    ) -> Result<(), Error> {
        match change {
            Change::None => Ok(()),
            Change::Create(object) => self.make(name, object, home).await,
            Change::Update { uid, to } => self.correct(name, &uid, &to).await,
            Change::Delete { uid } => self.remove(name, &uid).await,
        }
    }

    async fn make(
        &self,
        name: &str,
        object: K::Remote,
        home: Option<&K::Home>,
    ) -> Result<(), Error> {
        // The watch selects only reflected objects.
        let there = match K::IS_COMMON {
            true => {
                let there = self.remote.get_opt(name).await;
                there.map_err(|error| Error::Read(self.what(name), error))?
            }
            false => None,
        };
        match there {
            None => {
                let made = writer::apply(&self.remote, MANAGER, &object).await;
                made.map(drop).map_err(|error| Error::Write(self.what(name), error))
            }
            Some(there) if is_from(there.meta(), &self.route.origin) => {
                let uid = there.uid().unwrap_or_default();
                self.correct(name, &uid, &object).await
            }
            Some(_) => {
                let taken = Error::Taken(self.what(name));
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
            // An immutable field has changed. After the deletion the object is created again.
            Err(kube::Error::Api(status)) if status.code == 422 => self.remove(name, uid).await,
            Err(error) => Err(Error::Write(self.what(name), error)),
        }
    }

    async fn remove(&self, name: &str, uid: &str) -> Result<(), Error> {
        let deleted = writer::delete_if_same(&self.remote, name, Some(uid)).await;
        deleted.map_err(|error| Error::Delete(self.what(name), error))
    }

    fn what(&self, name: &str) -> String {
        let (kind, namespace) = (K::Remote::kind(&()), &self.route.namespace);
        format!(
            "{kind} {name} in namespace {namespace} of cluster {}",
            self.peer.cluster.cluster_name
        )
    }
}

/// Enqueues all objects of both sides.
fn enqueue_all<H, R>(home: &Store<H>, remote: &Store<R>, queue: &Queue<String>)
where
    H: Resource<DynamicType = ()> + Clone + 'static,
    R: Resource<DynamicType = ()> + Clone + 'static,
{
    let names: BTreeSet<String> = (home.state().iter().map(|object| object.name_any()))
        .chain(remote.state().iter().map(|object| object.name_any()))
        .collect();
    for name in names {
        queue.enqueue(name);
    }
}
