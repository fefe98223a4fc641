//! Clusters made of network namespaces: two nodes each, pods behind a bridge, a strict network
//! between the nodes, and none of Kubernetes.

#![allow(dead_code)] // Every test program uses a part of it.

pub mod ruleset;
pub mod traffic;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use ipnet::Ipv4Net;
use tombolo_core::{
    plan::{agent, gateway},
    translate::{CidrTranslation, Networks},
};
use tombolo_dataplane::{
    agent::machine::Machine as Agent,
    driver::{netns::Netns, tunnel::PrivateKey},
    gateway::machine::{self, Machine as Gateway, Place},
};
use tombolo_testbed::eventually;

/// The network that all nodes are in, and what is attached to it; all gone when dropped.
pub struct World {
    prefix: String,
    namespaces: Vec<String>,
}

/// A node with one pod.
pub struct Node {
    pub name: String,
    pub address: Ipv4Addr,
    pub pods: Ipv4Net,
    pub host: Netns,
    pub pod: Netns,
    pub pod_address: Ipv4Addr,
    pub agent: Agent,
}

/// A cluster; its gateway is on the first node.
pub struct Cluster {
    pub nodes: Vec<Node>,
    pub gateway: Option<Gateway>,
    /// Where the nodes take the gateway to be.
    pub gateway_node: Option<Ipv4Addr>,
    pub path: PathBuf,
    pub key: PrivateKey,
    pub peers: BTreeMap<tombolo_api::ClusterId, gateway::Peer>,
}

pub const PORT: u16 = 51840;
const MTU: u32 = 1500;

impl World {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("dp{}-{count}", std::process::id());
        let mut world = Self { prefix, namespaces: Vec::new() };
        let wan = world.namespace("wan");
        run(&format!("ip -n {wan} link add br0 type bridge"));
        run(&format!("ip -n {wan} link set br0 up"));
        world.nft(&wan, WAN_RULES);
        world
    }

    /// Cuts the tunnels between the gateways, or mends them.
    pub fn cut(&self, cut: bool) {
        let wan = format!("{}-wan", self.prefix);
        if cut {
            let rule = format!("insert rule bridge wan forward udp dport {PORT} drop");
            self.nft(&wan, &rule);
        } else {
            self.nft(&wan, "flush chain bridge wan forward");
        }
    }

    pub fn cluster(&mut self, letter: char, number: u8, pods: Ipv4Net) -> Cluster {
        let nodes = (1..=2).map(|host| self.node(letter, number, host, pods)).collect::<Vec<_>>();
        for node in &nodes {
            for other in nodes.iter().filter(|other| other.name != node.name) {
                let Node { pods, address, .. } = other;
                run(&format!("ip -n {} route add {pods} via {address}", node.name));
            }
        }
        Cluster {
            gateway_node: Some(nodes[0].address),
            nodes,
            gateway: None,
            path: self.gateway_path(&format!("{letter}1")),
            key: PrivateKey::generate().unwrap(),
            peers: BTreeMap::new(),
        }
    }

    fn node(&mut self, letter: char, number: u8, host: u8, cluster_pods: Ipv4Net) -> Node {
        let name = self.namespace(&format!("{letter}{host}"));
        let pod_name = self.namespace(&format!("{letter}{host}-pod"));
        let wan = format!("{}-wan", self.prefix);
        let address = Ipv4Addr::new(172, 31, number, host);
        let [a, b, ..] = cluster_pods.network().octets();
        let pods = Ipv4Net::new(Ipv4Addr::new(a, b, host, 0), 24).unwrap();
        let bridge = Ipv4Addr::new(a, b, host, 1);
        let pod_address = Ipv4Addr::new(a, b, host, 5);
        for command in [
            format!(
                "ip -n {name} link add eth0 mtu {MTU} type veth peer name {letter}{host} netns {wan}"
            ),
            format!("ip -n {wan} link set {letter}{host} master br0 up"),
            format!("ip -n {name} link set eth0 up"),
            format!("ip -n {name} address add {address}/16 dev eth0"),
            format!("ip -n {name} route add default via 172.31.255.254"),
            format!("ip -n {name} link add cni0 type bridge"),
            format!("ip -n {name} address add {bridge}/24 dev cni0"),
            format!("ip -n {name} link set cni0 up"),
            format!(
                "ip -n {name} link add pod mtu {MTU} type veth peer name eth0 netns {pod_name}"
            ),
            format!("ip -n {name} link set pod master cni0 up"),
            format!("ip -n {pod_name} link set eth0 up"),
            format!("ip -n {pod_name} address add {pod_address}/24 dev eth0"),
            format!("ip -n {pod_name} route add default via {bridge}"),
        ] {
            run(&command);
        }
        let host = open(&name);
        host.run(|| {
            for (key, value) in
                [("ip_forward", "1"), ("conf/all/rp_filter", "1"), ("conf/default/rp_filter", "1")]
            {
                std::fs::write(format!("/proc/sys/net/ipv4/{key}"), value).unwrap();
            }
        })
        .unwrap();
        self.nft(
            &name,
            &format!(
                "table ip cni {{ chain postrouting {{ type nat hook postrouting priority srcnat + 10; \
                 ip saddr {pods} ip daddr != {cluster_pods} masquerade; }}; }}"
            ),
        );
        let path = self.gateway_path(&format!("{letter}{}", address.octets()[3]));
        let agent = Agent::open(Place { host: host.clone(), path }).unwrap();
        Node { pod: open(&pod_name), name, address, pods, host, pod_address, agent }
    }

    fn gateway_path(&self, node: &str) -> PathBuf {
        Path::new("/run/netns").join(format!("{}-{node}-gw", self.prefix))
    }

    fn namespace(&mut self, name: &str) -> String {
        let name = format!("{}-{name}", self.prefix);
        run(&format!("ip netns add {name}"));
        run(&format!("ip -n {name} link set lo up"));
        self.namespaces.push(name.clone());
        name
    }

    fn nft(&self, namespace: &str, rules: &str) {
        let args = ["netns", "exec", namespace, "nft", rules];
        let status = Command::new("ip").args(args).status().unwrap();
        assert!(status.success(), "nft in {namespace}: {rules}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for node in ["a1", "b1"] {
            let _ = Netns::remove(&self.gateway_path(node));
        }
        for name in &self.namespaces {
            let _ = Command::new("ip").args(["netns", "delete", name]).status();
        }
    }
}

