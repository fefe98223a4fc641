//! Mapped endpoints of an earlier process that no EndpointSlice uses any more.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use tombolo_core::{reflect::endpoint_slice, translate::Networks};

use super::{
    addresses::{Addresses, Error},
    home::Homes,
};
use crate::peer::Peer;

/// Finds stale mappings and adds them to the unused endpoints. Mappings of other owners are
/// ignored.
pub async fn find(peer: &Peer, homes: &Homes, addresses: &Addresses) -> Result<(), Error> {
    let networks = networks(peer).await;
    // Listed before the slices are read: an endpoint that is mapped later is in use.
    let mut stale = addresses.mapped().await?;
    for ip in in_use(peer, homes, &networks).await {
        stale.remove(&ip);
    }
    addresses.add_unused(stale);
    Ok(())
}

async fn in_use(peer: &Peer, homes: &Homes, networks: &Networks) -> BTreeSet<IpAddr> {
    let namespaces: Vec<String> = peer.namespaces.borrow().keys().cloned().collect();
    let mut used = BTreeSet::new();
    for namespace in namespaces {
        let slices = homes.of::<EndpointSlice>(&namespace);
        slices.objects.synced().await;
        for slice in slices.objects.all() {
            used.extend(endpoint_slice::untranslated(&slice, &peer.node, networks));
        }
    }
    used
}

/// Waits until the networks of the peering are known.
async fn networks(peer: &Peer) -> Networks {
    let mut networks = peer.networks.clone();
    loop {
        if let Some(networks) = *networks.borrow_and_update() {
            return networks;
        }
        if networks.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}
