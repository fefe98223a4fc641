//! Interfaces, addresses, routes, rules and neighbours of a network namespace as plain values, and
//! the difference between two states.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, Ipv4Addr},
};

use ipnet::IpNet;

use super::nft;

/// The desired state of one component in one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace {
    /// The scope of the component: anything in it that is not listed below is removed.
    pub owned: Owned,
    /// Interfaces.
    pub links: Vec<Link>,
    /// Addresses of interfaces.
    pub addresses: BTreeSet<Address>,
    /// Routes.
    pub routes: BTreeSet<Route>,
    /// Routing rules.
    pub rules: BTreeSet<Rule>,
    /// Neighbours: MAC addresses by IP address.
    pub neighbours: BTreeSet<Neighbour>,
    /// Forwarding entries of the overlay: nodes by MAC address.
    pub fdb: BTreeSet<Fdb>,
    /// Kernel parameters, by their path under `/proc/sys`.
    pub sysctls: BTreeMap<String, String>,
    /// The nftables table.
    pub table: Option<nft::Table>,
}

/// The scope of a component in a network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// Interfaces, with their addresses, neighbours and routes in the main table. This includes
    /// interfaces that are created elsewhere.
    pub links: BTreeSet<String>,
    /// Routing tables, and the rules that select them or have their numbers as priority.
    pub tables: BTreeSet<u32>,
    /// Name of the nftables table, if any.
    pub table: Option<String>,
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Name.
    pub name: String,
    /// MTU.
    pub mtu: u32,
    /// Its type, to create it if it is missing.
    pub kind: LinkKind,
}

/// The type of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// It is created elsewhere.
    Given,
    /// A VXLAN without learning of addresses.
    Vxlan {
        /// VXLAN network identifier.
        vni: u32,
        /// UDP port.
        port: u16,
        /// Address of the node.
        local: Ipv4Addr,
        /// MAC address.
        mac: Mac,
    },
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The interface.
    pub link: String,
    /// Address and prefix length.
    pub address: IpNet,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Routing table.
    pub table: u32,
    /// Destination.
    pub to: IpNet,
    /// Next hop, `onlink`.
    pub via: Option<IpAddr>,
    /// The interface.
    pub link: String,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// MTU.
    pub mtu: Option<u32>,
}

/// A routing rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Priority: smaller values first.
    pub priority: u32,
    /// Routing table to look up; `None` for `unreachable`.
    pub table: Option<u32>,
    /// Destination to match.
    pub to: Option<IpNet>,
    /// Input interface to match.
    pub input: Option<String>,
}

/// A neighbour entry.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    /// The interface.
    pub link: String,
    /// The address.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: Mac,
}

/// A forwarding entry of the overlay: the node of a MAC address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fdb {
    /// The interface.
    pub link: String,
    /// The MAC address.
    pub mac: Mac,
    /// The node's address.
    pub node: IpAddr,
}

/// A MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// The changes from one state to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes<T> {
    /// To be removed, after the others are in place.
    pub remove: Vec<T>,
    /// To be added, or to replace the object with the same key.
    pub put: Vec<T>,
}

/// An object with a unique key.
pub trait Keyed {
    /// Type of the key.
    type Key<'a>: Ord
    where
        Self: 'a;

    /// The key.
    fn key(&self) -> Self::Key<'_>;
}

/// The changes from the actual to the desired state.
pub fn diff<T: Keyed + Ord + Clone>(have: &BTreeSet<T>, want: &BTreeSet<T>) -> Changes<T> {
    let wanted: BTreeSet<_> = want.iter().map(Keyed::key).collect();
    Changes {
        remove: have.iter().filter(|it| !wanted.contains(&it.key())).cloned().collect(),
        put: want.difference(have).cloned().collect(),
    }
}

impl<T> Changes<T> {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.put.is_empty()
    }
}

impl Keyed for Address {
    type Key<'a> = &'a Self;

