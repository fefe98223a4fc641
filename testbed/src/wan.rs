//! The network between the nodes: a bridge in its own namespace, with a link to the machine.
//!
//! It filters as strictly as a real network: between clusters only packets from node to node and
//! mDNS pass, inside a cluster only packets from nodes and pods.

use std::fmt::Write;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use crate::command::Cmd;
use crate::error::Result;
use crate::layout::{Layout, mac};

/// The bridge port to the machine.
pub(crate) const MACHINE: &str = "host";

/// The addresses and ports of a cluster, for the filter rules.
#[derive(Debug)]
pub(crate) struct Side {
    pub pod_cidr: Ipv4Net,
    /// Bridge port and address of each node.
    pub nodes: Vec<(String, Ipv4Addr)>,
}

pub(crate) fn up(layout: Layout, sides: &[Side]) -> Result<()> {
    let (wan, host) = (layout.wan(), layout.host_link());
    let length = layout.network().prefix_len();
    Cmd::words(&format!("ip netns add {wan}")).run()?;
    Cmd::words(&format!("ip link add {host} type veth peer name {MACHINE} netns {wan}")).run()?;
    Cmd::words(&format!("ip -n {wan} -batch -"))
        .stdin(format!(
            "link set lo up
             link add br0 type bridge
             addr add {}/{length} dev br0
             link set br0 up
             link set {MACHINE} master br0 up",
            layout.gateway()
        ))
        .run()?;
    Cmd::words("ip -batch -")
        .stdin(format!(
            "addr add {}/{length} dev {host}
             link set {host} up",
            layout.host()
        ))
        .run()?;
    Cmd::words(&format!("ip netns exec {wan} nft -f -")).stdin(strict_rules(sides)).run()?;
    Ok(())
}

/// Connects a node: `eth0` in its namespace, a bridge port at the other end.
pub(crate) fn connect(layout: Layout, netns: &str, port: &str, address: Ipv4Addr) -> Result<()> {
    let wan = layout.wan();
    let length = layout.network().prefix_len();
    Cmd::words(&format!("ip netns add {netns}")).run()?;
    Cmd::words(&format!(
        "ip -n {wan} link add {port} type veth peer name eth0 address {} netns {netns}",
        mac(address)
    ))
    .run()?;
    Cmd::words(&format!("ip -n {wan} link set {port} master br0 up")).run()?;
    Cmd::words(&format!("ip -n {netns} -batch -"))
        .stdin(format!(
            "link set lo up
             addr add {address}/{length} dev eth0
             link set eth0 up
             route add default via {}",
            layout.gateway()
        ))
        .run()?;
    Cmd::words(&format!("ip netns exec {netns} sysctl -qw"))
        .args([
            "net.ipv4.ip_forward=1",
            "net.ipv4.conf.all.rp_filter=1",
            "net.ipv4.conf.default.rp_filter=1",
            "net.ipv4.conf.eth0.rp_filter=1",
        ])
        .run()?;
    Cmd::words(&format!("ip netns exec {netns} sysctl -eqw"))
        .arg("net.bridge.bridge-nf-call-iptables=1")
        .run()?;
    Ok(())
}

fn strict_rules(sides: &[Side]) -> String {
    let mut chains = String::new();
    let mut jumps = String::new();
    let mut everybody = Vec::new();
    for (number, side) in sides.iter().enumerate() {
        let ports: Vec<String> = side.nodes.iter().map(|(port, _)| format!("\"{port}\"")).collect();
        let ports = ports.join(", ");
        let addresses: Vec<String> = side.nodes.iter().map(|(_, ip)| ip.to_string()).collect();
        let pods = side.pod_cidr;
        let _ =
            writeln!(jumps, "    iifname {{ {ports} }} oifname {{ {ports} }} goto inside{number}");
        let _ = writeln!(
            chains,
            "  chain inside{number} {{\n    ip saddr {{ {}, {pods} }} accept\n    counter drop\n  }}",
            addresses.join(", ")
        );
        everybody.extend(addresses);
    }
    let everybody = everybody.join(", ");
    format!(
        "table bridge strict {{
{chains}  chain forward {{
    type filter hook forward priority 0; policy drop;
    ether type arp accept
    iifname \"{MACHINE}\" accept
    oifname \"{MACHINE}\" accept
{jumps}    ip saddr {{ {everybody} }} ip daddr {{ {everybody} }} accept
    ip saddr {{ {everybody} }} ip daddr 224.0.0.251 udp dport 5353 accept
    counter drop
  }}
}}
"
    )
}