impl Cluster {
    /// Starts the gateway.
    pub async fn start(&mut self) {
        self.gateway = Some(Gateway::start(&self.place(), &self.key, PORT).await.unwrap());
    }

    /// Ends the gateway without a word, and waits until it has ended. What it made stays.
    pub async fn kill_gateway(&mut self) {
        drop(self.gateway.take());
        let is_left = async || machine::is_left(&self.place()).await.unwrap();
        eventually("the gateway has ended", is_left, |is_left| *is_left).await;
    }

    /// Where the gateway is.
    pub fn place(&self) -> Place {
        Place { host: self.nodes[0].host.clone(), path: self.path.clone() }
    }

    /// Makes everything what it should be; says how much had to be changed.
    pub async fn apply(&mut self) -> usize {
        let inputs = gateway::Inputs { mtu: MTU, peers: self.peers.clone() };
        let changed = self.gateway.as_mut().unwrap().apply(&inputs).await.unwrap();
        changed + self.apply_to_nodes().await
    }

    /// The same, without the gateway.
    pub async fn apply_to_nodes(&self) -> usize {
        let mut changed = 0;
        let nodes: Vec<_> = self
            .nodes
            .iter()
            .map(|node| agent::Node { address: node.address, pods: vec![node.pods] })
            .collect();
        for node in &self.nodes {
            let inputs = agent::Inputs {
                node: node.address,
                mtu: MTU,
                nodes: nodes.clone(),
                gateway: self.gateway_node,
                peers: self.peers.iter().map(|(id, peer)| (id.clone(), peer.networks)).collect(),
            };
            changed += node.agent.apply(&inputs).await.unwrap().changed;
        }
        changed
    }

    /// Takes everything away.
    pub async fn remove(&mut self) {
        drop(self.gateway.take());
        machine::remove(&self.place()).await.unwrap();
        for node in &self.nodes {
            node.agent.remove().await.unwrap();
        }
    }

