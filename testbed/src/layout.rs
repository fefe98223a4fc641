//! Names and addresses of all resources of a testbed on the machine. They contain the number of the
//! testbed, `tb3-…`, so that testbeds never conflict and all resources of one can be found.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use ipnet::Ipv4Net;

/// Maximum number of testbeds on a machine.
pub(crate) const TESTBEDS: u8 = 64;

/// Directory of the state files of all testbeds. Like the testbeds, it does not survive a reboot.
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

    /// Prefix of all names of this testbed on the machine.
    pub fn prefix(self) -> String {
        format!("tb{}-", self.number)
    }

    /// Name of the network namespace and the cgroups of a node.
    pub fn node(self, node: &str) -> String {
        format!("{}{node}", self.prefix())
    }

    /// Namespace of the bridge between all nodes.
    pub fn wan(self) -> String {
        format!("{}wan", self.prefix())
    }

    /// Interface of the machine in that network.
    pub fn host_link(self) -> String {
        format!("{}host", self.prefix())
    }

    /// Bridge port of a node; clusters count from 0, nodes from 1.
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

/// A fixed hardware address for each address: with another one, a rebooted node would be
/// unreachable until the ARP entries of its neighbours expire.
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
    fn addresses_are_unique() {
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
    fn link_names_are_within_the_limit_of_the_kernel() {
        let layout = Layout::new(TESTBEDS - 1);
        let port = Layout::port(MAX_CLUSTERS - 1, MAX_NODES);
        assert!(layout.host_link().len() < 16 && port.len() < 16);
    }
}
