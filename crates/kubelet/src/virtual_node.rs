//! The lifecycle of a virtual node, from an accepted offer until the offer is gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::{Node, Secret};
use kube::{Api, Client, ResourceExt};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{Instant, sleep, timeout, timeout_at},
};
use tombolo_api::{
    ClusterIdentity,
    names::{self, IDENTITY_SECRET, KUBELET_FINALIZER},
    sharing::ResourceOffer,
};
use tombolo_core::{
    node::{self as core_node, NotReady},
    offer_stage::OfferStage,
    reflect::pod::RawPod,
    view::Offer,
};
use tombolo_runtime::{
    chain::Chain,
    finalizer,
    observe::{Watched, named},
    remote::{NoIdentity, Remotes},
    settings::Settings,
    shutdown::Shutdown,
    task::Tasks,
    writer,
};
use tracing::{info, warn};

use crate::{
    MANAGER, api, node,
    peer::Peer,
    pods::{self, Pods},
    reflection,
};

const RETRY: Duration = Duration::from_millis(500);

/// Time to wait for unreachable pods while a node is drained.
const UNREACHABLE_GRACE: Duration = Duration::from_secs(30);

/// Inputs of the Node object of a virtual node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inputs {
    /// The offer.
    pub offer: ResourceOffer,
    /// Its stage.
    pub stage: OfferStage,
    /// Why the node is not ready, if it is not.
    pub not_ready: Option<NotReady>,
}

/// Inputs of each pod of a virtual node. Every change reconciles all pods, so it does not have the
/// offer, which changes with the free resources of the remote cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodInputs {
    /// Why the node is not ready, if it is not.
    pub not_ready: Option<NotReady>,
    /// Local namespaces that are to have a twin.
    pub wanted_namespaces: BTreeSet<String>,
    /// Twin namespaces that are being deleted, by local namespace.
    pub leaving_namespaces: BTreeMap<String, String>,
}

/// Shared by all virtual nodes.
#[derive(Clone)]
pub(crate) struct Shared {
    pub client: Client,
    pub settings: Arc<Settings>,
    pub remotes: Remotes,
    pub gate: Arc<api::Gate>,
    pub homes: Arc<reflection::Homes>,
    pub shutdown: Shutdown,
}

/// The inputs of a virtual node as they change.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub inputs: watch::Receiver<Inputs>,
    pub pods: watch::Receiver<PodInputs>,
    pub namespaces: watch::Receiver<BTreeMap<String, String>>,
    pub networks: watch::Receiver<Option<tombolo_core::translate::Networks>>,
}

