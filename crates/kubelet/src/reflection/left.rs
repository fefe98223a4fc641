//! Addresses that an earlier process asked for and that no slice has any more.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use tombolo_core::{reflect::endpoint_slice, translate::Networks};

use super::{
    addresses::{Addresses, Error},
    home::Homes,
};
use crate::peer::Peer;

/// Finds them once it is known what is in use, and notes that they are to be given back. What other
/// clients of the address service have asked for is theirs.
pub async fn find(peer: &Peer, homes: &Homes, addresses: &Addresses) -> Result<(), Error> {
    let networks = networks(peer).await;
    // Before what is in use: what is asked for from now on is.
    let mut left = addresses.mapped().await?;
    for ip in in_use(peer, homes, &networks).await {
        left.remove(&ip);
    }
    addresses.are_left(left);
    Ok(())
}

async fn in_use(peer: &Peer, homes: &Homes, networks: &Networks) -> BTreeSet<IpAddr> {
    let namespaces: Vec<String> = peer.namespaces.borrow().keys().cloned().collect();
    let mut used = BTreeSet::new();
    for namespace in namespaces {
        let slices = homes.of::<EndpointSlice>(&namespace);
        slices.objects.filled().await;
        for slice in slices.objects.all() {
            used.extend(endpoint_slice::unnamed(&slice, &peer.node, networks));
        }
    }
    used
}

/// Once they are known.
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
