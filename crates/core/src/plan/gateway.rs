//! The plan of a gateway: the routes from its node through its network namespace into the tunnels,
//! and the rules that translate addresses between this cluster and each peer.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use ipnet::{IpNet, Ipv4Net};
use tombolo_api::{Cidr, ClusterId};

use super::{
    Address, GATEWAY, HOST, Link, LinkKind, MAIN_TABLE, NFT_TABLE, Namespace, Owned, PROBE_PORT,
    Route, TUNNEL,
    nft::{Action, Chain, DSTNAT, Kind, Match, Place, Rule, SRCNAT, Table, rule},
    overlay, tunnel_mtu, v4,
};
use crate::translate::{Arrival, Destination, Mappings, Networks, Packet, Rewrites, Source};

/// The inputs of the plan of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inputs {
    /// MTU of the gateway's node.
    pub mtu: u32,
    /// The peers.
    pub peers: BTreeMap<ClusterId, Peer>,
}

/// A peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The networks of both clusters.
    pub networks: Networks,
    /// Endpoint of its gateway.
    pub endpoint: SocketAddr,
    /// Public key of its gateway.
    pub public_key: PublicKey,
    /// Mapped endpoints of this cluster, by their address in the peer.
    pub mappings: Mappings,
}

/// A WireGuard public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PublicKey(pub [u8; 32]);

/// The plan of a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The part in the node's network namespace.
    pub host: Namespace,
    /// The part in the gateway's network namespace.
    pub gateway: Namespace,
    /// The tunnels, by the public key of the peer.
    pub tunnels: BTreeMap<PublicKey, Tunnel>,
}

/// A tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Endpoint of the peer.
    pub endpoint: SocketAddr,
    /// Allowed addresses, as in `AllowedIPs` of WireGuard.
    pub allowed: BTreeSet<IpNet>,
}

/// A connection through the gateway, as tracked by conntrack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Source.
    pub from: IpAddr,
    /// Destination before translation.
    pub to: IpAddr,
    /// Source of the replies: the destination after translation.
    pub answers: IpAddr,
}

/// Whether a tracked connection must be deleted: it belongs to no current peer, or its destination
/// is translated differently by now. The source decides on the peer: the destination, an address as
/// used in the sending peer, may also be in the translated CIDR of another peer.
pub fn is_stale(inputs: &Inputs, connection: &Connection) -> bool {
    let packet = Packet { source: connection.from, destination: connection.to };
    let rewrites = || inputs.peers.values().map(|peer| (Rewrites::of(&peer.networks), peer));
    match rewrites().find(|(rewrites, _)| rewrites.is_of_peer(packet.source)) {
        Some((rewrites, peer)) => match rewrites.arrive(packet, &peer.mappings) {
            Some(Arrival::Passes(packet)) => packet.destination != connection.answers,
            Some(Arrival::ForGateway) => false,
            None => true,
        },
        None => rewrites().all(|(rewrites, _)| rewrites.leave(packet).is_none()),
    }
}

/// The plan of a gateway.
pub fn plan(inputs: &Inputs) -> Plan {
    Plan { host: host(inputs), gateway: gateway(inputs), tunnels: tunnels(inputs) }
}

/// The peers whose networks and addresses are IPv4, the only family of the data plane.
fn peers(inputs: &Inputs) -> impl Iterator<Item = V4Peer<'_>> {
    inputs.peers.iter().filter_map(|(id, peer)| V4Peer::new(id, peer))
}

struct V4Peer<'a> {
    id: &'a ClusterId,
    local_pods: Ipv4Net,
    local_gateway_ip_at_peer: Ipv4Addr,
    /// The peer's translated CIDRs in this cluster.
    cidrs: [Ipv4Net; 2],
    /// This cluster's translated CIDRs in the peer.
    own_cidrs: [Ipv4Net; 2],
    leaving: Vec<Rule>,
    arriving: Vec<Rule>,
    mappings: BTreeMap<Ipv4Addr, Ipv4Addr>,
}

