//! The life of a virtual node: from an accepted offer to the end of it.

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

/// How long pods are waited for that nobody can reach.
const UNREACHABLE_GRACE: Duration = Duration::from_secs(30);

/// What the node object of a virtual node depends on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inputs {
    /// The offer.
    pub offer: ResourceOffer,
    /// The stage that it has reached.
    pub stage: OfferStage,
    /// Why the node is not ready, if it is not.
    pub not_ready: Option<NotReady>,
}

/// What the pods of a virtual node depend on, each of them. The offer is not part of it: it changes
/// with what is free in the remote cluster, and no pod changes with it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodInputs {
    /// Why the node is not ready, if it is not.
    pub not_ready: Option<NotReady>,
    /// Namespaces that are wanted over there.
    pub wanted_namespaces: BTreeSet<String>,
    /// Twin namespaces that are on their way out, by the namespace of this cluster.
    pub leaving_namespaces: BTreeMap<String, String>,
}

/// What all virtual nodes share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub client: Client,
    pub settings: Arc<Settings>,
    pub remotes: Remotes,
    pub gate: Arc<api::Gate>,
    pub homes: Arc<reflection::Homes>,
    pub shutdown: Shutdown,
}

/// Where a virtual node learns what it depends on.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub inputs: watch::Receiver<Inputs>,
    pub pods: watch::Receiver<PodInputs>,
    pub namespaces: watch::Receiver<BTreeMap<String, String>>,
    pub networks: watch::Receiver<Option<tombolo_core::translate::Networks>>,
}

/// Whatever way a life takes, its tasks end with it.
struct End(Shutdown);

