//! Starts and updates virtual nodes: one for each accepted offer. They share the watches of the
//! objects of peerings.

use std::{collections::BTreeMap, sync::Arc};

use kube::{
    Api, Client, ResourceExt,
    runtime::{reflector::Store, watcher},
};
use tokio::sync::watch;
use tombolo_api::{
    ClusterId, ClusterIdentity, ClusterName, discovery::ForeignCluster, net::TunnelEndpoint,
    sharing::ResourceOffer, virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    node::{self, Namespaces},
    offer_stage::{End, OfferStage},
    translate::{Mismatch, Networks, PeerNetworks},
    view::{Map, Offer, Peer},
};
use tombolo_runtime::{
    observe::{Observer, named},
    remote::Remotes,
    settings::Settings,
    shutdown::Shutdown,
    task::Tasks,
};
use tracing::warn;

use crate::{
    api::Gate,
    reflection::Homes,
    virtual_node::{self, Inputs, PodInputs, Shared, Sources},
};

/// Namespace and name of an offer.
type Key = (String, String);

/// Runs all virtual nodes until shutdown.
pub(crate) async fn run(client: Client, settings: Settings, gate: Arc<Gate>, shutdown: Shutdown) {
    let state = State::new(&client, &settings.cluster_name);
    let shared = Shared {
        remotes: Remotes::new(client.clone()),
        homes: Arc::new(Homes::new(client.clone())),
        client,
        settings: Arc::new(settings),
        gate,
        shutdown: shutdown.clone(),
    };
    let mut running: BTreeMap<Key, Running> = BTreeMap::new();
    let mut tasks = Tasks::new();
    let mut wrong = BTreeMap::new();
    let work = async {
        state.observer.synced().await;
        loop {
            let networks = state.networks(&mut wrong);
            state.update(&shared, &networks, &mut running, &mut tasks);
            tokio::select! {
                () = state.observer.changed() => {}
                Some(ended) = tasks.join_next() => {
                    if let Ok(key) = ended {
                        running.remove(&key);
                    }
                }
            }
        }
    };
    shutdown.or(work).await;
    tasks.join_all().await;
}

/// A running virtual node, and the channels by which it gets its inputs.
struct Running {
    inputs: watch::Sender<Inputs>,
    pods: watch::Sender<PodInputs>,
    namespaces: watch::Sender<BTreeMap<String, String>>,
    networks: watch::Sender<Option<Networks>>,
}

/// The objects of all peerings of this cluster.
struct State {
    observer: Observer,
    offers: Store<ResourceOffer>,
    clusters: Store<ForeignCluster>,
    maps: Store<NamespaceMap>,
    tunnels: Store<TunnelEndpoint>,
}

/// The inputs of a virtual node at one time.
struct Snapshot {
    cluster: ClusterIdentity,
    inputs: Inputs,
    pods: PodInputs,
    namespaces: BTreeMap<String, String>,
    networks: Option<Networks>,
}

impl State {
    /// Offers of peers and maps of this cluster, `us`: objects belong to the cluster after which
    /// they are named.
    fn new(client: &Client, us: &ClusterName) -> Self {
        let mut observer = Observer::new();
        let all = watcher::Config::default;
        let theirs = all().fields(&format!("metadata.name!={us}"));
        let ours = named(us.as_str());
        Self {
            offers: observer.watch(Api::all(client.clone()), theirs),
            clusters: observer.watch(Api::all(client.clone()), all()),
            maps: observer.watch(Api::all(client.clone()), ours),
            tunnels: observer.watch(Api::all(client.clone()), all()),
            observer,
        }
    }

    /// The networks of all peers. `wrong` are the mismatches that were already logged.
    fn networks(&self, wrong: &mut BTreeMap<ClusterId, Mismatch>) -> BTreeMap<ClusterId, Networks> {
        let tunnels = self.tunnels.state();
        let peers = PeerNetworks::from_tunnel_endpoints(tunnels.iter().map(Arc::as_ref));
        for (peer, why) in peers.newly_wrong(wrong) {
            warn!(%peer, "can't translate the addresses of the peer's pods: {why}");
        }
        *wrong = peers.wrong;
        peers.known
    }

    fn update(
        &self,
        shared: &Shared,
        networks: &BTreeMap<ClusterId, Networks>,
        running: &mut BTreeMap<Key, Running>,
        tasks: &mut Tasks<Key>,
    ) {
        let mut gone: Vec<Key> = running.keys().cloned().collect();
        for offer in self.offers.state() {
            let key = (offer.namespace().unwrap_or_default(), offer.name_any());
            gone.retain(|other| *other != key);
            let Some(snapshot) = self.snapshot(&offer, networks) else {
                continue;
            };
            if let Some(running) = running.get(&key) {
                running.update(snapshot);
            } else if snapshot.inputs.stage.needs_node() {
                running.insert(key.clone(), start(key, shared, snapshot, tasks));
            }
        }
        for key in gone {
            let inputs = &running[&key].inputs;
            let gone = OfferStage::Draining(End::Withdrawn);
            inputs.send_if_modified(|inputs| {
                !std::mem::replace(&mut inputs.stage, gone).is_draining()
            });
        }
    }

