//! Maintains the NamespaceMap for every cluster that offers resources: the namespaces that are
//! offloaded to it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use tombolo_api::{
    ClusterIdentity, ClusterName, discovery::ForeignCluster, offloading::NamespaceOffloading,
    sharing::ResourceOffer, virtualkubelet::NamespaceMap,
};
use tombolo_core::offloading::{
    MapAction, MapInput, PeerMap, Target, desired_mapping, map_action, map_to_apply,
    must_be_deleted, target,
};
use tombolo_core::{
    owner::belongs_to,
    view::{self, Offer},
};
use tombolo_runtime::{
    observe::{Change, IndexBy, Watched},
    queue::{self, Queue, queue},
    writer,
};

use crate::context::Context;

/// Runs until shutdown.
pub async fn run(ctx: Arc<Context>) {
    let (queue, receiver) = queue();
    let state = State::new(&ctx);
    state.enqueue(&queue);
    let work = queue::run("namespace_map", receiver, async |namespace: String| {
        state.synced().await;
        state.reconcile(&namespace).await
    });
    ctx.shutdown.or(work).await;
}

/// A NamespaceMap could not be updated.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("write the NamespaceMap for cluster {0} in namespace {1}")]
    Write(ClusterName, String, #[source] kube::Error),
    #[error("delete NamespaceMap {1} in namespace {0}")]
    Delete(String, String, #[source] kube::Error),
}

const MANAGER: &str = "liqo-control/namespace-map";

struct State {
    client: Client,
    home: ClusterName,
    clusters: Arc<Watched<ForeignCluster>>,
    maps: Arc<Watched<NamespaceMap>>,
    nodes: Arc<Watched<Node>>,
    offers: Arc<Watched<ResourceOffer>>,
    offloadings: Arc<Watched<NamespaceOffloading>>,
    peers: Peers,
}

impl State {
    fn new(ctx: &Context) -> Self {
        let watches = &ctx.watches;
        let (clusters, maps) = (watches.of(), watches.of::<NamespaceMap>());
        let (nodes, offers) = (watches.of(), watches.of());
        Self {
            client: ctx.client.clone(),
            home: ctx.settings.cluster_name.clone(),
            peers: Peers::new(&clusters, &nodes, &offers, &ctx.settings.cluster_name),
            offloadings: watches.of(),
            clusters,
            maps,
            nodes,
            offers,
        }
    }

    /// Enqueues tenant namespaces. Each has at most one map of this cluster.
    fn enqueue(&self, queue: &Queue<String>) {
        self.maps.enqueue(queue, ResourceExt::namespace);
        self.offers.enqueue(queue, ResourceExt::namespace);
        self.clusters.enqueue_changes(queue, |change| {
            let is_changed =
                change.is_of(|cluster| (tenant_of(cluster), &cluster.spec.cluster_identity));
            change
                .both()
                .filter(|_| is_changed)
                .filter_map(tenant_of)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        });
        let peers = self.peers.clone();
        self.nodes.enqueue_changes(queue, move |change| peers.by_node(&change));
        let peers = self.peers.clone();
        self.offloadings.enqueue_changes(queue, move |change| peers.concerned(&change));
    }

    async fn synced(&self) {
        tokio::join!(
            self.peers.synced(),
            self.nodes.synced(),
            self.maps.synced(),
            self.offloadings.synced(),
        );
    }

    async fn reconcile(&self, namespace: &str) -> Result<(), Error> {
        let peer = self.peers.at(namespace);
        let action =
            map_action(peer.as_ref().map(|peer| Offer::from_resource(&peer.offer)).as_ref());
        if let (MapAction::Keep, Some(peer)) = (action, &peer) {
            self.keep(namespace, peer).await?;
        }
        let ours = self.maps.get(namespace, self.home.as_str());
        let ours = ours.filter(|map| {
            let map = PeerMap::of(map, &self.home);
            map.is_some_and(|it| must_be_deleted(&it.map, action))
        });
        let Some(map) = ours else { return Ok(()) };
        let api: Api<NamespaceMap> = Api::namespaced(self.client.clone(), namespace);
        let name = map.name_any();
        let deleted = writer::delete_if_same(&api, &name, map.uid().as_deref()).await;
        deleted.map_err(|error| Error::Delete(namespace.to_owned(), name, error))
    }

    async fn keep(&self, namespace: &str, peer: &Peer) -> Result<(), Error> {
        let have = self.maps.get(namespace, self.home.as_str());
        let now = have.as_ref().map(|map| map.spec.desired_mapping.clone()).unwrap_or_default();
        let offloadings = self.offloadings.all();
        let offloadings = offloadings.iter().map(|offloading| &**offloading);
        let desired = desired_mapping(offloadings, &peer.target(), &self.home, &now);
        let ClusterIdentity { cluster_id, cluster_name } = &peer.identity;
        let Some(map) = map_to_apply(&self.home, cluster_id, desired, have.as_deref()) else {
            return Ok(());
        };
        let api: Api<NamespaceMap> = Api::namespaced(self.client.clone(), namespace);
        let written = match have.as_ref().and_then(|map| map.uid()) {
            Some(uid) => writer::apply_to(&api, MANAGER, &uid, &map).await,
            None => writer::apply(&api, MANAGER, &map).await,
        };
        let failed = |error| Error::Write(cluster_name.clone(), namespace.to_owned(), error);
        written.map(drop).map_err(failed)
    }
}

/// The clusters that offer resources.
#[derive(Clone)]
struct Peers {
    /// By tenant namespace.
    clusters: IndexBy<String, ForeignCluster>,
    /// Their offers by tenant namespace.
    offers: IndexBy<String, ResourceOffer>,
    /// Their offers by the name of the virtual node.
    offers_by_node: IndexBy<String, ResourceOffer>,
    nodes: Store<Node>,
    all: Store<ResourceOffer>,
    us: ClusterName,
}

/// A cluster that offers resources.
struct Peer {
    identity: ClusterIdentity,
    offer: Arc<ResourceOffer>,
    node: Option<Arc<Node>>,
}

impl Peers {
    fn new(
        clusters: &Watched<ForeignCluster>,
        nodes: &Watched<Node>,
        offers: &Watched<ResourceOffer>,
        us: &ClusterName,
    ) -> Self {
        let home = us.clone();
        Self {
            clusters: clusters.index_by(|cluster| tenant_of(cluster).map(str::to_owned)),
            offers: offers
                .index_by(move |offer| offer.namespace().filter(|_| is_theirs(offer, &home))),
            offers_by_node: offers.index_by(|offer| virtual_node(offer).map(str::to_owned)),
            nodes: nodes.index().clone(),
            all: offers.index().clone(),
            us: us.clone(),
        }
    }

    async fn synced(&self) {
        tokio::join!(self.clusters.synced(), self.offers.synced());
    }

    /// The peer with this tenant namespace. The namespace tells whose offer it is: the peer writes
    /// the fields of the offer.
    fn at(&self, namespace: &str) -> Option<Peer> {
        let offer = self.offers.get(namespace).into_iter().next()?;
        let clusters = self.clusters.get(namespace);
        let identity = clusters.iter().find_map(|cluster| cluster.spec.cluster_identity.clone())?;
        let node = virtual_node(&offer).and_then(|name| self.nodes.get(&ObjectRef::new(name)));
        Some(Peer { identity, offer, node })
    }

    /// The tenant namespace of the cluster of a virtual node whose labels have changed.
    fn by_node(&self, change: &Change<'_, Node>) -> Vec<String> {
        if !change.is_of(|node| node.metadata.labels.as_ref()) {
            return Vec::new();
        }
        let offers = change.both().flat_map(|node| self.offers_by_node.get(&node.name_any()));
        offers.filter_map(|offer| offer.namespace()).collect()
    }

    /// The tenant namespaces of the clusters that a NamespaceOffloading selects, or selected
    /// before, if its selection has changed.
    fn concerned(&self, change: &Change<'_, NamespaceOffloading>) -> Vec<String> {
        if !change.is_of(MapInput::of) {
            return Vec::new();
        }
        let offers = self.all.state_filter(|offer| is_theirs(offer, &self.us));
        let namespaces = offers.iter().filter_map(|offer| offer.namespace());
        let is_concerned = |namespace: &String| {
            let target = self.at(namespace).map(|peer| peer.target());
            target.is_some_and(|target| change.both().any(|it| MapInput::of(it).affects(&target)))
        };
        namespaces.filter(is_concerned).collect()
    }
}

impl Peer {
    fn target(&self) -> Target {
        target(
            &self.identity,
            &Offer::from_resource(&self.offer),
            self.node.as_ref().map(|node| node.labels()),
        )
    }
}

fn is_theirs(offer: &ResourceOffer, us: &ClusterName) -> bool {
    !belongs_to(&offer.name_any(), us)
}

fn tenant_of(cluster: &ForeignCluster) -> Option<&str> {
    view::Peer::from_resource(cluster).tenant
}

fn virtual_node(offer: &ResourceOffer) -> Option<&str> {
    Offer::from_resource(offer).virtual_node
}
