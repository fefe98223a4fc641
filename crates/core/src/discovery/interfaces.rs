//! On which interfaces of its node a cluster speaks to the local network, and which of its
//! addresses it names there.

use std::net::IpAddr;

use ipnet::IpNet;

/// An interface of the node, as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What the kernel makes it of, unless there is hardware: `bridge`, `veth`, `vxlan`.
    pub kind: Option<String>,
    /// Whether it is up, and something takes what is sent there.
    pub running: bool,
    /// Whether it takes what is for many.
    pub multicast: bool,
    /// Whether it leads back to the node.
    pub loopback: bool,
    /// Whether there is only one at the other end.
    pub point_to_point: bool,
    /// Its addresses, with their networks.
    pub addresses: Vec<IpNet>,
}

/// The node whose interfaces are chosen from.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// The address by which the cluster knows it.
    pub address: IpAddr,
    /// Networks within the cluster: of its pods, of its Services.
    pub inner: &'a [IpNet],
    /// Names of the interfaces to speak on; none: whatever leads to a local network.
    pub wanted: &'a [String],
}

/// The interfaces to speak on, each with the addresses to name there. The one that has the node's
/// address leads to a local network whatever it is called.
pub fn local_networks(interfaces: &[Interface], host: &Host<'_>) -> Vec<Interface> {
    let chosen = interfaces.iter().filter(|it| {
        let has_node_address = it.addresses.iter().any(|net| net.addr() == host.address);
        match host.wanted {
            [] => has_node_address || !is_virtual(it),
            wanted => wanted.contains(&it.name),
        }
    });
    chosen
        .filter(|it| it.running && it.multicast && !it.loopback && !it.point_to_point)
        .map(|it| Interface { addresses: named(it, host), ..it.clone() })
        .filter(|it| !it.addresses.is_empty())
        .collect()
}

/// Names of interfaces that network plugins, container runtimes and we ourselves make begin so.
const VIRTUAL_NAMES: [&str; 20] = [
    "antrea",
    "azure",
    "br-",
    "cali",
    "cilium",
    "cni",
    "docker",
    "flannel",
    "genev",
    "kube",
    "liqo.",
    "lxc",
    "nodelocaldns",
    "ovn",
    "podman",
    "tunl",
    "veth",
    "virbr",
    "vxlan",
    "weave",
];

/// Tunnels, and what leads nowhere.
const VIRTUAL_KINDS: [&str; 17] = [
    "dummy",
    "erspan",
    "geneve",
    "gre",
    "gretap",
    "ifb",
    "ip6gre",
    "ip6gretap",
    "ip6tnl",
    "ipip",
    "sit",
    "tun",
    "vti",
    "vti6",
    "vxlan",
    "wireguard",
    "xfrm",
];

fn is_virtual(interface: &Interface) -> bool {
    VIRTUAL_NAMES.iter().any(|prefix| interface.name.starts_with(prefix))
        || interface.kind.as_deref().is_some_and(|kind| VIRTUAL_KINDS.contains(&kind))
}

/// An address of the link is named only where there is no other: an IPv6 one never, as it means
/// nothing in a URL.
fn named(interface: &Interface, host: &Host<'_>) -> Vec<IpNet> {
    let outer = |net: &&IpNet| {
        let address = net.addr();
        let is_inner = host.inner.iter().any(|inner| inner.contains(&address));
        is_of_a_host(address) && (address == host.address || !is_inner)
    };
    let (of_link, mut named): (Vec<IpNet>, Vec<IpNet>) =
        interface.addresses.iter().filter(outer).partition(|net| is_of_link(net.addr()));
    if named.is_empty() {
        named = of_link.into_iter().filter(|net| net.addr().is_ipv4()).collect();
    }
    named.sort_unstable();
    named
}

/// Whether an address can be that of another host.
pub(super) fn is_of_a_host(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || broadcast)
}

