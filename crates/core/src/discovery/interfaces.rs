//! Selects the interfaces of a node for mDNS, and the addresses to announce there.

use std::net::IpAddr;

use ipnet::IpNet;

/// An interface of the node, as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// The kind of a virtual link: `bridge`, `veth`, `vxlan`. `None` for hardware.
    pub kind: Option<String>,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it supports multicast.
    pub multicast: bool,
    /// Whether it is the loopback.
    pub loopback: bool,
    /// Whether it is point-to-point.
    pub point_to_point: bool,
    /// Its addresses, with their networks.
    pub addresses: Vec<IpNet>,
}

/// The node whose interfaces are selected.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    /// Its address as a Kubernetes node.
    pub address: IpAddr,
    /// Networks inside the cluster: PodCIDR and ServiceCIDR.
    pub cluster_networks: &'a [IpNet],
    /// Configured interface names; empty: all that lead to a local network.
    pub interfaces: &'a [String],
}

/// The interfaces to use, each with the addresses to announce. Unless interfaces are configured,
/// the one with the node's address is included, whatever its name.
pub fn local_networks(interfaces: &[Interface], host: &Host<'_>) -> Vec<Interface> {
    let chosen = interfaces.iter().filter(|it| {
        let has_node_address = it.addresses.iter().any(|net| net.addr() == host.address);
        match host.interfaces {
            [] => has_node_address || !is_virtual(it),
            wanted => wanted.contains(&it.name),
        }
    });
    chosen
        .filter(|it| it.running && it.multicast && !it.loopback && !it.point_to_point)
        .map(|it| Interface { addresses: announced(it, host), ..it.clone() })
        .filter(|it| !it.addresses.is_empty())
        .collect()
}

/// Prefixes of interface names that network plugins, container runtimes and Tombolo itself create.
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

/// Tunnels, and links that lead to no network.
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

/// The addresses to announce. A link-local IPv4 address only if there is no other; a link-local
/// IPv6 address never, because a URL can't contain its zone.
fn announced(interface: &Interface, host: &Host<'_>) -> Vec<IpNet> {
    let is_outside = |net: &&IpNet| {
        let address = net.addr();
        let is_inner = host.cluster_networks.iter().any(|net| net.contains(&address));
        is_host_address(address) && (address == host.address || !is_inner)
    };
    let (link_local, mut announced): (Vec<IpNet>, Vec<IpNet>) =
        interface.addresses.iter().filter(is_outside).partition(|net| is_link_local(net.addr()));
    if announced.is_empty() {
        announced = link_local.into_iter().filter(|net| net.addr().is_ipv4()).collect();
    }
    announced.sort_unstable();
    announced
}

/// Whether an address can be that of a host.
pub(super) fn is_host_address(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_loopback() || address.is_unspecified() || address.is_multicast() || broadcast)
}

/// Whether an address is link-local.
pub(super) fn is_link_local(address: IpAddr) -> bool {
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

    /// Names and addresses of the interfaces selected on node 192.0.2.1.
    fn chosen(interfaces: &[Interface], wanted: &[&str]) -> Vec<String> {
        let inner = ["10.244.0.0/16", "10.96.0.0/16", "fd00:10::/56"];
        let inner = inner.map(|text| text.parse().unwrap());
        let wanted: Vec<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        let host = Host {
            address: "192.0.2.1".parse().unwrap(),
            cluster_networks: &inner,
            interfaces: &wanted,
        };
        let line = |it: &Interface| {
            let addresses = it.addresses.iter().map(|net| net.addr().to_string());
            format!("{} {}", it.name, addresses.collect::<Vec<_>>().join(" "))
        };
        local_networks(interfaces, &host).iter().map(line).collect()
    }

    #[test]
    fn all_local_networks_of_a_node_are_used() {
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
    fn interfaces_of_the_cluster_network_are_not_used() {
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
    fn the_interface_with_the_node_address_is_used_whatever_its_name() {
        let node = [interface("vethnode", Some("veth"), &["192.0.2.1/24"])];
        assert_eq!(chosen(&node, &[]), ["vethnode 192.0.2.1"]);
    }

    #[test]
    fn configured_interfaces_are_used_and_no_others() {
        let node = [
            interface("eth0", None, &["192.0.2.1/24"]),
            interface("docker0", Some("bridge"), &["172.17.0.1/16"]),
        ];
        assert_eq!(chosen(&node, &["docker0", "eth7"]), ["docker0 172.17.0.1"]);
    }

    #[test]
    fn interfaces_without_multicast_are_not_used() {
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
    fn link_local_addresses_are_the_last_resort() {
        let both = interface("eth1", None, &["169.254.7.7/16", "203.0.113.7/24"]);
        let four = interface("eth2", None, &["169.254.7.7/16", "fe80::1/64"]);
        let six = interface("eth3", None, &["fe80::1/64"]);
        assert_eq!(chosen(&[both, four, six], &[]), ["eth1 203.0.113.7", "eth2 169.254.7.7"]);
    }
}