impl<'a> V4Peer<'a> {
    fn new(id: &'a ClusterId, peer: &Peer) -> Option<Self> {
        let networks = &peer.networks;
        let Rewrites { peer: [pods, external], own: [own_pods, own_external], leaving, arriving } =
            Rewrites::of(networks);
        let mappings: BTreeMap<_, _> = peer
            .mappings
            .iter()
            .filter_map(|(mapped, own)| Some((address(mapped.0)?, address(*own)?)))
            .collect();
        let map = (!mappings.is_empty()).then(|| map_name(id));
        let arriving = arriving.into_iter().map(|it| destination(it, map.clone()));
        Some(Self {
            id,
            local_pods: v4(networks.local_pods.real())?,
            local_gateway_ip_at_peer: address(networks.local_gateway_ip_at_peer().0)?,
            cidrs: [v4(pods)?, v4(external)?],
            own_cidrs: [v4(own_pods)?, v4(own_external)?],
            leaving: leaving.into_iter().map(source).collect::<Option<_>>()?,
            arriving: arriving.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect(),
            mappings,
        })
    }
}

fn host(inputs: &Inputs) -> Namespace {
    Namespace {
        owned: Owned { links: [HOST.into()].into(), ..Owned::default() },
        links: vec![given(HOST, inputs.mtu)],
        addresses: [on_gateway_link(HOST, overlay::HOST_ADDRESS)].into(),
        sysctls: [(format!("net/ipv4/conf/{HOST}/rp_filter"), "2".into())].into(),
        ..Namespace::default()
    }
}

fn gateway(inputs: &Inputs) -> Namespace {
    let mtu = tunnel_mtu(inputs.mtu);
    Namespace {
        owned: Owned {
            links: [GATEWAY.into(), TUNNEL.into()].into(),
            tables: BTreeSet::new(),
            table: Some(NFT_TABLE.into()),
        },
        links: vec![given("lo", 65536), given(GATEWAY, inputs.mtu), given(TUNNEL, mtu)],
        addresses: [on_gateway_link(GATEWAY, overlay::GATEWAY_ADDRESS)].into(),
        routes: routes(inputs),
        sysctls: sysctls(),
        table: Some(table(inputs, mtu)),
        ..Namespace::default()
    }
}

fn given(name: &str, mtu: u32) -> Link {
    Link { name: name.into(), mtu, kind: LinkKind::Given }
}

fn on_gateway_link(link: &str, address: Ipv4Addr) -> Address {
    let address = Ipv4Net::new_assert(address, overlay::GATEWAY_LINK.prefix_len());
    Address { link: link.into(), address: address.into() }
}

fn routes(inputs: &Inputs) -> BTreeSet<Route> {
    let back = Route {
        table: MAIN_TABLE,
        to: IpNet::V4(Ipv4Net::default()),
        via: Some(overlay::HOST_ADDRESS.into()),
        link: GATEWAY.into(),
        source: None,
        mtu: None,
    };
    let to_peers = peers(inputs).flat_map(|peer| peer.cidrs).map(|cidr| Route {
        table: MAIN_TABLE,
        to: cidr.into(),
        via: None,
        link: TUNNEL.into(),
        source: Some(overlay::GATEWAY_ADDRESS.into()),
        mtu: None,
    });
    to_peers.chain([back]).collect()
}

fn sysctls() -> BTreeMap<String, String> {
    let conf = ["all", "default", GATEWAY, TUNNEL].into_iter().flat_map(|link| {
        ["rp_filter", "send_redirects"]
            .map(|key| (format!("net/ipv4/conf/{link}/{key}"), "0".into()))
    });
    conf.chain([("net/ipv4/ip_forward".into(), "1".into())]).collect()
}

fn tunnels(inputs: &Inputs) -> BTreeMap<PublicKey, Tunnel> {
    let tunnel = |peer: &Peer| {
        let allowed = Rewrites::of(&peer.networks).peer.map(Cidr::net).into();
        (peer.public_key, Tunnel { endpoint: peer.endpoint, allowed })
    };
    inputs.peers.values().map(tunnel).collect()
}