/// Ends the tasks of a virtual node on every return path.
struct ShutdownOnDrop(Shutdown);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.trigger();
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("read Node {0}")]
    ReadNode(String, #[source] kube::Error),
    #[error("read ResourceOffer {0}")]
    ReadOffer(String, #[source] kube::Error),
    #[error("add the finalizer to ResourceOffer {0}")]
    AddFinalizer(String, #[source] kube::Error),
    #[error("record the virtual node in the status of ResourceOffer {0}")]
    RecordNode(String, #[source] kube::Error),
    #[error("remove the finalizer from ResourceOffer {0}")]
    RemoveFinalizer(String, #[source] kube::Error),
    #[error("get a client for the remote cluster")]
    Remote(#[from] NoIdentity),
    #[error("the identity for the cluster of node {0} has changed: restarting the node's tasks")]
    IdentityChanged(String),
    #[error("listen for the kubelet API of node {0}")]
    Listen(String, #[source] std::io::Error),
    #[error(transparent)]
    Node(#[from] node::NodeError),
}

/// Runs a virtual node until the offer is gone, or until shutdown.
pub(crate) async fn run(shared: Shared, cluster: ClusterIdentity, sources: Sources) {
    let name = cluster.cluster_name.clone();
    let running = async {
        while let Err(error) = run_once(&shared, &cluster, sources.clone()).await {
            warn!(cluster = %name, retry_in = ?RETRY, "restarting the node: {}", Chain(&error));
            sleep(RETRY).await;
        }
    };
    shared.shutdown.or(running).await;
}

async fn run_once(
    shared: &Shared,
    cluster: &ClusterIdentity,
    sources: Sources,
) -> Result<(), Error> {
    let offer = sources.inputs.borrow().offer.clone();
    let node = choose_name(shared, cluster, &offer).await?;
    let serving = || sources.inputs.borrow().stage == OfferStage::Serving;
    if serving() {
        claim(shared, &offer, &node).await?;
    } else if !may_have_node(shared, &offer).await? {
        // The offer has changed since the watch saw it: wait for that change.
        let _ = sources.inputs.clone().changed().await;
        return Ok(());
    }
    let tenant_namespace = offer.namespace().unwrap_or_default();
    let remote = match shared.remotes.in_namespace(&tenant_namespace, cluster.clone()).await {
        Ok(remote) => remote,
        // There is no identity to delete the remote pods with.
        Err(NoIdentity::NotYet(_)) if !serving() => {
            return abandon(shared, &node, cluster, &offer).await;
        }
        Err(error) => return Err(error.into()),
    };
    let peer = Arc::new(Peer {
        home: shared.client.clone(),
        settings: shared.settings.clone(),
        remote,
        cluster: cluster.clone(),
        node: node.clone(),
        tenant_namespace,
        namespaces: sources.namespaces.clone(),
        networks: sources.networks.clone(),
        shutdown: shared.shutdown.child(),
    });
    let _end = ShutdownOnDrop(peer.shutdown.clone());
    let listener = TcpListener::bind(("0.0.0.0", 0)).await;
    let port = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    let (port, listener) = port.map_err(|source| Error::Listen(node.clone(), source))?;

    let (pods, receiver) = Pods::new(peer.clone(), sources.pods.clone());
    let mut tasks = Tasks::new();
    let kept = node::keep(peer.clone(), port, sources.inputs.clone(), peer.shutdown.child());
    tasks.spawn(format!("node {node}"), kept);
    tasks.spawn(format!("pods of {node}"), pods.clone().run(receiver));
    let served = api::serve(listener, shared.gate.clone(), peer.clone(), pods.clone());
    tasks.spawn(format!("kubelet API of {node}"), served);
    let reflected = reflection::run(peer.clone(), shared.homes.clone());
    tasks.spawn(format!("reflection to {}", cluster.cluster_name), reflected);
    info!(node, cluster = %cluster.cluster_name, port, "serving the virtual node");

    let mut inputs = sources.inputs.clone();
    let draining = async {
        if inputs.wait_for(|inputs| inputs.stage != OfferStage::Serving).await.is_ok() {
            info!(node, "draining the virtual node");
            drain(&peer, &pods, &mut inputs).await;
            return true;
        }
        false
    };
    let drained = tokio::select! {
        drained = draining => drained,
        () = renew(shared, &peer) => return Err(Error::IdentityChanged(node)),
    };
    if !drained {
        return Ok(());
    }
    peer.shutdown.trigger();
    tasks.join_all().await;
    node::remove(&peer).await?;
    release(shared, &offer).await?;
    info!(node, "removed the virtual node");
    Ok(())
}

/// The recorded name of the node, or a free one.
async fn choose_name(
    shared: &Shared,
    cluster: &ClusterIdentity,
    offer: &ResourceOffer,
) -> Result<String, Error> {
    if let Some(name) = offer.status.as_ref().and_then(|status| status.virtual_node.clone()) {
        return Ok(name);
    }
    let (name, id) = (&cluster.cluster_name, &cluster.cluster_id);
    let first = names::virtual_node(name, id, |_| false);
    let found = Api::<Node>::all(shared.client.clone()).get_opt(&first).await;
    let found = found.map_err(|source| Error::ReadNode(first, source))?;
    let taken = found.is_some_and(|node| core_node::is_taken(&node, id));
    Ok(names::virtual_node(name, id, |_| taken))
}

/// Adds the finalizer and records the node in the offer, before the node is created.
async fn claim(shared: &Shared, offer: &ResourceOffer, node: &str) -> Result<(), Error> {
    let api = offers(shared, offer);
    finalizer::add(&api, offer, KUBELET_FINALIZER)
        .await
        .map_err(|source| Error::AddFinalizer(offer.name_any(), source))?;
    if offer.status.as_ref().and_then(|status| status.virtual_node.as_deref()) == Some(node) {
        return Ok(());
    }
    let status = serde_json::json!({ "virtualNode": node });
    writer::apply_status(&api, MANAGER, &offer.name_any(), &status)
        .await
        .map(drop)
        .map_err(|source| Error::RecordNode(offer.name_any(), source))
}

/// Whether a node may be left to remove. Reads the offer from the API server, not from the watch.
async fn may_have_node(shared: &Shared, offer: &ResourceOffer) -> Result<bool, Error> {
    let now = offers(shared, offer).get_opt(&offer.name_any()).await;
    let now = now.map_err(|source| Error::ReadOffer(offer.name_any(), source))?;
    Ok(now.is_some_and(|now| Offer::from_resource(&now).stage.needs_node()))
}

async fn release(shared: &Shared, offer: &ResourceOffer) -> Result<(), Error> {
    let api = offers(shared, offer);
    let failed = |source| Error::RemoveFinalizer(offer.name_any(), source);
    let Some(offer) = api.get_opt(&offer.name_any()).await.map_err(failed)? else {
        return Ok(());
    };
    let none = serde_json::json!({});
    writer::apply_status(&api, MANAGER, &offer.name_any(), &none).await.map_err(failed)?;
    let offer = api.get_opt(&offer.name_any()).await.map_err(failed)?;
    match offer {
        Some(offer) => finalizer::remove(&api, &offer, KUBELET_FINALIZER).await.map_err(failed),
        None => Ok(()),
    }
}

fn offers(shared: &Shared, offer: &ResourceOffer) -> Api<ResourceOffer> {
    Api::namespaced(shared.client.clone(), &offer.namespace().unwrap_or_default())
}

/// Applies renewed identities to the client. Returns when an identity needs another client.
async fn renew(shared: &Shared, peer: &Peer) {
    let api = Api::<Secret>::namespaced(shared.client.clone(), &peer.tenant_namespace);
    let identity = Watched::new(api, named(IDENTITY_SECRET));
    let mut changes = identity.changes();
    let mut failures = 0;
    loop {
        let namespace = &peer.tenant_namespace;
        let changed = changes.changed();
        let wait = match failures {
            0 => Ok(changed.await),
            _ => timeout(RETRY.saturating_mul(1 << failures.min(6)), changed).await,
        };
        // The sender exists as long as `identity`.
        if matches!(wait, Ok(Err(_))) {
            return std::future::pending().await;
        }
        match shared.remotes.in_namespace(namespace, peer.cluster.clone()).await {
            Ok(now) if now.is_same(&peer.remote) => failures = 0,
            Ok(_) => return,
            Err(error) => {
                warn!(namespace, "can't apply the renewed identity: {}", Chain(&error));
                // An unusable identity is not retried before the Secret changes.
                failures = if matches!(error, NoIdentity::Read { .. }) { failures + 1 } else { 0 };
            }
        }
    }
}

/// Deletes the pods of the node and waits until they are gone. Pods of DaemonSets are left: they
/// are recreated as long as the node exists, and are deleted with it.
async fn drain(peer: &Peer, pods: &Pods, inputs: &mut watch::Receiver<Inputs>) {
    let mut changes = pods.changes();
    let mut unreachable: Option<Instant> = None;
    loop {
        changes.borrow_and_update();
        let left: Vec<Arc<RawPod>> =
            pods.at_home().into_iter().filter(|pod| !pod.is_of_daemon_set()).collect();
        if pods.is_synced() && left.is_empty() {
            return;
        }
        for pod in left.iter().filter(|pod| !pod.is_deleting()) {
            delete(peer, pod, None).await;
        }
        let lost = inputs.borrow_and_update().not_ready.is_some();
        unreachable = lost.then(|| unreachable.unwrap_or_else(Instant::now));
        let deadline = unreachable.map(|since| since + UNREACHABLE_GRACE);
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            warn!(node = peer.node, pods = left.len(), "force deleting unreachable pods");
            for pod in &left {
                delete(peer, pod, Some(0)).await;
            }
            return;
        }
        let news = async {
            tokio::select! {
                _ = changes.changed() => {}
                _ = inputs.changed() => {}
            }
        };
        let _ =
            timeout_at(deadline.unwrap_or_else(|| Instant::now() + UNREACHABLE_GRACE), news).await;
    }
}

async fn delete(peer: &Peer, pod: &RawPod, grace: Option<u32>) {
    let api = Api::namespaced(peer.home.clone(), &pod.namespace().unwrap_or_default());
    if let Err(error) = pods::delete_pod(&api, pod, grace).await {
        let (namespace, pod) = (pod.namespace(), pod.name_any());
        warn!(node = peer.node, namespace, pod, "can't delete the pod: {}", Chain(&error));
    }
}

/// Removes a node and its pods if there is no identity for its cluster any more.
async fn abandon(
    shared: &Shared,
    node: &str,
    cluster: &ClusterIdentity,
    offer: &ResourceOffer,
) -> Result<(), Error> {
    warn!(node, "force deleting the pods of the node: no identity for the remote cluster");
    let nodes: Api<Node> = Api::all(shared.client.clone());
    let failed = |source| Error::ReadNode(node.to_owned(), source);
    let found = nodes.get_opt(node).await.map_err(failed)?;
    if let Some(found) = found.filter(|found| !core_node::is_taken(found, &cluster.cluster_id)) {
        let pods: Api<RawPod> = Api::all(shared.client.clone());
        let of_node = kube::api::ListParams::default().fields(&format!("spec.nodeName={node}"));
        for pod in pods.list(&of_node).await.map_err(failed)? {
            let api = Api::namespaced(shared.client.clone(), &pod.namespace().unwrap_or_default());
            pods::delete_pod(&api, &pod, Some(0)).await.map_err(failed)?;
        }
        writer::delete_if_same(&nodes, node, found.uid().as_deref()).await.map_err(failed)?;
    }
    release(shared, offer).await
}