    /// The inputs of the node of an offer. `None`: the cluster that offers is not known yet.
    fn snapshot(
        &self,
        offer: &Arc<ResourceOffer>,
        networks: &BTreeMap<ClusterId, Networks>,
    ) -> Option<Snapshot> {
        let view = Offer::from_resource(offer);
        let clusters = self.clusters.state();
        let mut peers = clusters.iter().map(|cluster| Peer::from_resource(cluster));
        let peer = peers.find(|peer| peer.tenant == Some(view.namespace));
        let identity = node::provider(&view, peer.as_ref())?;
        let maps = self.maps.state();
        let map = maps.iter().find(|map| map.namespace().as_deref() == Some(view.namespace));
        let map = map.map(|map| Map::from_resource(map));
        let Namespaces { active, terminating, desired } = node::namespaces(map.as_ref());
        let not_ready = node::health(peer.as_ref()).err();
        Some(Snapshot {
            networks: networks.get(&identity.cluster_id).copied(),
            cluster: identity,
            inputs: Inputs {
                stage: view.stage,
                not_ready: not_ready.clone(),
                offer: ResourceOffer::clone(offer),
            },
            pods: PodInputs {
                not_ready,
                wanted_namespaces: desired,
                leaving_namespaces: terminating,
            },
            namespaces: active,
        })
    }
}

fn start(key: Key, shared: &Shared, snapshot: Snapshot, tasks: &mut Tasks<Key>) -> Running {
    let cluster = snapshot.cluster.clone();
    let (running, sources) = Running::new(snapshot);
    let shared = shared.clone();
    tasks.spawn(format!("virtual node of {}", cluster.cluster_name), async move {
        virtual_node::run(shared, cluster, sources).await;
        key
    });
    running
}

impl Running {
    fn new(snapshot: Snapshot) -> (Self, Sources) {
        let (inputs, inputs_receiver) = watch::channel(snapshot.inputs);
        let (pods, pods_receiver) = watch::channel(snapshot.pods);
        let (namespaces, namespaces_receiver) = watch::channel(snapshot.namespaces);
        let (networks, networks_receiver) = watch::channel(snapshot.networks);
        let sources = Sources {
            inputs: inputs_receiver,
            pods: pods_receiver,
            namespaces: namespaces_receiver,
            networks: networks_receiver,
        };
        (Self { inputs, pods, namespaces, networks }, sources)
    }

    fn update(&self, snapshot: Snapshot) {
        set(&self.networks, snapshot.networks);
        set(&self.namespaces, snapshot.namespaces);
        set(&self.pods, snapshot.pods);
        set(&self.inputs, snapshot.inputs);
    }
}

fn set<T: PartialEq>(channel: &watch::Sender<T>, value: T) {
    channel.send_if_modified(|now| {
        let differs = *now != value;
        if differs {
            *now = value;
        }
        differs
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    fn snapshot(cpu: &str, wanted: &[&str]) -> Snapshot {
        let offer = serde_json::from_value(json!({
            "metadata": { "name": "milan", "namespace": "liqo-tenant-milan" },
            "spec": { "clusterID": "id-of-milan", "resourceQuota": { "hard": { "cpu": cpu } } },
        }));
        let cluster = json!({ "clusterID": "id-of-milan", "clusterName": "milan" });
        Snapshot {
            cluster: serde_json::from_value(cluster).unwrap(),
            inputs: Inputs { offer: offer.unwrap(), stage: OfferStage::Serving, not_ready: None },
            pods: PodInputs {
                not_ready: None,
                wanted_namespaces: wanted.iter().map(|name| (*name).to_owned()).collect(),
                leaving_namespaces: BTreeMap::new(),
            },
            namespaces: BTreeMap::new(),
            networks: None,
        }
    }

    #[test]
    fn a_changed_offer_updates_the_node_but_reconciles_no_pods() {
        let (running, sources) = Running::new(snapshot("2", &[]));
        running.update(snapshot("3", &[]));
        assert!(sources.inputs.has_changed().unwrap(), "the node gets new resources");
        assert!(!sources.pods.has_changed().unwrap(), "no pod is reconciled");
        running.update(snapshot("3", &["shop"]));
        assert!(sources.pods.has_changed().unwrap());
        let wanted = sources.pods.borrow().wanted_namespaces.clone();
        assert_eq!(wanted, BTreeSet::from(["shop".to_owned()]));
    }
}
