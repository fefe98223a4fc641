//! Copies custom resources to the clusters that they are for, brings their status back, and lets
//! deletions follow. One task for each cluster that has given us an identity.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use kube::{
    Api, Resource, ResourceExt,
    api::ObjectMeta,
    core::NamespaceResourceScope,
    runtime::{Controller, controller::Action, reflector::ObjectRef, watcher},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tombolo_api::{
    ClusterId,
    discovery::{ForeignCluster, ResourceRequest, condition},
    names::{REPLICATE_TO_LABEL, REPLICATED_FROM_LABEL, REPLICATOR_FINALIZER},
    net::NetworkConfig,
    sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::replicate::{self, Original, Step};
use tombolo_runtime::{
    controller,
    remote::{NoIdentity, Remote},
    shutdown::Shutdown,
    writer,
};
use tracing::info;

use crate::context::Context;

const MANAGER: &str = "liqo-control/replicator";

/// Starts and ends a replicator for each cluster as identities come and go.
pub async fn run(context: Arc<Context>) {
    let running = tokio::sync::Mutex::new(BTreeMap::<String, Peer>::new());
    let state = Arc::new(State { context: context.clone(), running });
    let clusters = Api::<ForeignCluster>::all(context.client.clone());
    let controller = Controller::new(clusters, watcher::Config::default());
    controller::run("replicator", controller, follow, state, &context.shutdown).await;
}

struct State {
    context: Arc<Context>,
    running: tokio::sync::Mutex<BTreeMap<String, Peer>>,
}

struct Peer {
    shutdown: Shutdown,
    url: String,
    namespace: String,
}

async fn follow(cluster: Arc<ForeignCluster>, state: Arc<State>) -> Result<Action, NoIdentity> {
    let name = cluster.name_any();
    let mut running = state.running.lock().await;
    let status = cluster.status.clone().unwrap_or_default();
    if !tombolo_core::condition::is_true(&status.conditions, condition::AUTHENTICATED) {
        if let Some(peer) = running.remove(&name) {
            peer.shutdown.ask();
        }
        return Ok(Action::await_change());
    }
    let remote = state.context.remotes.get(&cluster).await?;
    let local = status.tenant_namespace.and_then(|both| both.local).unwrap_or_default();
    if let Some(peer) = running.get(&name) {
        if peer.url == remote.url && peer.namespace == remote.namespace {
            return Ok(Action::await_change());
        }
        peer.shutdown.ask();
    }
    info!(cluster = %remote.cluster.cluster_name, "copying to {}", remote.url);
    let shutdown = state.context.shutdown.child();
    let peer = Peer {
        shutdown: shutdown.clone(),
        url: remote.url.clone(),
        namespace: remote.namespace.clone(),
    };
    running.insert(name, peer);
    let pair = Pair { context: state.context.clone(), remote, local, shutdown };
    tokio::spawn(pair.clone().copy::<ResourceRequest>());
    tokio::spawn(pair.clone().copy::<ResourceOffer>());
    tokio::spawn(pair.clone().copy::<NetworkConfig>());
    tokio::spawn(pair.copy::<NamespaceMap>());
    Ok(Action::await_change())
}

/// This cluster's tenant namespace for a peer, and that peer's for this cluster.
#[derive(Clone)]
struct Pair {
    context: Arc<Context>,
    remote: Remote,
    local: String,
    shutdown: Shutdown,
}

/// A kind that is copied.
trait Replicated:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl Replicated for ResourceRequest {}
impl Replicated for ResourceOffer {}
impl Replicated for NetworkConfig {}
impl Replicated for NamespaceMap {}

impl Pair {
    async fn copy<K: Replicated>(self) {
        let originals = Api::<K>::namespaced(self.context.client.clone(), &self.local);
        let copies = Api::<K>::namespaced(self.remote.client.clone(), &self.remote.namespace);
        let us = &self.context.settings.cluster_id;
        let ours = watcher::Config::default()
            .labels(&format!("{REPLICATE_TO_LABEL}={}", self.remote.cluster.cluster_id));
        let theirs = watcher::Config::default().labels(&format!("{REPLICATED_FROM_LABEL}={us}"));

        let namespace = self.local.clone();
        let original_of = move |copy: K| Some(ObjectRef::new(&copy.name_any()).within(&namespace));
        let controller =
            Controller::new(originals.clone(), ours).watches(copies.clone(), theirs, original_of);
        let shutdown = self.shutdown.clone();
        let state = Arc::new(Copier { pair: self, originals, copies });
        controller::run("replicator", controller, reconcile, state, &shutdown).await;
    }
}

struct Copier<K: Replicated> {
    pair: Pair,
    originals: Api<K>,
    copies: Api<K>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{act} in this cluster")]
    Here { act: &'static str, source: Box<kube::Error> },
    #[error("{act} at {url}")]
    There { act: &'static str, url: String, source: Box<kube::Error> },
}

async fn reconcile<K: Replicated>(
    original: Arc<K>,
    state: Arc<Copier<K>>,
) -> Result<Action, Error> {
    let name = original.name_any();
    let url = &state.pair.remote.url;
    let here = |act| move |source| Error::Here { act, source: Box::new(source) };
    let there =
        |act| move |source| Error::There { act, url: url.clone(), source: Box::new(source) };
    let copy = state.copies.get_opt(&name).await.map_err(there("read the copy"))?;
    let copy_value = copy.as_ref().map(as_value);
    let guarded = tombolo_runtime::finalizer::has(&*original, REPLICATOR_FINALIZER);
    let value = as_value(&*original);
    let kind = K::kind(&());
    match replicate::next(Original { object: &value, guarded }, copy_value.as_ref()) {
        Step::Guard => {
            tombolo_runtime::finalizer::add(&state.originals, &*original, REPLICATOR_FINALIZER)
                .await
                .map_err(here("put the finalizer on the original"))?;
        }
        Step::Copy => {
            // What was seen may be old, and must not bring back what has just been deleted.
            let current =
                state.originals.get_opt(&name).await.map_err(here("read the original"))?;
            let same = current.is_some_and(|current| {
                current.uid() == original.uid() && current.meta().deletion_timestamp.is_none()
            });
            if same {
                let copy = copy_of::<K>(&value, &name, &state.pair.context.settings.cluster_id);
                let copy: K = serde_json::from_value(copy)
                    .map_err(kube::Error::SerdeError)
                    .map_err(there("write the copy"))?;
                writer::apply(&state.copies, MANAGER, &copy)
                    .await
                    .map_err(there("write the copy"))?;
                info!(%kind, name, cluster = %state.pair.remote.cluster.cluster_name, "copied");
            }
        }
        Step::Return(status) => {
            let returned = writer::apply_status(&state.originals, MANAGER, &name, &status);
            returned.await.map_err(here("bring the status back"))?;
        }
        Step::Delete => {
            let uid = copy.as_ref().and_then(ResourceExt::uid);
            writer::delete_if_same(&state.copies, &name, uid.as_deref())
                .await
                .map_err(there("delete the copy"))?;
        }
        Step::Release => {
            tombolo_runtime::finalizer::remove(&state.originals, &*original, REPLICATOR_FINALIZER)
                .await
                .map_err(here("take the finalizer off the original"))?;
            info!(%kind, name, cluster = %state.pair.remote.cluster.cluster_name, "gone");
        }
        Step::Wait | Step::Done => {}
    }
    Ok(Action::await_change())
}

fn as_value<K: Serialize>(object: &K) -> Value {
    serde_json::to_value(object).unwrap_or_default()
}

fn copy_of<K: Replicated>(original: &Value, name: &str, us: &ClusterId) -> Value {
    let labels = BTreeMap::from([(REPLICATED_FROM_LABEL.to_owned(), us.to_string())]);
    let metadata =
        ObjectMeta { name: Some(name.to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    serde_json::json!({ "metadata": metadata, "spec": original["spec"] })
}
