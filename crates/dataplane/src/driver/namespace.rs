//! Brings one network namespace to what a plan says, and back to what it was without us.

use std::collections::BTreeSet;

use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::{Handle, MulticastGroup, packet_core::NetlinkMessage};
use tokio::sync::mpsc;
use tombolo_core::plan::{Namespace, Owned, Route};
use tombolo_runtime::task::Task;

use super::{
    Error, Result,
    links::{self, Links},
    neighbours,
    netns::Netns,
    nftables, routes, rules, sysctl,
};

/// Name of the task that talks to the kernel.
const CONNECTION: &str = "netlink connection";

/// A network namespace to work on.
#[derive(Debug)]
pub struct Network {
    netns: Netns,
    handle: Handle,
    _connection: Task,
}

/// What applying a plan came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How many things had to be changed.
    pub changed: usize,
    /// Interfaces that somebody else has to make first; what needs them was left out.
    pub missing: BTreeSet<String>,
}

impl Network {
    /// Opens a network namespace.
    pub fn open(netns: Netns) -> Result<Self> {
        let opened = netns.run(rtnetlink::new_connection)?;
        let (connection, handle, _) = opened.map_err(Error::Socket)?;
        Ok(Self { netns, handle, _connection: Task::spawn(CONNECTION, connection) })
    }

    /// The namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// The interfaces that are there.
    pub async fn links(&self) -> Result<Links> {
        links::list(&self.handle).await
    }

    /// MTU of the interface that has this address.
    pub async fn mtu_of(&self, address: std::net::IpAddr) -> Result<Option<u32>> {
        let Some(name) = links::with_address(&self.handle, address).await? else {
            return Ok(None);
        };
        Ok(self.links().await?.get(&name).map(|found| found.mtu))
    }

    /// Makes a pair of interfaces that leads into another namespace, unless it is there.
    pub async fn join(&self, name: &str, other: &Network, other_name: &str) -> Result<bool> {
        let here = self.links().await?;
        let there = other.links().await?;
        if let (Some(near), Some(far)) = (here.get(name), there.get(other_name))
            && near.peer == Some(far.index)
            && far.peer == Some(near.index)
        {
            return Ok(false);
        }
        // Half of a pair, left behind when it was being made.
        for left in [name, other_name] {
            if let Some(found) = self.links().await?.get(left) {
                links::remove(&self.handle, left, found.index).await?;
            }
        }
        if let Some(found) = other.links().await?.get(other_name) {
            links::remove(&other.handle, other_name, found.index).await?;
        }
        links::add_pair(&self.handle, name, other_name, &other.netns).await?;
        Ok(true)
    }

    /// Makes everything what it should be.
    pub async fn apply(&self, want: &Namespace) -> Result<Report> {
        let mut report = Report::default();
        let links = self.links().await?;
        for link in &want.links {
            match links::apply(&self.handle, &links, link).await {
                Err(Error::NoLink(name)) => drop(report.missing.insert(name)),
                result => report.changed += usize::from(result?),
            }
        }
        for (key, value) in &want.sysctls {
            let about_missing = |name| key.contains(&format!("/{name}/"));
            if !report.missing.iter().any(about_missing) {
                report.changed += usize::from(sysctl::set(&self.netns, key, value)?);
            }
        }
        // Translation comes before routes: no packet may leave with an address that is not ours.
        if let Some(table) = &want.table {
            let replaced = self.netns.run(|| nftables::apply(table))??;
            report.changed += usize::from(replaced);
        }
        let links = self.links().await?;
        let Namespace { owned, addresses, neighbours, fdb, rules, .. } = want;
        let known = |name: &String| links.contains_key(name);
        let addresses = addresses.iter().filter(|it| known(&it.link)).cloned().collect();
        let routes: BTreeSet<Route> =
            want.routes.iter().filter(|it| known(&it.link)).cloned().collect();
        let unknown = want.routes.iter().filter(|it| !known(&it.link));
        report.missing.extend(unknown.map(|it| it.link.clone()));
        let handle = &self.handle;
        report.changed += links::apply_addresses(handle, &links, &owned.links, &addresses).await?
            + neighbours::apply(handle, &links, &owned.links, neighbours).await?
            + neighbours::apply_fdb(handle, &links, &owned.links, fdb).await?
            + routes::apply(handle, &links, owned, &routes).await?
            + rules::apply(handle, &owned.tables, rules).await?;
        Ok(report)
    }

    /// Removes everything that belongs to a component.
    pub async fn clear(&self, owned: &Owned) -> Result<()> {
        let links = self.links().await?;
        rules::apply(&self.handle, &owned.tables, &BTreeSet::new()).await?;
        routes::apply(&self.handle, &links, owned, &BTreeSet::new()).await?;
        for name in &owned.links {
            if let Some(found) = links.get(name) {
                links::remove(&self.handle, name, found.index).await?;
            }
        }
        if let Some(table) = &owned.table {
            self.netns.run(|| nftables::remove(table))??;
        }
        Ok(())
    }

    /// Says when interfaces, addresses, routes or rules changed, whoever did it.
    pub fn watch(&self) -> Result<Watch> {
        let groups = [
            MulticastGroup::Link,
            MulticastGroup::Ipv4Ifaddr,
            MulticastGroup::Ipv4Route,
            MulticastGroup::Ipv4Rule,
        ];
        let opened = self.netns.run(|| rtnetlink::new_multicast_connection(&groups))?;
        let (connection, _, mut messages) = opened.map_err(Error::Socket)?;
        let (changed, receiver) = mpsc::channel(1);
        let notify = async move {
            use futures::StreamExt as _;
            while let Some((message, _)) = messages.next().await {
                // One that waits to be taken is enough.
                let _: (NetlinkMessage<RouteNetlinkMessage>, _) = (message, changed.try_send(()));
                if changed.is_closed() {
                    return;
                }
            }
        };
        Ok(Watch {
            receiver,
            _connection: Task::spawn(CONNECTION, connection),
            _notify: Task::spawn("changes of the network", notify),
        })
    }
}

/// Changes in a network namespace.
#[derive(Debug)]
pub struct Watch {
    receiver: mpsc::Receiver<()>,
    _connection: Task,
    _notify: Task,
}

impl Watch {
    /// Waits for the next change.
    pub async fn changed(&mut self) {
        if self.receiver.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
    }
}