    fn key(&self) -> &Self {
        self
    }
}

impl Keyed for Route {
    type Key<'a> = (u32, IpNet);

    fn key(&self) -> (u32, IpNet) {
        (self.table, self.to)
    }
}

impl Keyed for Rule {
    type Key<'a> = &'a Self;

    fn key(&self) -> &Self {
        self
    }
}

impl Keyed for Neighbour {
    type Key<'a> = (&'a str, IpAddr);

    fn key(&self) -> (&str, IpAddr) {
        (&self.link, self.address)
    }
}

impl Keyed for Fdb {
    type Key<'a> = (&'a str, Mac);

    fn key(&self) -> (&str, Mac) {
        (&self.link, self.mac)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for link in &self.links {
            writeln!(f, "link {} mtu {} {:?}", link.name, link.mtu, link.kind)?;
        }
        for Address { link, address } in &self.addresses {
            writeln!(f, "address {address} dev {link}")?;
        }
        for route in &self.routes {
            write!(f, "route {} table {}", route.to, route.table)?;
            if let Some(via) = route.via {
                write!(f, " via {via} onlink")?;
            }
            write!(f, " dev {}", route.link)?;
            if let Some(source) = route.source {
                write!(f, " src {source}")?;
            }
            if let Some(mtu) = route.mtu {
                write!(f, " mtu {mtu}")?;
            }
            writeln!(f)?;
        }
        for rule in &self.rules {
            write!(f, "rule {}:", rule.priority)?;
            if let Some(to) = rule.to {
                write!(f, " to {to}")?;
            }
            if let Some(input) = &rule.input {
                write!(f, " iif {input}")?;
            }
            match rule.table {
                Some(table) => writeln!(f, " lookup {table}")?,
                None => writeln!(f, " unreachable")?,
            }
        }
        for Neighbour { link, address, mac } in &self.neighbours {
            writeln!(f, "neighbour {address} lladdr {mac} dev {link}")?;
        }
        for Fdb { link, mac, node } in &self.fdb {
            writeln!(f, "fdb {mac} dst {node} dev {link}")?;
        }
        for (key, value) in &self.sysctls {
            writeln!(f, "sysctl {key} = {value}")?;
        }
        self.table.iter().try_for_each(|table| write!(f, "{table}"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn neighbour(host: u8, mac: u8) -> Neighbour {
        Neighbour {
            link: "liqo.vxlan".into(),
            address: Ipv4Addr::new(240, 0, 0, host).into(),
            mac: Mac([mac; 6]),
        }
    }

    #[test]
    fn objects_with_the_same_key_are_replaced_not_removed() {
        let have = [neighbour(1, 1), neighbour(2, 2)].into();
        let want = [neighbour(1, 9), neighbour(3, 3)].into();
        let changes = diff(&have, &want);
        assert_eq!(changes.remove, [neighbour(2, 2)]);
        assert_eq!(changes.put, [neighbour(1, 9), neighbour(3, 3)]);
    }

    proptest! {
        #[test]
        fn the_changes_lead_from_one_state_to_the_other(
            have in prop::collection::btree_map(0u8..8, 0u8..3, 0..8),
            want in prop::collection::btree_map(0u8..8, 0u8..3, 0..8),
        ) {
            let set = |of: &BTreeMap<u8, u8>| {
                of.iter().map(|(&host, &mac)| neighbour(host, mac)).collect::<BTreeSet<_>>()
            };
            let (have, want) = (set(&have), set(&want));
            let changes = diff(&have, &want);
            let mut state: BTreeMap<_, _> =
                have.into_iter().map(|it| (it.address, it)).collect();
            for it in changes.put {
                state.insert(it.address, it);
            }
            for it in changes.remove {
                state.remove(&it.address);
            }
            let state: BTreeSet<_> = state.into_values().collect();
            prop_assert!(diff(&state, &want).is_empty());
            prop_assert_eq!(state, want);
        }
    }
}
