//! The plan of a node, which connects its pods with other clusters: the overlay to the other nodes,
//! the routes to the gateway, and rules against source NAT on the way.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use ipnet::{IpNet, Ipv4Net};
use tombolo_api::{
    ClusterId,
    names::{TYPE_LABEL, VIRTUAL_NODE},
};

use super::{
    Address, FROM_TUNNEL, Fdb, HOST, Link, LinkKind, MAIN_TABLE, NFT_TABLE, Namespace, Neighbour,
    OVERLAY, Owned, PREFIX, Route, Rule, TO_PEERS, VNI, VXLAN_OVERHEAD, VXLAN_PORT,
    nft::{self, Action, Chain, Kind, Match, Place, SRCNAT, rule},
    overlay, tunnel_mtu, v4,
};
use crate::translate::{Networks, Rewrites};

/// The inputs of the plan of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// Address of the node.
    pub node: Ipv4Addr,
    /// MTU of the node's own network.
    pub mtu: u32,
    /// All nodes of the cluster except virtual ones.
    pub nodes: Vec<Node>,
    /// Address of the node with the active gateway.
    pub gateway: Option<Ipv4Addr>,
    /// Networks of the peers.
    pub peers: BTreeMap<ClusterId, Networks>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its address.
    pub address: Ipv4Addr,
    /// Its PodCIDRs.
    pub pods: Vec<Ipv4Net>,
}

impl Node {
    /// The fields that the plan needs. `None` for a virtual node or one without an IPv4 address.
    pub fn of(node: &k8s_openapi::api::core::v1::Node) -> Option<Self> {
        let labels = node.metadata.labels.as_ref();
        if labels.is_some_and(|it| it.get(TYPE_LABEL).is_some_and(|of| of == VIRTUAL_NODE)) {
            return None;
        }
        let addresses = node.status.as_ref()?.addresses.as_ref()?;
        let internal = addresses.iter().filter(|it| it.type_ == "InternalIP");
        let spec = node.spec.as_ref()?;
        let pods = spec.pod_cidrs.iter().flatten().chain(&spec.pod_cidr);
        let pods: BTreeSet<Ipv4Net> = pods.filter_map(|it| it.parse().ok()).collect();
        Some(Self {
            address: internal.filter_map(|it| it.address.parse().ok()).next()?,
            pods: pods.into_iter().collect(),
        })
    }
}

/// The plan for a node.
pub fn plan(inputs: &Inputs) -> Namespace {
    Namespace {
        owned: owned(),
        links: vec![link(inputs)],
        addresses: [address(inputs)].into(),
        routes: to_peers(inputs).chain(from_tunnel(inputs)).collect(),
        rules: rules(inputs),
        neighbours: others(inputs).map(|node| neighbour(node.address)).collect(),
        fdb: others(inputs).map(|node| fdb(node.address)).collect(),
        sysctls: [(format!("net/ipv4/conf/{OVERLAY}/rp_filter"), "2".into())].into(),
        table: Some(table(inputs)),
    }
}

/// The interfaces and tables of the agent on a node.
pub fn owned() -> Owned {
    Owned {
        links: [OVERLAY.into()].into(),
        tables: [TO_PEERS, FROM_TUNNEL].into(),
        table: Some(NFT_TABLE.into()),
    }
}

/// Whether to remove the remains of a gateway on this node: it runs on another node now.
pub fn is_former_gateway(inputs: &Inputs) -> bool {
    inputs.gateway.is_some_and(|gateway| gateway != inputs.node)
}

fn is_gateway(inputs: &Inputs) -> bool {
    inputs.gateway == Some(inputs.node)
}

fn others(inputs: &Inputs) -> impl Iterator<Item = &Node> {
    inputs.nodes.iter().filter(|node| node.address != inputs.node)
}

/// The translated CIDRs of a peer in this cluster.
fn peer_cidrs(networks: &Networks) -> impl Iterator<Item = Ipv4Net> + use<> {
    Rewrites::of(networks).peer.into_iter().filter_map(v4)
}

fn link(inputs: &Inputs) -> Link {
    Link {
        name: OVERLAY.into(),
        mtu: inputs.mtu.saturating_sub(VXLAN_OVERHEAD),
        kind: LinkKind::Vxlan {
            vni: VNI,
            port: VXLAN_PORT,
            local: inputs.node,
            mac: overlay::mac(inputs.node),
        },
    }
}

fn address(inputs: &Inputs) -> Address {
    let address = Ipv4Net::new_assert(overlay::address(inputs.node), overlay::NETWORK.prefix_len());
    Address { link: OVERLAY.into(), address: address.into() }
}

/// The routes to the peers, and to the gateway, which sends ICMP errors for oversized packets.
fn to_peers(inputs: &Inputs) -> impl Iterator<Item = Route> {
    let mtu = Some(tunnel_mtu(inputs.mtu));
    let hop = match inputs.gateway {
        Some(gateway) if gateway == inputs.node => Some((overlay::GATEWAY_ADDRESS, HOST)),
        Some(gateway) => Some((overlay::address(gateway), OVERLAY)),
        None => None,
    };
    let networks: BTreeSet<_> = inputs.peers.values().flat_map(peer_cidrs).collect();
    let peers = networks.into_iter().map(move |net| (TO_PEERS, net, mtu));
    let gateway = (!is_gateway(inputs)).then_some((MAIN_TABLE, overlay::GATEWAY_LINK, None));
    peers.chain(gateway).filter_map(move |(table, to, mtu)| {
        let (via, link) = hop?;
        Some(Route {
            table,
            to: to.into(),
            via: Some(via.into()),
            link: link.into(),
            // Packets of processes of the node get its own address as source.
            source: mtu.map(|_| inputs.node.into()),
            mtu,
        })
    })
}

