//! One kind, from one namespace to its twin in one peer: whatever changes on either side, the
//! object is looked at again, and made what it should be.

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

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("look whether there is {0}")]
    Read(String, #[source] kube::Error),
    #[error(
        "{0} is there already and was not reflected, so yours is not: remove that one, or rename \
         yours"
    )]
    Taken(String),
    #[error("write {0}")]
    Write(String, #[source] kube::Error),
    #[error("delete {0}")]
    Delete(String, #[source] kube::Error),
    #[error("name the endpoints of {0}")]
    Name(String, #[source] addresses::Error),
}

/// One kind, from one namespace to its twin in one peer.
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
    /// From a namespace to its twin.
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

    /// Never ends by itself.
    pub async fn run(self) {
        let (queue, asked) = queue();
        let mut touched = self.home.touched.subscribe();
        let ours = format!("{ORIGIN_LABEL}={}", self.route.origin);
        let home = &self.home.objects;
        let (tell, index) = (queue.clone(), home.index().clone());
        let remote = Watched::telling(
            self.remote.clone(),
            watcher::Config::default().labels(&ours),
            move |changed, remote| match changed.into() {
                Touched::One(name) => tell.push(name),
                Touched::All => all(&index, remote, &tell),
            },
        );
        let look_at_all = || all(home.index(), remote.index(), &queue);
        let follow_home = async {
            look_at_all();
            loop {
                match touched.recv().await {
                    Ok(Touched::One(name)) => queue.push(name),
                    Ok(Touched::All) | Err(RecvError::Lagged(_)) => look_at_all(),
                    Err(RecvError::Closed) => return std::future::pending().await,
                }
            }
        };
        let follow_networks = async {
            let mut networks = self.peer.networks.clone();
            while K::HAS_ADDRESSES && networks.changed().await.is_ok() {
                look_at_all();
            }
            std::future::pending::<()>().await;
        };
        let work = queue::run("reflection", asked, async |name| {
            home.filled().await;
            remote.filled().await;
            self.look_at(name, &remote).await
        });
        tokio::join!(follow_home, follow_networks, work);
    }

    async fn look_at(&self, name: String, remote: &Watched<K::Remote>) -> Result<(), Error> {
        let home = self.home.objects.get(&self.home_namespace, &name);
        let home = home.filter(|home| home.meta().deletion_timestamp.is_none());
        let have = remote.get(&self.route.namespace, &name);
        let networks = *self.peer.networks.borrow();
        let (want, unnamed) = match (&home, &networks) {
            // What is there stays until it is known how it should be.
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
        unnamed.map_or(Ok(()), |error| Err(Error::Name(self.what(&name), error)))
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
        // The watch sees only what is ours.
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
            // What can't be changed is made anew, which its deletion leads to.
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

/// Whatever there is on either side.
fn all<H, R>(home: &Store<H>, remote: &Store<R>, queue: &Queue<String>)
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