    /// Waits until the probe says so.
    pub async fn wait_for(&self, status: tombolo_api::net::ConnectionStatus) {
        let mut connections = self.gateway.as_ref().unwrap().connections();
        let is_so = |all: &BTreeMap<_, _>| !all.is_empty() && all.values().all(|it| *it == status);
        connections.wait_for(is_so).await.unwrap();
    }

    fn as_peer(&self, networks: Networks) -> gateway::Peer {
        gateway::Peer {
            networks,
            endpoint: SocketAddr::new(IpAddr::V4(self.nodes[0].address), PORT),
            public_key: self.key.public(),
            mappings: BTreeMap::new(),
        }
    }
}

/// Names by which two clusters call each other's networks.
pub struct Names {
    pub a_pods: &'static str,
    pub b_pods: &'static str,
    /// What b calls a's pods and external network.
    pub a_at_b: [&'static str; 2],
    /// What a calls b's pods and external network.
    pub b_at_a: [&'static str; 2],
}

/// Introduces two clusters to each other.
pub fn peer(a: &mut Cluster, b: &mut Cluster, names: &Names) {
    let named = |real: &str, name: &str| {
        CidrTranslation::new(real.parse().unwrap(), name.parse().unwrap()).unwrap()
    };
    let external = "10.200.0.0/16";
    let of = |pods: &str, [name, external_name]: [&str; 2]| {
        (named(pods, name), named(external, external_name))
    };
    let (a_pods, a_external) = of(names.a_pods, names.a_at_b);
    let (b_pods, b_external) = of(names.b_pods, names.b_at_a);
    let at_a = Networks {
        local_pods: a_pods,
        local_external: a_external,
        remote_pods: b_pods,
        remote_external: b_external,
    };
    let at_b = Networks {
        local_pods: b_pods,
        local_external: b_external,
        remote_pods: a_pods,
        remote_external: a_external,
    };
    a.peers.insert("b".parse().unwrap(), b.as_peer(at_a));
    b.peers.insert("a".parse().unwrap(), a.as_peer(at_b));
}

/// Two clusters with the same networks.
pub const OVERLAPPING: Names = Names {
    a_pods: "10.244.0.0/16",
    b_pods: "10.244.0.0/16",
    a_at_b: ["10.61.0.0/16", "10.71.0.0/16"],
    b_at_a: ["10.62.0.0/16", "10.72.0.0/16"],
};

/// Two clusters, peered and running.
pub async fn two_clusters(names: &Names) -> (World, Cluster, Cluster) {
    let mut world = World::new();
    let mut a = world.cluster('a', 1, names.a_pods.parse().unwrap());
    let mut b = world.cluster('b', 2, names.b_pods.parse().unwrap());
    peer(&mut a, &mut b, names);
    for cluster in [&mut a, &mut b] {
        cluster.start().await;
        cluster.apply().await;
    }
    (world, a, b)
}

/// What `ip` and `nft` show of a network namespace.
pub fn picture(namespace: &str) -> String {
    [
        "ip -o link",
        "ip -4 -o address",
        "ip -4 route show table all",
        "ip rule",
        "ip neighbour show nud permanent",
        "nft list ruleset",
    ]
    .map(|command| {
        let args = ["netns", "exec", namespace].into_iter().chain(command.split(' '));
        let output = Command::new("ip").args(args).output().unwrap();
        String::from_utf8(output.stdout).unwrap().replace("state UNKNOWN", "state UP")
    })
    .concat()
}

/// Runs a command in a network namespace.
pub fn run_in(netns: &Netns, command: &str) {
    netns.run(|| run(command)).unwrap();
}

fn open(name: &str) -> Netns {
    Netns::open(&Path::new("/run/netns").join(name)).unwrap().unwrap()
}

fn run(command: &str) {
    let mut words = command.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success(), "{command}");
}

/// Between clusters only packets from node to node pass, inside one also those of pods.
const WAN_RULES: &str = "table bridge wan { chain forward { \
    type filter hook forward priority 0; policy accept; }; \
    chain strict { type filter hook forward priority 10; policy drop; \
    ether type arp accept; \
    ip saddr 172.31.0.0/16 ip daddr 172.31.0.0/16 accept; \
    ip saddr 10.244.0.0/15 ip daddr 10.244.0.0/15 accept; }; }";