/// Whether an address holds on one link only.
pub(super) fn is_of_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, kind: Option<&str>, addresses: &[&str]) -> Interface {
        Interface {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            running: true,
            multicast: true,
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            ..Interface::default()
        }
    }

    /// Names and addresses of what is chosen for the node 192.0.2.1.
    fn chosen(interfaces: &[Interface], wanted: &[&str]) -> Vec<String> {
        let inner = ["10.244.0.0/16", "10.96.0.0/16", "fd00:10::/56"];
        let inner = inner.map(|text| text.parse().unwrap());
        let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        let host = Host { address: "192.0.2.1".parse().unwrap(), inner: &inner, wanted: &wanted };
        let line = |it: &Interface| {
            let addresses = it.addresses.iter().map(|net| net.addr().to_string());
            format!("{} {}", it.name, addresses.collect::<Vec<_>>().join(" "))
        };
        local_networks(interfaces, &host).iter().map(line).collect()
    }

    #[test]
    fn all_local_networks_of_a_node_are_spoken_to() {
        let node = [
            interface("eth0", None, &["192.0.2.1/24", "2001:db8::1/64", "fe80::1/64"]),
            interface("eth1", Some("veth"), &["fd00:1::1/64", "198.51.100.1/24"]),
            interface("br0", Some("bridge"), &["203.0.113.1/24"]),
            interface("bond0.7", Some("vlan"), &["172.16.0.1/12"]),
        ];
        assert_eq!(
            chosen(&node, &[]),
            [
                "eth0 192.0.2.1 2001:db8::1",
                "eth1 198.51.100.1 fd00:1::1",
                "br0 203.0.113.1",
                "bond0.7 172.16.0.1",
            ]
        );
    }

    #[test]
    fn what_is_within_the_cluster_is_no_local_network() {
        let node = [
            interface("cni0", Some("bridge"), &["10.244.1.1/24"]),
            interface("mybridge", Some("bridge"), &["10.244.2.1/24", "fd00:10::1/64"]),
            interface("flannel.1", Some("vxlan"), &["10.244.1.0/32"]),
            interface("cali12345", Some("veth"), &["fe80::ecee:eeff:feee:eeee/64"]),
            interface("veth0a1b", Some("veth"), &["fe80::2/64"]),
            interface("kube-ipvs0", Some("dummy"), &["10.96.0.1/32"]),
            interface("docker0", Some("bridge"), &["172.17.0.1/16"]),
            interface("br-0123456789ab", Some("bridge"), &["172.18.0.1/16"]),
            interface("liqo.vxlan", Some("vxlan"), &["240.0.2.1/8"]),
            interface("liqo.host", Some("veth"), &["169.254.100.1/30"]),
            interface("wg0", Some("wireguard"), &["198.51.100.9/24"]),
        ];
        assert_eq!(chosen(&node, &[]), Vec::<String>::new());
    }

    #[test]
    fn the_nodes_own_interface_counts_whatever_it_is_called() {
        let node = [interface("vethnode", Some("veth"), &["192.0.2.1/24"])];
        assert_eq!(chosen(&node, &[]), ["vethnode 192.0.2.1"]);
    }

    #[test]
    fn who_names_interfaces_gets_these_and_no_others() {
        let node = [
            interface("eth0", None, &["192.0.2.1/24"]),
            interface("docker0", Some("bridge"), &["172.17.0.1/16"]),
        ];
        assert_eq!(chosen(&node, &["docker0", "eth7"]), ["docker0 172.17.0.1"]);
    }

    #[test]
    fn what_can_not_carry_it_is_left_out() {
        let eth0 = || interface("eth0", None, &["192.0.2.1/24"]);
        let node = [
            Interface { running: false, ..eth0() },
            Interface { multicast: false, ..eth0() },
            Interface { loopback: true, ..eth0() },
            Interface { point_to_point: true, ..eth0() },
        ];
        assert_eq!(chosen(&node, &[]), Vec::<String>::new());
        assert_eq!(chosen(&node, &["eth0"]), Vec::<String>::new());
    }

    #[test]
    fn addresses_of_the_link_are_the_last_resort() {
        let both = interface("eth1", None, &["169.254.7.7/16", "203.0.113.7/24"]);
        let four = interface("eth2", None, &["169.254.7.7/16", "fe80::1/64"]);
        let six = interface("eth3", None, &["fe80::1/64"]);
        assert_eq!(chosen(&[both, four, six], &[]), ["eth1 203.0.113.7", "eth2 169.254.7.7"]);
    }
}
