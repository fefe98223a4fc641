//! Reflection: copies the objects that remote pods need from their home namespace to its twin, and
//! keeps the copies up to date. One flow per kind, namespace and peer; home watches are shared.

mod addresses;
mod channel;
mod flow;
mod home;
mod kind;
mod left;

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use kube::Resource as _;
use tokio::{sync::OnceCell, time::sleep};
use tombolo_runtime::{chain::Chain, task::Task};
use tonic::transport::Channel;
use tracing::{info, warn};

use crate::peer::Peer;
use addresses::Addresses;
use channel::address_service;
use flow::Flow;
use kind::{ConfigMaps, EndpointSlices, Kind, Secrets, Services};

pub use channel::address_service_at;
pub use home::Homes;

const RETRY: Duration = Duration::from_secs(1);

/// Reflects to one peer until shutdown. Peers share `homes`.
pub async fn run(peer: Arc<Peer>, homes: Arc<Homes>) {
    let address_service = address_service(&peer.home, peer.settings.ipam_mtls);
    run_with(peer, homes, address_service).await;
}

/// The same with this address service.
pub async fn run_with(peer: Arc<Peer>, homes: Arc<Homes>, address_service: Channel) {
    let addresses = Arc::new(Addresses::new(peer.cluster.cluster_id.clone(), address_service));
    let left = OnceCell::new();
    let mut namespaces = peer.namespaces.clone();
    let mut flows: BTreeMap<(String, String), Vec<Task>> = BTreeMap::new();
    let work = async {
        loop {
            let wanted = namespaces.borrow_and_update().clone();
            let is_gone = |pair: &(String, String)| wanted.get(&pair.0) != Some(&pair.1);
            for (pair, flows) in flows.extract_if(.., |pair, _| is_gone(pair)) {
                // Stopped first, so that no flow requests addresses after the release.
                for flow in flows {
                    flow.stop().await;
                }
                addresses.leave(&pair.0);
            }
            for pair in wanted {
                flows.entry(pair.clone()).or_insert_with(|| {
                    let cluster = &peer.cluster.cluster_name;
                    info!(%cluster, namespace = pair.0, twin = pair.1, "reflecting the namespace");
                    vec![
                        start::<Services>(&peer, &homes, &addresses, &pair),
                        start::<EndpointSlices>(&peer, &homes, &addresses, &pair),
                        start::<ConfigMaps>(&peer, &homes, &addresses, &pair),
                        start::<Secrets>(&peer, &homes, &addresses, &pair),
                    ]
                });
            }
            tokio::select! {
                changed = namespaces.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                never = give_back(&peer, &homes, &addresses, &left) => match never {},
            }
        }
    };
    peer.shutdown.or(work).await;
}

/// Releases the addresses that an earlier process left behind, and those of namespaces that are no
/// longer reflected; then waits forever.
async fn give_back(
    peer: &Peer,
    homes: &Homes,
    addresses: &Addresses,
    left: &OnceCell<()>,
) -> Infallible {
    while let Err(error) = left.get_or_try_init(|| left::find(peer, homes, addresses)).await {
        warn!(retry_in = ?RETRY, "{}", Chain(&error));
        sleep(RETRY).await;
    }
    while let Err(error) = addresses.give_back().await {
        warn!(retry_in = ?RETRY, "{}", Chain(&error));
        sleep(RETRY).await;
    }
    std::future::pending().await
}

fn start<K: Kind>(
    peer: &Arc<Peer>,
    homes: &Homes,
    addresses: &Arc<Addresses>,
    (home, remote): &(String, String),
) -> Task {
    let flow = Flow::<K>::new(peer.clone(), homes.of(home), addresses.clone(), home, remote);
    let name = format!("reflection of {}s in {home}", K::Home::kind(&()));
    Task::spawn(name, flow.run())
}