fn table(inputs: &Inputs, mtu: u32) -> Table {
    let mut chains = Vec::new();
    let mut prerouting = Chain::base("prerouting", Kind::Nat, Place::Prerouting, DSTNAT);
    let mut forward = Chain::base("forward", Kind::Filter, Place::Forward, 0);
    let mut postrouting = Chain::base("postrouting", Kind::Nat, Place::Postrouting, SRCNAT);
    // ICMP errors of the gateway itself belong to no connection, so NAT does not translate them.
    let mut errors = Chain::base("errors", Kind::Filter, Place::Postrouting, SRCNAT + 200);
    forward.rules = before_peers(mtu);
    for peer in peers(inputs) {
        let (from, to) = (format!("from-{}", peer.id), format!("to-{}", peer.id));
        for cidr in peer.cidrs {
            let inward = [Match::Input(TUNNEL.into()), Match::Source(cidr)];
            let outward = [Match::Output(TUNNEL.into()), Match::Destination(cidr)];
            let to_pods = [Match::Destination(peer.local_pods), Match::NotOutput(TUNNEL.into())];
            prerouting.rules.push(rule(inward.clone(), Action::Goto(from.clone())));
            forward.rules.push(rule(inward.into_iter().chain(to_pods), Action::Accept));
            postrouting.rules.push(rule(outward.clone(), Action::Goto(to.clone())));
            errors.rules.push(error_source(&peer, outward));
        }
        chains.push(Chain { rules: peer.arriving, ..Chain::regular(from) });
        chains.push(Chain { rules: peer.leaving, ..Chain::regular(to) });
    }
    forward.rules.extend(after_peers());
    chains.extend([prerouting, input(), forward, postrouting, errors]);
    let maps = peers(inputs).filter(|it| !it.mappings.is_empty());
    Table {
        name: NFT_TABLE.into(),
        maps: maps.map(|peer| (map_name(peer.id), peer.mappings)).collect(),
        chains,
    }
}

fn map_name(id: &ClusterId) -> String {
    format!("mappings-{id}")
}

/// The rule for the source of packets to a peer. `None` if it is not IPv4.
fn source(rewrite: Source) -> Option<Rule> {
    Some(match rewrite {
        Source::Pod(pods) => {
            let (real, translated) = (v4(pods.real())?, v4(pods.translated())?);
            let action = match pods.is_translated() {
                true => Action::SourceInto(translated),
                false => Action::KeepSource,
            };
            rule([Match::Source(real)], action)
        }
        Source::Other(gateway) => rule([], Action::SourceTo(address(gateway.0)?)),
    })
}

/// The rule, if one is needed, for the destination of packets from a peer. `None`: not IPv4.
/// Packets without a rule are accepted if they go to a pod, otherwise rejected.
fn destination(rewrite: Destination, map: Option<String>) -> Option<Option<Rule>> {
    Some(match rewrite {
        Destination::Mapped => map.map(|map| rule([], Action::DestinationByMap(map))),
        Destination::Gateway(gateway) => {
            let probe = [Match::Destination(address(gateway.0)?.into()), Match::UdpTo(PROBE_PORT)];
            Some(rule(probe, Action::DestinationTo(overlay::GATEWAY_ADDRESS)))
        }
        Destination::Pod(pods) => {
            let (real, translated) = (v4(pods.real())?, v4(pods.translated())?);
            let into = || rule([Match::Destination(translated)], Action::DestinationInto(real));
            pods.is_translated().then(into)
        }
    })
}

fn address(ip: IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(ip),
        IpAddr::V6(_) => None,
    }
}

fn before_peers(mtu: u32) -> Vec<Rule> {
    let segment = u16::try_from(mtu.saturating_sub(40)).unwrap_or(u16::MAX);
    // Packets to no peer would loop between the node and the gateway.
    let back = [Match::Input(GATEWAY.into()), Match::Output(GATEWAY.into())];
    vec![
        rule(back, Action::Reject),
        rule([Match::TcpSyn], Action::LimitSegments(segment)),
        rule([Match::Established], Action::Accept),
        rule([Match::NotInput(TUNNEL.into())], Action::Accept),
    ]
}

fn after_peers() -> [Rule; 2] {
    [rule([Match::DestinationTranslated], Action::Accept), rule([], Action::Reject)]
}

fn input() -> Chain {
    let mut chain = Chain::base("input", Kind::Filter, Place::Input, 0);
    chain.rules = vec![
        rule([Match::Established], Action::Accept),
        rule([Match::NotInput(TUNNEL.into())], Action::Accept),
        rule([Match::DestinationTranslated, Match::UdpTo(PROBE_PORT)], Action::Accept),
        rule([], Action::Reject),
    ];
    chain
}

