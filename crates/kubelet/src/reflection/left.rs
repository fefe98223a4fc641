//! Addresses that an earlier process asked for and that no slice has any more.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api,
    api::{ListParams, ObjectList},
};
use tombolo_api::net::IpamStorage;
use tombolo_core::{reflect::endpoint_slice, translate::Networks};

use super::{addresses::Addresses, home::Homes};
use crate::peer::Peer;

/// What is mapped can't be listed.
#[derive(Debug, thiserror::Error)]
#[error("list the IpamStorages")]
pub struct Error(#[source] kube::Error);

/// Finds them once it is known what is in use, and notes that they are to be given back.
pub async fn find(peer: &Peer, homes: &Homes, addresses: &Addresses) -> Result<(), Error> {
    let networks = networks(peer).await;
    let storages = Api::<IpamStorage>::all(peer.home.clone());
    // Before what is in use: what is asked for from now on is.
    let storages = storages.list(&ListParams::default()).await.map_err(Error)?;
    let mut left = mapped(peer, &storages);
    for ip in in_use(peer, homes, &networks).await {
        left.remove(&ip);
    }
    addresses.are_left(left);
    Ok(())
}

fn mapped(peer: &Peer, storages: &ObjectList<IpamStorage>) -> BTreeSet<IpAddr> {
    let cluster = &peer.cluster.cluster_id;
    let all = storages.iter().flat_map(|storage| &storage.spec.endpoint_mappings);
    let ours = all.filter(|(_, mapping)| mapping.cluster_mappings.contains_key(cluster));
    ours.map(|(ip, _)| *ip).collect()
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
