//! The network interfaces of the node, by netlink.

use std::{io, net::IpAddr, time::Duration};

use futures::{FutureExt, StreamExt, TryStreamExt, channel::mpsc::UnboundedReceiver};
use ipnet::IpNet;
use netlink_packet_core::NetlinkMessage;
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage},
    link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage},
};
use rtnetlink::{Handle, MulticastGroup, sys::SocketAddr};
use tokio::time::{Instant, sleep_until};
use tombolo_core::discovery::Interface;
use tombolo_runtime::task::Task;

/// Changes come in bursts, as when a pod starts: they are handled together.
const DEBOUNCE: Duration = Duration::from_millis(100);

pub(super) struct Interfaces {
    handle: Handle,
    messages: UnboundedReceiver<(NetlinkMessage<RouteNetlinkMessage>, SocketAddr)>,
    /// When to report a change.
    due: Option<Instant>,
    _connection: Task,
}

impl Interfaces {
    /// Watches the interfaces in the network namespace of this thread.
    pub fn watch() -> io::Result<Self> {
        let groups = [MulticastGroup::Link, MulticastGroup::Ipv4Ifaddr, MulticastGroup::Ipv6Ifaddr];
        let (connection, handle, messages) = rtnetlink::new_multicast_connection(&groups)?;
        let connection = Task::spawn("netlink connection", connection);
        Ok(Self { handle, messages, due: None, _connection: connection })
    }

    /// Waits for the next change. Cancel safe.
    pub async fn changed(&mut self) -> io::Result<()> {
        let due = match self.due {
            Some(due) => due,
            None => {
                let message = self.messages.next().await;
                message.ok_or_else(|| io::Error::other("the netlink socket is closed"))?;
                *self.due.insert(Instant::now() + DEBOUNCE)
            }
        };
        sleep_until(due).await;
        while self.messages.next().now_or_never().flatten().is_some() {}
        self.due = None;
        Ok(())
    }

    /// All interfaces.
    pub async fn list(&self) -> Result<Vec<Interface>, rtnetlink::Error> {
        let links: Vec<LinkMessage> = self.handle.link().get().execute().try_collect().await?;
        let addresses: Vec<AddressMessage> =
            self.handle.address().get().execute().try_collect().await?;
        let mut interfaces: Vec<Interface> = links.into_iter().map(interface).collect();
        for interface in &mut interfaces {
            let own = addresses.iter().filter(|it| it.header.index == interface.index);
            interface.addresses = own.filter_map(address).collect();
        }
        Ok(interfaces)
    }
}

fn interface(message: LinkMessage) -> Interface {
    let flags = message.header.flags;
    let mut interface = Interface {
        index: message.header.index,
        running: flags.contains(LinkFlags::Up | LinkFlags::Running),
        multicast: flags.contains(LinkFlags::Multicast),
        loopback: flags.contains(LinkFlags::Loopback),
        point_to_point: flags.contains(LinkFlags::Pointopoint),
        ..Interface::default()
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name = name,
            LinkAttribute::LinkInfo(infos) => {
                interface.kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    interface
}

/// The address, unless it is an IPv6 address that is tentative, deprecated or temporary.
fn address(message: &AddressMessage) -> Option<IpNet> {
    let (mut found, mut own, mut flags) = (None, None, AddressFlags::empty());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Address(ip) => found = Some(*ip),
            AddressAttribute::Local(ip) => own = Some(*ip),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let unstable = AddressFlags::Secondary
        | AddressFlags::Tentative
        | AddressFlags::Dadfailed
        | AddressFlags::Deprecated;
    let ip: IpAddr = own.or(found)?;
    let is_usable = ip.is_ipv4() || !flags.intersects(unstable);
    is_usable.then(|| IpNet::new(ip, message.header.prefix_len).ok()).flatten()
}
