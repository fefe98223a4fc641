//! Routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use futures::TryStreamExt as _;
use ipnet::{IpNet, Ipv4Net};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use rtnetlink::{Handle, RouteMessageBuilder};
use tombolo_core::plan::{Owned, Route, network::diff};

use super::{Error, Result, links::Links, netlink};

/// Makes our routes what they should be; says how many had to be changed.
pub async fn apply(
    handle: &Handle,
    links: &Links,
    owned: &Owned,
    want: &BTreeSet<Route>,
) -> Result<usize> {
    let have = list(handle, links, owned).await?;
    let changes = diff(&have.keys().cloned().collect(), want);
    for route in &changes.put {
        let index = links.get(&route.link).ok_or_else(|| Error::NoLink(route.link.clone()))?.index;
        let request = handle.route().add(message(route, index)).replace().execute();
        request.await.map_err(netlink(format!("add the route to {}", route.to)))?;
    }
    for route in &changes.remove {
        let request = handle.route().del(have[route].clone()).execute();
        request.await.map_err(netlink(format!("remove the route to {}", route.to)))?;
    }
    Ok(changes.put.len() + changes.remove.len())
}

async fn list(
    handle: &Handle,
    links: &Links,
    owned: &Owned,
) -> Result<BTreeMap<Route, RouteMessage>> {
    let names: BTreeMap<u32, &String> = links.iter().map(|(name, it)| (it.index, name)).collect();
    let all = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let messages: Vec<_> = handle
        .route()
        .get(all)
        .execute()
        .try_collect()
        .await
        .map_err(netlink("list the routes"))?;
    let routes = messages.into_iter().filter_map(|message| {
        let route = parse(&message, &names)?;
        let ours = owned.tables.contains(&route.table)
            || (route.table == MAIN
                && owned.links.contains(&route.link)
                && message.header.protocol != RouteProtocol::Kernel);
        ours.then_some((route, message))
    });
    Ok(routes.collect())
}

const MAIN: u32 = 254;

fn message(route: &Route, index: u32) -> RouteMessage {
    let mut builder = RouteMessageBuilder::<Ipv4Addr>::new()
        .table_id(route.table)
        .output_interface(index)
        .kind(RouteType::Unicast);
    if let IpNet::V4(to) = route.to {
        builder = builder.destination_prefix(to.network(), to.prefix_len());
    }
    builder = match route.via {
        Some(IpAddr::V4(via)) => builder.gateway(via).onlink(),
        _ => builder.scope(RouteScope::Link),
    };
    if let Some(IpAddr::V4(source)) = route.source {
        builder = builder.pref_source(source);
    }
    let mut message = builder.build();
    if let Some(mtu) = route.mtu {
        message.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    }
    message
}

fn parse(message: &RouteMessage, names: &BTreeMap<u32, &String>) -> Option<Route> {
    let mut to = Ipv4Net::default();
    let mut route = Route {
        table: message.header.table.into(),
        to: to.into(),
        via: None,
        link: String::new(),
        source: None,
        mtu: None,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(table) => route.table = *table,
            RouteAttribute::Destination(RouteAddress::Inet(ip)) => {
                to = Ipv4Net::new(*ip, message.header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Gateway(RouteAddress::Inet(ip)) => route.via = Some((*ip).into()),
            RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => route.source = Some((*ip).into()),
            RouteAttribute::Oif(index) => route.link.clone_from(names.get(index)?),
            RouteAttribute::Metrics(metrics) => {
                route.mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(mtu) => Some(*mtu),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    route.to = to.into();
    Some(route)
}
