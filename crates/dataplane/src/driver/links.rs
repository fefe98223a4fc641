//! Interfaces and their addresses.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily,
    address::{AddressAttribute, AddressMessage},
    link::{InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
};
use rtnetlink::{Handle, LinkUnspec, LinkVeth, LinkVxlan};
use tombolo_core::plan::{Address, Link, LinkKind, Mac, network::diff};

use super::{Error, Result, netlink, netns::Netns};

/// An interface that is there.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its index.
    pub index: u32,
    /// Index of the interface on the other end, if it has one.
    pub peer: Option<u32>,
    /// Whether somebody takes what is sent there.
    pub carrier: bool,
    pub(super) mtu: u32,
    up: bool,
    mac: Option<Mac>,
    vxlan: Vec<InfoVxlan>,
}

/// All interfaces, by name.
pub type Links = BTreeMap<String, Found>;

/// The interfaces that are there.
pub async fn list(handle: &Handle) -> Result<Links> {
    let messages: Vec<_> = handle
        .link()
        .get()
        .execute()
        .try_collect()
        .await
        .map_err(netlink("list the interfaces"))?;
    Ok(messages.into_iter().filter_map(found).collect())
}

/// Makes an interface as it should be; says whether anything had to be changed.
pub async fn apply(handle: &Handle, links: &Links, link: &Link) -> Result<bool> {
    let name = &link.name;
    let mut have = links.get(name);
    if let (Some(found), LinkKind::Vxlan { .. }) = (have, &link.kind)
        && !is_same_vxlan(found, &link.kind)
    {
        remove(handle, name, found.index).await?;
        have = None;
    }
    match (have, &link.kind) {
        (Some(found), _) if found.up && found.mtu == link.mtu => Ok(false),
        (Some(found), _) => {
            let message = LinkUnspec::new_with_index(found.index).mtu(link.mtu).up().build();
            let request = handle.link().set(message).execute();
            request.await.map_err(netlink(format!("set up the interface {name}")))?;
            Ok(true)
        }
        (None, LinkKind::Given) => Err(Error::NoLink(name.clone())),
        (None, &LinkKind::Vxlan { vni, port, local, mac }) => {
            let message = LinkVxlan::new(name, vni)
                .port(port)
                .local(local)
                .learning(false)
                .address(mac.0.to_vec())
                .mtu(link.mtu)
                .up()
                .build();
            let request = handle.link().add(message).execute();
            request.await.map_err(netlink(format!("make the interface {name}")))?;
            Ok(true)
        }
    }
}

/// Removes an interface. Gone already is as good.
pub async fn remove(handle: &Handle, name: &str, index: u32) -> Result<()> {
    match handle.link().del(index).execute().await {
        Err(rtnetlink::Error::NetlinkError(error)) if error.raw_code() == -libc::ENODEV => Ok(()),
        result => result.map_err(netlink(format!("remove the interface {name}"))),
    }
}

/// Makes a pair of interfaces, one of them in another namespace.
pub async fn add_pair(handle: &Handle, name: &str, other: &str, netns: &Netns) -> Result<()> {
    let fail = |action: &str| netlink(format!("{action} the interfaces {name} and {other}"));
    let request = handle.link().add(LinkVeth::new(name, other).build()).execute();
    request.await.map_err(fail("make"))?;
    let message = LinkUnspec::new_with_name(other).setns_by_fd(netns.raw_fd()).build();
    handle.link().set(message).execute().await.map_err(fail("take apart"))
}

/// Gives our interfaces the addresses that they should have, and takes others away.
pub async fn apply_addresses(
    handle: &Handle,
    links: &Links,
    owned: &BTreeSet<String>,
    want: &BTreeSet<Address>,
) -> Result<usize> {
    let mut have = BTreeMap::new();
    for (name, found) in links.iter().filter(|(name, _)| owned.contains(*name)) {
        for message in addresses(handle, found.index).await? {
            if let Some(address) = address(&message) {
                have.insert(Address { link: name.clone(), address }, message);
            }
        }
    }
    let changes = diff(&have.keys().cloned().collect(), want);
    for Address { link, address } in &changes.put {
        let index = links.get(link).ok_or_else(|| Error::NoLink(link.clone()))?.index;
        let request = handle.address().add(index, address.addr(), address.prefix_len()).replace();
        let action = format!("give the interface {link} the address {address}");
        request.execute().await.map_err(netlink(action))?;
    }
    for old in &changes.remove {
        let request = handle.address().del(have[old].clone()).execute();
        let action = format!("take the address {} from the interface {}", old.address, old.link);
        request.await.map_err(netlink(action))?;
    }
    Ok(changes.put.len() + changes.remove.len())
}

/// The interface that has this address.
pub async fn with_address(handle: &Handle, ip: IpAddr) -> Result<Option<String>> {
    let request = handle.address().get().set_address_filter(ip).execute();
    let messages: Vec<_> =
        request.try_collect().await.map_err(netlink("list the addresses of the node"))?;
    let Some(index) = messages.first().map(|message| message.header.index) else {
        return Ok(None);
    };
    let links = list(handle).await?;
    Ok(links.into_iter().find(|(_, found)| found.index == index).map(|(name, _)| name))
}

async fn addresses(handle: &Handle, index: u32) -> Result<Vec<AddressMessage>> {
    let request = handle.address().get().set_link_index_filter(index).execute();
    request.try_collect().await.map_err(netlink("list the addresses of an interface"))
}

fn address(message: &AddressMessage) -> Option<IpNet> {
    if message.header.family != AddressFamily::Inet {
        return None;
    }
    message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => IpNet::new(*ip, message.header.prefix_len).ok(),
        _ => None,
    })
}

fn found(message: LinkMessage) -> Option<(String, Found)> {
    let mut name = None;
    let mut found = Found {
        index: message.header.index,
        peer: None,
        carrier: false,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        mac: None,
        vxlan: Vec::new(),
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(it) => name = Some(it),
            LinkAttribute::Mtu(mtu) => found.mtu = mtu,
            LinkAttribute::Carrier(carrier) => found.carrier = carrier != 0,
            LinkAttribute::Link(peer) => found.peer = Some(peer),
            LinkAttribute::Address(bytes) => found.mac = bytes.try_into().ok().map(Mac),
            LinkAttribute::LinkInfo(infos) => {
                found.vxlan = infos.into_iter().find_map(vxlan).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some((name?, found))
}

fn vxlan(info: LinkInfo) -> Option<Vec<InfoVxlan>> {
    match info {
        LinkInfo::Data(InfoData::Vxlan(infos)) => Some(infos),
        _ => None,
    }
}

fn is_same_vxlan(found: &Found, kind: &LinkKind) -> bool {
    let &LinkKind::Vxlan { vni, port, local, mac } = kind else { return false };
    let wanted = [
        InfoVxlan::Id(vni),
        InfoVxlan::Port(port),
        InfoVxlan::Local(local),
        InfoVxlan::Learning(false),
    ];
    found.mac == Some(mac) && wanted.iter().all(|info| found.vxlan.contains(info))
}
