//! Copies custom resources to their destination clusters, copies back the status, and propagates
//! deletions. One task per kind and cluster that has issued an identity.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use kube::{
    Api, Resource, ResourceExt, api::ObjectMeta, core::NamespaceResourceScope,
    runtime::reflector::Store,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::Mutex;
use tombolo_api::{
    ClusterId, ClusterName,
    discovery::{ForeignCluster, ResourceRequest},
    names::{REPLICATED_FROM_LABEL, REPLICATOR_FINALIZER},
    net::NetworkConfig,
    sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    owner::belongs_to,
    replicate::{self, Original, Step},
    view::Peer,
};
use tombolo_runtime::{
    finalizer,
    observe::{Observer, Watched, named},
    queue::{self, queue},
    remote::{NoIdentity, Remote},
    task::Tasks,
    writer,
};
use tracing::info;

use crate::context::Context;

const MANAGER: &str = "liqo-control/replicator";

/// Runs a replicator for each cluster with an identity, until shutdown.
pub async fn run(context: Arc<Context>) {
    let mut observer = Observer::new();
    let clusters = observer.share(context.watches.of());
    let peers = Peers { context: context.clone(), clusters, running: Mutex::default() };
    observer.run("replicator", &context.shutdown, || peers.follow()).await;
}

struct Peers {
    context: Arc<Context>,
    clusters: Store<ForeignCluster>,
    /// By the name of the ForeignCluster.
    running: Mutex<BTreeMap<String, Running>>,
}

/// A running replicator. Its tasks end when it is dropped.
struct Running {
    _copies: Tasks,
    remote: Remote,
    local: String,
}

impl Peers {
    /// Reconciles all clusters. A failure for one does not affect the others.
    async fn follow(&self) -> Result<(), NoIdentity> {
        let mut clusters = self.clusters.state();
        clusters.retain(|cluster| Peer::from_resource(cluster).is_authenticated);
        let mut running = self.running.lock().await;
        running.retain(|name, _| clusters.iter().any(|cluster| cluster.name_any() == *name));
        let mut outcome = Ok(());
        for cluster in clusters {
            outcome = outcome.and(self.keep(&cluster, &mut running).await);
        }
        outcome
    }

    async fn keep(
        &self,
        cluster: &ForeignCluster,
        running: &mut BTreeMap<String, Running>,
    ) -> Result<(), NoIdentity> {
        let name = cluster.name_any();
        let remote = self.context.remotes.get(cluster).await?;
        let local = Peer::from_resource(cluster).tenant.unwrap_or_default().to_owned();
        let same = |now: &Running| now.remote.is_same(&remote) && now.local == local;
        if running.get(&name).is_some_and(same) {
            return Ok(());
        }
        info!(cluster = %remote.cluster.cluster_name, url = remote.url, "starting replication");
        // The old replicator ends before the new one starts.
        running.remove(&name);
        let context = self.context.clone();
        let pair = Pair { context, remote: remote.clone(), local: local.clone() };
        let mut copies = Tasks::new();
        pair.start::<ResourceRequest>(&mut copies);
        pair.start::<ResourceOffer>(&mut copies);
        pair.start::<NetworkConfig>(&mut copies);
        pair.start::<NamespaceMap>(&mut copies);
        running.insert(name, Running { _copies: copies, remote, local });
        Ok(())
    }
}

/// The tenant namespaces of a peering in both clusters.
#[derive(Clone)]
struct Pair {
    context: Arc<Context>,
    remote: Remote,
    local: String,
}

/// A replicated kind.
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
    fn start<K: Replicated>(&self, copies: &mut Tasks) {
        let name = format!("copies of {} to {}", K::kind(&()), self.remote.cluster.cluster_name);
        copies.spawn(name, self.clone().copy::<K>());
    }

    async fn copy<K: Replicated>(self) {
        let (queue, receiver) = queue();
        let us = &self.context.settings.cluster_name;
        let theirs = named(us.as_str());
        let there = Api::<K>::namespaced(self.remote.client.clone(), &self.remote.namespace);
        let copies = Watched::new(there.clone(), theirs);
        copies.enqueue(&queue, |copy| [copy.name_any()]);
        let seen = self.context.watches.of::<K>();
        let wanted = self.originals();
        seen.enqueue(&queue, move |object| wanted.has(object).then(|| object.name_any()));

        let originals = Api::<K>::namespaced(self.context.client.clone(), &self.local);
        let wanted = self.originals();
        let copier = Copier { pair: self, originals, copies: there };
        queue::run("replicator", receiver, async |name: String| {
            let original = seen.get(&copier.pair.local, &name);
            match original.filter(|original| wanted.has(&**original)) {
                Some(original) => reconcile(&*original, &copier).await,
                None => Ok(()),
            }
        })
        .await;
    }

    fn originals(&self) -> Originals {
        let us = self.context.settings.cluster_name.clone();
        Originals { namespace: self.local.clone(), us }
    }
}

/// Selects the objects of this cluster that are replicated to a peer.
struct Originals {
    namespace: String,
    us: ClusterName,
}

impl Originals {
    fn has<K: Replicated>(&self, object: &K) -> bool {
        object.namespace().as_ref() == Some(&self.namespace)
            && belongs_to(&object.name_any(), &self.us)
    }
}

struct Copier<K: Replicated> {
    pair: Pair,
    originals: Api<K>,
    copies: Api<K>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{operation} in this cluster")]
    Here { operation: &'static str, source: Box<kube::Error> },
    #[error("{operation} at {url}")]
    There { operation: &'static str, url: String, source: Box<kube::Error> },
}

async fn reconcile<K: Replicated>(original: &K, state: &Copier<K>) -> Result<(), Error> {
    let name = original.name_any();
    let url = &state.pair.remote.url;
    let here = |operation| move |source| Error::Here { operation, source: Box::new(source) };
    let there = |operation| {
        move |source| Error::There { operation, url: url.clone(), source: Box::new(source) }
    };
    let copy = state.copies.get_opt(&name).await.map_err(there("read the copy"))?;
    let copy_value = copy.as_ref().map(as_value);
    let guarded = finalizer::has(original, REPLICATOR_FINALIZER);
    let value = as_value(original);
    let (kind, cluster) = (K::kind(&()), &state.pair.remote.cluster.cluster_name);
    match replicate::next(Original { object: &value, guarded }, copy_value.as_ref()) {
        Step::AddFinalizer => {
            finalizer::add(&state.originals, original, REPLICATOR_FINALIZER)
                .await
                .map_err(here("add the finalizer to the original"))?;
        }
        Step::Copy => {
            // The watch may lag: a deleted original must not be copied again.
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
                info!(%kind, name, %cluster, "wrote the copy");
            }
        }
        Step::ReturnStatus(status) => {
            let returned = writer::apply_status(&state.originals, MANAGER, &name, &status);
            returned.await.map_err(here("copy the status to the original"))?;
        }
        Step::Delete => {
            let uid = copy.as_ref().and_then(ResourceExt::uid);
            writer::delete_if_same(&state.copies, &name, uid.as_deref())
                .await
                .map_err(there("delete the copy"))?;
        }
        Step::RemoveFinalizer => {
            finalizer::remove(&state.originals, original, REPLICATOR_FINALIZER)
                .await
                .map_err(here("remove the finalizer from the original"))?;
            info!(%kind, name, %cluster, "removed the finalizer: the copy is deleted");
        }
        Step::Wait | Step::Done => {}
    }
    Ok(())
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
