//! Names and addresses of everything a testbed makes on the machine. Each testbed has a number, and
//! whatever it makes carries it: `tb3-…`. So testbeds never meet, and all of one can be found.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;

/// How many testbeds a machine can have at a time.
pub(crate) const TESTBEDS: u8 = 64;

/// Where the state of all testbeds of the machine is: gone after a reboot, as they are.
pub(crate) const STATE: &str = "/run/tombolo";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    number: u8,
}

impl Layout {
    pub fn new(number: u8) -> Self {
        assert!(number < TESTBEDS, "testbed {number} of {TESTBEDS}");
        Self { number }
    }

    pub fn state_dir(self) -> PathBuf {
        Path::new(STATE).join(self.number.to_string())
    }

    /// The start of every name that this testbed gives to something on the machine.
    pub fn prefix(self) -> String {
        format!("tb{}-", self.number)
    }

    /// A node's network namespace and its cgroups.
    pub fn node(self, node: &str) -> String {
        format!("{}{node}", self.prefix())
    }

    /// The namespace of the bridge that joins all nodes.
    pub fn wan(self) -> String {
        format!("{}wan", self.prefix())
    }

    /// The machine's own leg in that network.
    pub fn host_link(self) -> String {
        format!("{}host", self.prefix())
    }

    /// The bridge's port that leads to a node; both count from 0 and 1 as in `address`.
    pub fn port(cluster: usize, node: u8) -> String {
        format!("c{cluster}n{node}")
    }

    pub fn network(self) -> Ipv4Net {
        let base = Ipv4Addr::new(172, 30, self.number * 4, 0);
        Ipv4Net::new_assert(base, 22)
    }

    pub fn gateway(self) -> Ipv4Addr {
        self.nth(1)
    }

    pub fn host(self) -> Ipv4Addr {
        self.nth(2)
    }

    /// Clusters count from 0, nodes from 1.
    pub fn address(self, cluster: usize, node: u8) -> Ipv4Addr {
        self.nth(32 * (cluster as u32 + 1) + u32::from(node))
    }

    fn nth(self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.network().network()) + offset)
    }
}

/// The same address always has the same hardware address: a node that comes back with another one
/// would be a black hole until its neighbours ask again.
pub(crate) fn mac(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("02:00:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::spec::{MAX_CLUSTERS, MAX_NODES};

    #[test]
    fn no_two_things_share_an_address() {
        let mut seen = BTreeSet::new();
        for layout in [0, 1, TESTBEDS - 1].map(Layout::new) {
            let nodes = (0..MAX_CLUSTERS)
                .flat_map(|cluster| (1..=MAX_NODES).map(move |node| layout.address(cluster, node)));
            for address in nodes.chain([layout.gateway(), layout.host()]) {
                assert!(layout.network().contains(&address), "{address}");
                assert!(seen.insert(address), "{address} twice");
            }
        }
    }

    #[test]
    fn link_names_fit_into_the_kernels_limit() {
        let layout = Layout::new(TESTBEDS - 1);
        let port = Layout::port(MAX_CLUSTERS - 1, MAX_NODES);
        assert!(layout.host_link().len() < 16 && port.len() < 16);
    }
}