/// Routes on the gateway's node: packets from a tunnel reach other nodes over the overlay. On the
/// routes of the CNI plugin, reverse path filters would drop them.
fn from_tunnel(inputs: &Inputs) -> impl Iterator<Item = Route> {
    let route = |to: Ipv4Net, via: Option<Ipv4Addr>| Route {
        table: FROM_TUNNEL,
        to: IpNet::V4(to),
        via: via.map(IpAddr::V4),
        link: OVERLAY.into(),
        source: None,
        mtu: None,
    };
    let nodes = others(inputs).flat_map(move |node| {
        let own = Ipv4Net::from(node.address);
        let via = Some(overlay::address(node.address));
        node.pods.iter().copied().chain([own]).map(move |to| route(to, via))
    });
    is_gateway(inputs).then(|| nodes.chain([route(overlay::NETWORK, None)])).into_iter().flatten()
}

/// Without a route to the gateway, peers are unreachable: packets to them must not leave the
/// cluster by the node's default route.
fn rules(inputs: &Inputs) -> BTreeSet<Rule> {
    let cidrs = || inputs.peers.values().flat_map(peer_cidrs).map(IpNet::V4);
    let rule = |priority, table, to, input| Rule { priority, table, to, input };
    let to_peers = cidrs().map(|net| rule(TO_PEERS, Some(TO_PEERS), Some(net), None));
    let or_nowhere = cidrs().map(|net| rule(FROM_TUNNEL, None, Some(net), None));
    let from_tunnel =
        is_gateway(inputs).then(|| rule(FROM_TUNNEL, Some(FROM_TUNNEL), None, Some(HOST.into())));
    to_peers.chain(or_nowhere).chain(from_tunnel).collect()
}

fn neighbour(node: Ipv4Addr) -> Neighbour {
    Neighbour {
        link: OVERLAY.into(),
        address: overlay::address(node).into(),
        mac: overlay::mac(node),
    }
}

fn fdb(node: Ipv4Addr) -> Fdb {
    Fdb { link: OVERLAY.into(), mac: overlay::mac(node), node: node.into() }
}

/// Addresses of pods are exempt from source NAT by the CNI plugin and kube-proxy. Other sources get
/// the node's address in the overlay, to which replies are routed back.
fn table(inputs: &Inputs) -> nft::Table {
    let ours = format!("{PREFIX}*");
    let input = || Match::Input(ours.clone());
    let output = || Match::Output(ours.clone());
    let mut chain = Chain::base("postrouting", Kind::Nat, Place::Postrouting, SRCNAT - 10);
    chain.rules.push(rule([input(), output()], Action::KeepSource));
    for pods in inputs.nodes.iter().filter(|it| it.address == inputs.node).flat_map(|it| &it.pods) {
        chain.rules.push(rule([output(), Match::Source(*pods)], Action::KeepSource));
    }
    chain.rules.push(rule([output()], Action::SourceTo(overlay::address(inputs.node))));
    for networks in inputs.peers.values() {
        for cidr in peer_cidrs(networks) {
            let source = Match::Source(cidr);
            let pods = v4(networks.local_pods.real()).map(Match::Destination);
            let to_pods = [input(), source.clone()].into_iter().chain(pods);
            chain.rules.push(rule(to_pods, Action::KeepSource));
            chain.rules.push(rule([input(), source], Action::Masquerade));
        }
    }
    nft::Table { name: NFT_TABLE.into(), maps: BTreeMap::new(), chains: vec![chain] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::milan;

    fn inputs(node: u8) -> Inputs {
        let address = |host| Ipv4Addr::new(172, 30, 0, host);
        Inputs {
            node: address(node),
            mtu: 1500,
            nodes: (11..=13)
                .map(|host| Node {
                    address: address(host),
                    pods: vec![Ipv4Net::new_assert(Ipv4Addr::new(10, 244, host - 11, 0), 24)],
                })
                .collect(),
            gateway: Some(address(11)),
            peers: [milan()].into(),
        }
    }

    #[test]
    fn a_virtual_node_is_not_part_of_the_overlay() {
        let node = |labels| {
            serde_json::from_value(serde_json::json!({
                "metadata": { "name": "node", "labels": labels },
                "spec": { "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd00::/64"] },
                "status": { "addresses": [
                    { "type": "Hostname", "address": "node" },
                    { "type": "InternalIP", "address": "fd00::1" },
                    { "type": "InternalIP", "address": "172.30.0.12" },
                ] },
            }))
            .unwrap()
        };
        let pods = vec!["10.244.1.0/24".parse().unwrap()];
        let real = Node { address: Ipv4Addr::new(172, 30, 0, 12), pods };
        assert_eq!(Node::of(&node(serde_json::json!({}))), Some(real));
        let virtual_node = serde_json::json!({ "liqo.io/type": "virtual-node" });
        assert_eq!(Node::of(&node(virtual_node)), None);
    }

    #[test]
    fn on_the_gateways_node() {
        insta::assert_snapshot!(plan(&inputs(11)));
    }

    #[test]
    fn on_another_node() {
        insta::assert_snapshot!(plan(&inputs(12)));
    }

    #[test]
    fn a_gateway_that_moved_leaves_remains_on_its_former_node() {
        assert!(!is_former_gateway(&inputs(11)));
        assert!(is_former_gateway(&inputs(12)));
        assert!(!is_former_gateway(&Inputs { gateway: None, ..inputs(12) }), "it may come back");
    }

    #[test]
    fn without_gateway_and_peers() {
        let inputs = Inputs { gateway: None, peers: BTreeMap::new(), ..inputs(12) };
        insta::assert_snapshot!(plan(&inputs));
    }
}
