//! The NamespaceMap for every cluster that offers resources: which namespaces it is to have.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use tombolo_api::names::{REPLICATE_TO_LABEL, REPLICATED_FROM_LABEL};
use tombolo_api::{
    ClusterIdentity, ClusterName,
    discovery::ForeignCluster,
    offloading::NamespaceOffloading,
    sharing::ResourceOffer,
    virtualkubelet::{NamespaceMap, NamespaceMapSpec},
};
use tombolo_core::offloading::{MapFate, desired_mapping, map_fate, target};
use tombolo_core::{tenant::namespace_of, view::Offer};
use tombolo_runtime::{observe::Observer, writer};

use crate::context::Context;

/// Runs until the end is asked for.
pub async fn run(ctx: Arc<Context>) {
    let (mut observer, watches) = (Observer::new(), &ctx.watches);
    let seen = Seen {
        client: ctx.client.clone(),
        home: ctx.settings.cluster_name.clone(),
        offloadings: observer.share(watches.of()),
        offers: observer.share(watches.of()),
        nodes: observer.share(watches.of()),
        clusters: observer.share(watches.of()),
        maps: observer.share(watches.of()),
    };
    observer.run("namespace_map", &ctx.shutdown, || seen.reconcile()).await;
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("write the NamespaceMap for cluster {0} into namespace {1}")]
    Write(ClusterName, String, #[source] kube::Error),
    #[error("delete the NamespaceMap {1} in namespace {0}")]
    Delete(String, String, #[source] kube::Error),
}

const MANAGER: &str = "liqo-control/namespace-map";

struct Seen {
    client: Client,
    home: ClusterName,
    offloadings: Store<NamespaceOffloading>,
    offers: Store<ResourceOffer>,
    nodes: Store<Node>,
    clusters: Store<ForeignCluster>,
    maps: Store<NamespaceMap>,
}

/// A cluster that has offered something, and where what belongs to it is.
struct Peer {
    identity: ClusterIdentity,
    namespace: String,
    offer: Arc<ResourceOffer>,
}

impl Seen {
    async fn reconcile(&self) -> Result<(), Error> {
        let peers = self.peers();
        let mut outcome = Ok(());
        for peer in peers.values() {
            match map_fate(Some(&Offer::from_resource(&peer.offer))) {
                MapFate::Keep => outcome = outcome.and(self.keep(peer).await),
                MapFate::Drain | MapFate::Remove => {}
            }
        }
        let ours = |map: &NamespaceMap| map.labels().contains_key(REPLICATE_TO_LABEL);
        for map in self.maps.state_filter(ours) {
            let namespace = map.namespace().unwrap_or_default();
            let offer = peers.get(&namespace).map(|peer| Offer::from_resource(&peer.offer));
            let leaves = map.meta().deletion_timestamp.is_some();
            if map_fate(offer.as_ref()) == MapFate::Remove && !leaves {
                let name = map.name_any();
                let api: Api<NamespaceMap> = Api::namespaced(self.client.clone(), &namespace);
                let deleted = writer::delete_if_same(&api, &name, map.uid().as_deref()).await;
                outcome =
                    outcome.and(deleted.map_err(|error| Error::Delete(namespace, name, error)));
            }
        }
        outcome
    }

    /// By tenant namespace. Who has made an offer, its namespace says, and not the offer.
    fn peers(&self) -> BTreeMap<String, Peer> {
        let clusters = self.clusters.state();
        let peer = |offer: Arc<ResourceOffer>| {
            let namespace = offer.namespace()?;
            let is_its =
                |cluster: &&Arc<ForeignCluster>| namespace_of(cluster) == Some(&*namespace);
            let cluster = clusters.iter().find(is_its)?;
            let identity = cluster.spec.cluster_identity.clone()?;
            Some((namespace.clone(), Peer { identity, namespace, offer }))
        };
        let theirs = |offer: &ResourceOffer| offer.labels().contains_key(REPLICATED_FROM_LABEL);
        self.offers.state_filter(theirs).into_iter().filter_map(peer).collect()
    }

    async fn keep(&self, peer: &Peer) -> Result<(), Error> {
        let namespace = &peer.namespace;
        let have = self.maps.get(&ObjectRef::new(self.home.as_str()).within(namespace));
        if have.as_ref().is_some_and(|map| map.meta().deletion_timestamp.is_some()) {
            return Ok(());
        }
        let offer = Offer::from_resource(&peer.offer);
        let node = offer.virtual_node.and_then(|name| self.nodes.get(&ObjectRef::new(name)));
        let target = target(&peer.identity, &offer, node.as_ref().map(|node| node.labels()));
        let offloadings = self.offloadings.state();
        let now = have.as_ref().map(|map| map.spec.desired_mapping.clone()).unwrap_or_default();
        let desired = desired_mapping(offloadings.iter().map(|o| &**o), &target, &self.home, &now);
        let replicate_to = peer.identity.cluster_id.as_str();
        if let Some(have) = &have
            && have.spec.desired_mapping == desired
            && have.labels().get(REPLICATE_TO_LABEL).map(String::as_str) == Some(replicate_to)
        {
            return Ok(());
        }
        let spec = NamespaceMapSpec { desired_mapping: desired };
        let mut map = NamespaceMap::new(self.home.as_str(), spec);
        map.metadata.labels =
            Some([(REPLICATE_TO_LABEL.to_owned(), replicate_to.to_owned())].into());
        let api: Api<NamespaceMap> = Api::namespaced(self.client.clone(), namespace);
        let written = match have.as_ref().and_then(|map| map.uid()) {
            Some(uid) => writer::apply_to(&api, MANAGER, &uid, &map).await,
            None => writer::apply(&api, MANAGER, &map).await,
        };
        let name = &peer.identity.cluster_name;
        written.map(drop).map_err(|error| Error::Write(name.clone(), namespace.clone(), error))
    }
}
