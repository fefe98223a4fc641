//! Reflection: copies the Services, EndpointSlices, ConfigMaps and Secrets of offloaded namespaces
//! to their twin namespaces. There is one flow per kind, namespace and peer. Peers share the
//! watches of this cluster.

mod addresses;
mod channel;
mod flow;
mod home;
mod kind;
mod stale;

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
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Reflects to one peer until shutdown. `homes` are the watches shared with other peers.
pub async fn run(peer: Arc<Peer>, homes: Arc<Homes>) {
    let address_service = address_service(&peer.home, peer.settings.ipam_mtls);
    run_with(peer, homes, address_service).await;
}

/// The same, with this address service.
pub async fn run_with(peer: Arc<Peer>, homes: Arc<Homes>, address_service: Channel) {
    let addresses = Arc::new(Addresses::new(peer.cluster.cluster_id.clone(), address_service));
    let stale_found = OnceCell::new();
    let mut namespaces = peer.namespaces.clone();
    let mut flows: BTreeMap<(String, String), Vec<Task>> = BTreeMap::new();
    let work = async {
        loop {
            let wanted = namespaces.borrow_and_update().clone();
            let is_gone = |pair: &(String, String)| wanted.get(&pair.0) != Some(&pair.1);
            for (pair, flows) in flows.extract_if(.., |pair, _| is_gone(pair)) {
                // Ended flows use no addresses any more.
                for flow in flows {
                    flow.stop().await;
                }
                addresses.remove_namespace(&pair.0);
            }
            for pair in wanted {
                flows.entry(pair.clone()).or_insert_with(|| {
                    info!(cluster = %peer.cluster.cluster_name, namespace = pair.0, to = pair.1, "reflecting namespace");
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
                never = unmap_unused(&peer, &homes, &addresses, &stale_found) => match never {},
            }
        }
    };
    peer.shutdown.or(work).await;
}

/// Unmaps endpoints that an earlier process mapped or removed namespaces used, then waits forever.
/// The former are searched once, recorded in `stale_found`.
async fn unmap_unused(
    peer: &Peer,
    homes: &Homes,
    addresses: &Addresses,
    stale_found: &OnceCell<()>,
) -> Infallible {
    let cluster = &peer.cluster.cluster_name;
    let mut delay = RETRY;
    let attempt = async || {
        stale_found.get_or_try_init(|| stale::find(peer, homes, addresses)).await?;
        addresses.unmap_unused().await
    };
    while let Err(error) = attempt().await {
        warn!(%cluster, error = %Chain(&error), retry_in = ?delay, "can't unmap unused endpoints");
        sleep(delay).await;
        delay = (delay * 2).min(LAST_RETRY);
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
