//! TCP throughput and round-trip time from pod to pod: through the tunnel and, as a baseline,
//! between nodes of one cluster.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use serde_json::Value;
use tombolo_testbed::Cluster;

use crate::common::list;
use crate::common::load::{Client, clients};
use crate::figures::{median, print, table};

const RUNS: usize = 5;
const SECONDS: usize = 5;
const PINGS: usize = 200;

/// The pods of a cluster: one on the node of the gateway, one on another.
struct Pods {
    beside: Client,
    apart: Client,
}

pub async fn measure(rome: &Cluster, milan: &Cluster) -> Result<()> {
    let names = translated_cidr_of_milan(rome).await?;
    let (here, there) = (pods(rome).await?, pods(milan).await?);
    let named = |pod: &Client| translated(pod.address, names);
    let ways = [
        ("between nodes of rome", &here.apart, &here.beside, here.beside.address),
        (
            "rome → milan, both beside their gateways",
            &here.beside,
            &there.beside,
            named(&there.beside),
        ),
        ("rome → milan, both on other nodes", &here.apart, &there.apart, named(&there.apart)),
    ];
    let mut rows = table(1, &["POD TO POD", "TCP", "OF THE FIRST", "ROUND TRIP", "OF THE FIRST"]);
    let mut yardstick = None;
    for (name, from, to, address) in ways {
        let speed = throughput(from, to, address).await?;
        let delay = round_trip(from, address).await?;
        let first = *yardstick.get_or_insert((speed, delay));
        rows.add_row([
            name.to_owned(),
            format!("{speed:.2} Gbit/s"),
            format!("{:.2} ×", speed / first.0),
            format!("{delay:.3} ms"),
            format!("{:.1} ×", delay / first.1),
        ]);
    }
    print(&format!("Traffic, {RUNS} times {SECONDS} s and {PINGS} pings, medians"), &rows);
    for cluster in [rome, milan] {
        cluster.kubectl(&["delete", "namespace", "clients"]).await?;
    }
    Ok(())
}

/// Translated PodCIDR of milan in rome.
async fn translated_cidr_of_milan(rome: &Cluster) -> Result<Ipv4Net> {
    let tunnels = list(rome, &["tunnelendpoints", "-A"]).await;
    let names = tunnels.first().and_then(|it| it["status"]["remoteNATPodCIDR"].as_str());
    Ok(names.context("there is no tunnel")?.parse()?)
}

/// The translated address, with the same host part.
fn translated(address: Ipv4Addr, network: Ipv4Net) -> Ipv4Addr {
    let host = u32::from(address) & u32::from(network.hostmask());
    Ipv4Addr::from(u32::from(network.network()) | host)
}

async fn pods(cluster: &Cluster) -> Result<Pods> {
    let gateway = ["pods", "-n", "liqo", "-l", "app.kubernetes.io/name=liqo-gateway"];
    let gateway = list(cluster, &gateway).await;
    let gateway = gateway.first().and_then(|pod| pod["spec"]["nodeName"].as_str());
    let gateway = gateway.context("the gateway runs nowhere")?;
    let all = clients(cluster).await.into_iter().filter(|client| !client.on_host);
    let (beside, apart): (Vec<_>, Vec<_>) = all.partition(|client| client.node == gateway);
    let one = |clients: Vec<Client>| clients.into_iter().next().context("a node has no client");
    Ok(Pods { beside: one(beside)?, apart: one(apart)? })
}

/// Received gigabits per second.
async fn throughput(from: &Client, to: &Client, address: Ipv4Addr) -> Result<f64> {
    let mut all = Vec::new();
    for _ in 0..RUNS {
        // It serves one client and exits.
        to.run("iperf3 --server --one-off --daemon").await?;
        let script = format!(
            "for i in $(seq 50); do
               iperf3 --client {address} --time {SECONDS} --omit 1 --json && exit; sleep 0.1
             done; exit 1"
        );
        let said: Value = serde_json::from_str(&from.run(&script).await?)?;
        let bits = said["end"]["sum_received"]["bits_per_second"].as_f64();
        all.push(bits.context("iperf3 says nothing")? / 1e9);
    }
    eprintln!("{} → {address}: {all:.2?} Gbit/s", from.node);
    Ok(median(all))
}

/// Round-trip time in milliseconds.
async fn round_trip(from: &Client, address: Ipv4Addr) -> Result<f64> {
    let said = from.run(&format!("ping -c {PINGS} -i 0.02 {address}")).await?;
    let times = said.lines().filter_map(|line| {
        let (_, time) = line.split_once("time=")?;
        time.split(' ').next()?.parse().ok()
    });
    Ok(median(times.collect()))
}