fn error_source(peer: &V4Peer<'_>, outward: [Match; 2]) -> Rule {
    let untranslated = peer.own_cidrs.map(Match::NotSource);
    rule(
        outward.into_iter().chain([Match::Icmp]).chain(untranslated),
        Action::WriteSource(peer.local_gateway_ip_at_peer),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::{milan, networks};
    use crate::translate::{CidrTranslation, TranslatedIp};

    fn peer(networks: Networks, host: u8) -> Peer {
        Peer {
            networks,
            endpoint: SocketAddr::from(([172, 30, 1, host], 51840)),
            public_key: PublicKey([host; 32]),
            mappings: BTreeMap::new(),
        }
    }

    fn snapshot(plan: &Plan) -> String {
        let mut text = format!("HOST\n{}\nGATEWAY\n{}\nTUNNELS\n", plan.host, plan.gateway);
        for Tunnel { endpoint, allowed } in plan.tunnels.values() {
            text += &format!("{endpoint} {allowed:?}\n");
        }
        text
    }

    #[test]
    fn connections_by_a_mapping_end_with_it() {
        let (id, networks) = milan();
        let mut milan = peer(networks, 11);
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        milan.mappings = [(TranslatedIp(ip("10.71.0.9")), ip("203.0.113.7"))].into();
        let inputs = Inputs { mtu: 1500, peers: [(id, milan)].into() };
        let stale = |from, to, answers| {
            is_stale(&inputs, &Connection { from: ip(from), to: ip(to), answers: ip(answers) })
        };
        assert!(!stale("10.60.1.5", "10.71.0.9", "203.0.113.7"), "by a mapping");
        assert!(stale("10.60.1.5", "10.71.0.9", "203.0.113.8"), "by a mapping that changed");
        assert!(stale("10.60.1.5", "10.71.0.8", "203.0.113.7"), "by a mapping that is gone");
        assert!(!stale("10.60.1.5", "10.61.1.5", "10.244.1.5"), "to a pod");
        assert!(!stale("10.244.1.5", "10.60.1.5", "10.60.1.5"), "from a pod");
        assert!(!stale("10.81.0.1", "10.71.0.1", "241.0.0.2"), "a probe from there");
        assert!(!stale("241.0.0.2", "10.81.0.1", "10.81.0.1"), "a probe from here");
        assert!(stale("10.99.1.5", "10.61.1.5", "10.244.1.5"), "from a former peer");
        assert!(stale("10.244.1.5", "10.99.1.5", "10.99.1.5"), "to a former peer");
    }

    #[test]
    fn connections_end_with_a_mapping_whose_address_is_also_in_another_peers_cidr() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (id, of_milan) = milan();
        let of_turin = Networks {
            remote_pods: CidrTranslation::new(
                "10.2.0.0/16".parse().unwrap(),
                of_milan.local_external.translated(),
            )
            .unwrap(),
            ..networks(["10.1.0.0/16", "10.1.0.0/16"], ["10.2.0.0/16", "10.2.0.0/16"])
        };
        let turin = ("turin".parse().unwrap(), peer(of_turin, 12));
        let inputs = Inputs { mtu: 1500, peers: [(id, peer(of_milan, 11)), turin].into() };
        let (from, to, answers) = (ip("10.60.1.5"), ip("10.71.0.9"), ip("203.0.113.7"));
        assert!(is_stale(&inputs, &Connection { from, to, answers }));
        let to_turin = Connection { from: ip("10.244.1.5"), to, answers: to };
        assert!(!is_stale(&inputs, &to_turin));
    }

    #[test]
    fn no_peer() {
        let inputs = Inputs { mtu: 1500, peers: BTreeMap::new() };
        insta::assert_snapshot!(snapshot(&plan(&inputs)));
    }

    #[test]
    fn a_peer_with_the_same_networks_and_a_mapping() {
        let (id, networks) = milan();
        let mut milan = peer(networks, 11);
        let mapped = TranslatedIp("10.71.0.9".parse().unwrap());
        milan.mappings = [(mapped, "203.0.113.7".parse().unwrap())].into();
        let inputs = Inputs { mtu: 1500, peers: [(id, milan)].into() };
        insta::assert_snapshot!(snapshot(&plan(&inputs)));
    }

    #[test]
    fn a_peer_with_networks_of_its_own() {
        let networks = networks(["10.1.0.0/16", "10.1.0.0/16"], ["10.2.0.0/16", "10.2.0.0/16"]);
        let inputs =
            Inputs { mtu: 9000, peers: [("turin".parse().unwrap(), peer(networks, 12))].into() };
        insta::assert_snapshot!(snapshot(&plan(&inputs)));
    }
}
