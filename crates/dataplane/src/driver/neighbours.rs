//! Neighbours and forwarding entries: what is where in the overlay.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use futures::TryStreamExt as _;
use netlink_packet_route::{
    AddressFamily,
    neighbour::{
        NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
    },
};
use rtnetlink::Handle;
use tombolo_core::plan::{Fdb, Mac, Neighbour, network::diff};

use super::{Error, Result, links::Links, netlink};

/// Makes the neighbours on our interfaces what they should be; says how many had to be changed.
pub async fn apply(
    handle: &Handle,
    links: &Links,
    owned: &BTreeSet<String>,
    want: &BTreeSet<Neighbour>,
) -> Result<usize> {
    let have = list(handle, links, owned, AddressFamily::Inet, |link, address, mac| Neighbour {
        link,
        address,
        mac,
    });
    let have = have.await?;
    let changes = diff(&have.keys().cloned().collect(), want);
    for it in &changes.put {
        let request = handle.neighbours().add(index(links, &it.link)?, it.address);
        let request = request.link_layer_address(&it.mac.0).replace();
        let action = format!("add the neighbour {}", it.address);
        request.execute().await.map_err(netlink(action))?;
    }
    for it in &changes.remove {
        let action = format!("remove the neighbour {}", it.address);
        handle.neighbours().del(have[it].clone()).execute().await.map_err(netlink(action))?;
    }
    Ok(changes.put.len() + changes.remove.len())
}

/// Makes the forwarding entries of our interfaces what they should be; says how many had to be
/// changed.
pub async fn apply_fdb(
    handle: &Handle,
    links: &Links,
    owned: &BTreeSet<String>,
    want: &BTreeSet<Fdb>,
) -> Result<usize> {
    let have = list(handle, links, owned, AddressFamily::Bridge, |link, node, mac| Fdb {
        link,
        mac,
        node,
    });
    let have = have.await?;
    let changes = diff(&have.keys().cloned().collect(), want);
    for it in &changes.put {
        let request = handle.neighbours().add_bridge(index(links, &it.link)?, &it.mac.0);
        let request = request.destination(it.node).flags(NeighbourFlags::Own).replace();
        let action = format!("add the way to the node {}", it.node);
        request.execute().await.map_err(netlink(action))?;
    }
    for it in &changes.remove {
        let action = format!("remove the way to the node {}", it.node);
        handle.neighbours().del(have[it].clone()).execute().await.map_err(netlink(action))?;
    }
    Ok(changes.put.len() + changes.remove.len())
}

fn index(links: &Links, name: &str) -> Result<u32> {
    links.get(name).map(|found| found.index).ok_or_else(|| Error::NoLink(name.into()))
}

async fn list<T: Ord>(
    handle: &Handle,
    links: &Links,
    owned: &BTreeSet<String>,
    family: AddressFamily,
    make: impl Fn(String, IpAddr, Mac) -> T,
) -> Result<BTreeMap<T, NeighbourMessage>> {
    let ours = links.iter().filter(|(name, _)| owned.contains(*name));
    let ours: BTreeMap<u32, &String> = ours.map(|(name, found)| (found.index, name)).collect();
    let request = handle.neighbours().get().set_address_family(family).execute();
    let messages: Vec<_> = request.try_collect().await.map_err(netlink("list the neighbours"))?;
    let found = messages.into_iter().filter_map(|message| {
        let link = ours.get(&message.header.ifindex)?;
        if message.header.state != NeighbourState::Permanent {
            return None;
        }
        let (address, mac) = parse(&message)?;
        Some((make((*link).clone(), address, mac), message))
    });
    Ok(found.collect())
}

fn parse(message: &NeighbourMessage) -> Option<(IpAddr, Mac)> {
    let (mut address, mut mac) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => {
                address = Some(IpAddr::V4(*ip));
            }
            // Of a forwarding entry.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
                address = <[u8; 4]>::try_from(bytes.as_slice()).ok().map(IpAddr::from);
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(Mac);
            }
            _ => {}
        }
    }
    Some((address?, mac?))
}