impl Drop for End {
    fn drop(&mut self) {
        self.0.ask();
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum LifeError {
    #[error("look for node {0}")]
    LookForNode(String, #[source] kube::Error),
    #[error("look for ResourceOffer {0}")]
    LookForOffer(String, #[source] kube::Error),
    #[error("put the finalizer on ResourceOffer {0}")]
    AddFinalizer(String, #[source] kube::Error),
    #[error("say in ResourceOffer {0} which node stands for it")]
    NameNode(String, #[source] kube::Error),
    #[error("take the finalizer off ResourceOffer {0}")]
    RemoveFinalizer(String, #[source] kube::Error),
    #[error("get a client for the remote cluster")]
    Remote(#[from] NoIdentity),
    #[error("the cluster of node {0} is to be reached in another way from now on")]
    Moved(String),
    #[error("listen for the kubelet API of node {0}")]
    Listen(String, #[source] std::io::Error),
    #[error(transparent)]
    Node(#[from] node::NodeError),
}

/// Lives until the offer is gone, or the end is asked for.
pub(crate) async fn live(shared: Shared, cluster: ClusterIdentity, sources: Sources) {
    let name = cluster.cluster_name.clone();
    let living = async {
        while let Err(error) = life(&shared, &cluster, sources.clone()).await {
            warn!(cluster = %name, retry_in = ?RETRY, "{}", Chain(&error));
            sleep(RETRY).await;
        }
    };
    shared.shutdown.or(living).await;
}

async fn life(
    shared: &Shared,
    cluster: &ClusterIdentity,
    sources: Sources,
) -> Result<(), LifeError> {
    let offer = sources.inputs.borrow().offer.clone();
    let node = choose_name(shared, cluster, &offer).await?;
    let serving = || sources.inputs.borrow().stage == OfferStage::Serving;
    if serving() {
        claim(shared, &offer, &node).await?;
    } else if !may_have_node(shared, &offer).await? {
        // It went while the watch still showed it: what has become of it is about to be heard.
        let _ = sources.inputs.clone().changed().await;
        return Ok(());
    }
    let tenant_namespace = offer.namespace().unwrap_or_default();
    let remote = match shared.remotes.in_namespace(&tenant_namespace, cluster.clone()).await {
        Ok(remote) => remote,
        // Nobody is there to ask any more.
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
    let _end = End(peer.shutdown.clone());
    let listener = TcpListener::bind(("0.0.0.0", 0)).await;
    let port = listener.and_then(|listener| Ok((listener.local_addr()?.port(), listener)));
    let (port, listener) = port.map_err(|source| LifeError::Listen(node.clone(), source))?;

    let (pods, asked) = Pods::new(peer.clone(), sources.pods.clone());
    let mut tasks = Tasks::new();
    let kept = node::keep(peer.clone(), port, sources.inputs.clone(), peer.shutdown.child());
    tasks.spawn(format!("node {node}"), kept);
    tasks.spawn(format!("pods of {node}"), pods.clone().run(asked));
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
        () = renew(shared, &peer) => return Err(LifeError::Moved(node)),
    };
    if !drained {
        return Ok(());
    }
    peer.shutdown.ask();
    tasks.join_all().await;
    node::remove(&peer).await?;
    release(shared, &offer).await?;
    info!(node, "the virtual node is gone");
    Ok(())
}

/// The name that the node has, or gets.
async fn choose_name(
    shared: &Shared,
    cluster: &ClusterIdentity,
    offer: &ResourceOffer,
) -> Result<String, LifeError> {
    if let Some(name) = offer.status.as_ref().and_then(|status| status.virtual_node.clone()) {
        return Ok(name);
    }
    let (name, id) = (&cluster.cluster_name, &cluster.cluster_id);
    let first = names::virtual_node(name, id, |_| false);
    let found = Api::<Node>::all(shared.client.clone()).get_opt(&first).await;
    let found = found.map_err(|source| LifeError::LookForNode(first, source))?;
    let taken = found.is_some_and(|node| core_node::is_taken(&node, id));
    Ok(names::virtual_node(name, id, |_| taken))
}

/// Says that a node stands for the offer, before there is one.
async fn claim(shared: &Shared, offer: &ResourceOffer, node: &str) -> Result<(), LifeError> {
    let api = offers(shared, offer);
    finalizer::add(&api, offer, KUBELET_FINALIZER)
        .await
        .map_err(|source| LifeError::AddFinalizer(offer.name_any(), source))?;
    if offer.status.as_ref().and_then(|status| status.virtual_node.as_deref()) == Some(node) {
        return Ok(());
    }
    let status = serde_json::json!({ "virtualNode": node });
    writer::apply_status(&api, MANAGER, &offer.name_any(), &status)
        .await
        .map(drop)
        .map_err(|source| LifeError::NameNode(offer.name_any(), source))
}

/// Whether a node is left to be removed, by the API server's word.
async fn may_have_node(shared: &Shared, offer: &ResourceOffer) -> Result<bool, LifeError> {
    let now = offers(shared, offer).get_opt(&offer.name_any()).await;
    let now = now.map_err(|source| LifeError::LookForOffer(offer.name_any(), source))?;
    Ok(now.is_some_and(|now| Offer::from_resource(&now).stage.needs_node()))
}

async fn release(shared: &Shared, offer: &ResourceOffer) -> Result<(), LifeError> {
    let api = offers(shared, offer);
    let failed = |source| LifeError::RemoveFinalizer(offer.name_any(), source);
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

/// Puts a renewed identity to use as soon as it is there; ends when that takes another client.
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
        // It ends with whoever waits here.
        if matches!(wait, Ok(Err(_))) {
            return std::future::pending().await;
        }
        match shared.remotes.in_namespace(namespace, peer.cluster.clone()).await {
            Ok(now) if now.is_same(&peer.remote) => failures = 0,
            Ok(_) => return,
            Err(error) => {
                warn!(namespace, "renew the identity: {}", Chain(&error));
                // What there is does not get better by itself.
                failures = if matches!(error, NoIdentity::Read { .. }) { failures + 1 } else { 0 };
            }
        }
    }
}

/// Asks the pods of the node to end, and waits until they have: those of DaemonSets, which come
/// back as long as there is a node, go with it.
async fn drain(peer: &Peer, pods: &Pods, inputs: &mut watch::Receiver<Inputs>) {
    let mut changes = pods.changes();
    let mut unreachable: Option<Instant> = None;
    loop {
        changes.borrow_and_update();
        let left: Vec<Arc<RawPod>> =
            pods.at_home().into_iter().filter(|pod| !pod.is_of_daemon_set()).collect();
        if pods.is_filled() && left.is_empty() {
            return;
        }
        for pod in left.iter().filter(|pod| !pod.is_deleting()) {
            end(peer, pod, None).await;
        }
        let lost = inputs.borrow_and_update().not_ready.is_some();
        unreachable = lost.then(|| unreachable.unwrap_or_else(Instant::now));
        let deadline = unreachable.map(|since| since + UNREACHABLE_GRACE);
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            warn!(node = peer.node, "giving up pods that nobody can reach");
            for pod in &left {
                end(peer, pod, Some(0)).await;
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

async fn end(peer: &Peer, pod: &RawPod, grace: Option<u32>) {
    let api = Api::namespaced(peer.home.clone(), &pod.namespace().unwrap_or_default());
    if let Err(error) = pods::delete_pod(&api, pod, grace).await {
        warn!(node = peer.node, pod = pod.name_any(), "delete the pod: {}", Chain(&error));
    }
}

/// Removes a node whose cluster nobody can speak to any more, with its pods.
async fn abandon(
    shared: &Shared,
    node: &str,
    cluster: &ClusterIdentity,
    offer: &ResourceOffer,
) -> Result<(), LifeError> {
    warn!(node, "there is no identity for the remote cluster: its pods are given up");
    let nodes: Api<Node> = Api::all(shared.client.clone());
    let failed = |source| LifeError::LookForNode(node.to_owned(), source);
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
