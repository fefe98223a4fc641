//! Reflection: what pods in a remote cluster need of their home namespace is there too, and
//! follows. One flow for each kind, namespace and peer; home watches are shared between peers.

mod addresses;
mod flow;
mod home;
mod kind;

use std::{collections::BTreeMap, sync::Arc};

use tokio_util::task::AbortOnDropHandle;
use tombolo_api::names::{IPAM_PORT, IPAM_SERVICE, NAMESPACE};
use tonic::transport::{Channel, Endpoint};
use tracing::info;

use crate::peer::Peer;
use addresses::Addresses;
use flow::Flow;
use kind::{ConfigMaps, EndpointSlices, Kind, Secrets, Services};

pub use home::Homes;

/// Reflects to one peer, until the end is asked for. The home watches other peers share.
pub async fn run(peer: Arc<Peer>, homes: Arc<Homes>) {
    run_with(peer, homes, address_service()).await;
}

/// The same, with this address service.
pub async fn run_with(peer: Arc<Peer>, homes: Arc<Homes>, address_service: Channel) {
    let addresses = Arc::new(Addresses::new(peer.cluster.cluster_id.clone(), address_service));
    let mut namespaces = peer.namespaces.clone();
    let mut flows: BTreeMap<(String, String), Vec<AbortOnDropHandle<()>>> = BTreeMap::new();
    let work = async {
        loop {
            let wanted = namespaces.borrow_and_update().clone();
            flows.retain(|(home, remote), _| wanted.get(home) == Some(remote));
            for pair in wanted {
                flows.entry(pair.clone()).or_insert_with(|| {
                    info!(cluster = %peer.cluster.cluster_name, namespace = pair.0, to = pair.1, "reflecting");
                    vec![
                        start::<Services>(&peer, &homes, &addresses, &pair),
                        start::<EndpointSlices>(&peer, &homes, &addresses, &pair),
                        start::<ConfigMaps>(&peer, &homes, &addresses, &pair),
                        start::<Secrets>(&peer, &homes, &addresses, &pair),
                    ]
                });
            }
            if namespaces.changed().await.is_err() {
                return;
            }
        }
    };
    peer.shutdown.or(work).await;
}

/// The address service of this cluster; connected to when it is needed.
fn address_service() -> Channel {
    let uri = format!("http://{IPAM_SERVICE}.{NAMESPACE}.svc:{IPAM_PORT}");
    Endpoint::from_shared(uri).expect("a name and a port make a URI").connect_lazy()
}

fn start<K: Kind>(
    peer: &Arc<Peer>,
    homes: &Homes,
    addresses: &Arc<Addresses>,
    (home, remote): &(String, String),
) -> AbortOnDropHandle<()> {
    let flow = Flow::<K>::new(peer.clone(), homes.of(home), addresses.clone(), home, remote);
    AbortOnDropHandle::new(tokio::spawn(flow.run()))
}
