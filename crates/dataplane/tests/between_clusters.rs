//! Two clusters of two nodes each, without Kubernetes: what goes through the tunnel between them,
//! and what the other side sees of it. Needs root.

mod common;

use std::{collections::BTreeMap, net::Ipv4Addr, time::Duration};

use common::{
    Names, OVERLAPPING, picture, ruleset,
    traffic::{self, Open},
    two_clusters,
};
use tokio::{task::spawn_blocking, time::timeout};
use tombolo_api::net::ConnectionStatus::{Connected, Connecting};
use tombolo_core::{plan::gateway::Inputs, translate::TranslatedIp};
use tombolo_dataplane::driver::netns::Netns;
use tombolo_testbed::eventually;

const SOON: Duration = Duration::from_secs(10);
const PORT: u16 = 8080;

#[tokio::test(flavor = "multi_thread")]
async fn pods_with_the_same_addresses_talk() {
    let (_world, a, b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    for (from, to) in [(1, 1), (0, 1), (1, 0), (0, 0)] {
        let (from, to) = (&a.nodes[from], &b.nodes[to]);
        traffic::serve(&to.pod, PORT + u16::from(from.address.octets()[3]));
        let port = PORT + u16::from(from.address.octets()[3]);
        let there = Ipv4Addr::new(10, 62, to.pod_address.octets()[2], 5);
        let me = Ipv4Addr::new(10, 61, from.pod_address.octets()[2], 5);
        assert_eq!(traffic::tcp(&from.pod, there, port, 1).unwrap(), me, "{}", from.name);
        assert_eq!(traffic::udp(&from.pod, there, port).unwrap(), me, "{}", from.name);
        traffic::ping(&from.pod, there, 100).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_known_as_its_cluster() {
    let (_world, a, b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    traffic::serve(&b.nodes[1].pod, PORT);
    let itself = Ipv4Addr::new(10, 71, 0, 1);
    for node in &a.nodes {
        let there = Ipv4Addr::new(10, 62, 2, 5);
        assert_eq!(traffic::tcp(&node.host, there, PORT, 1).unwrap(), itself, "{}", node.name);
        assert_eq!(traffic::udp(&node.host, there, PORT).unwrap(), itself, "{}", node.name);
        traffic::ping(&node.host, there, 100).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_of_clusters_with_networks_of_their_own_keep_their_addresses() {
    let names = Names {
        a_pods: "10.244.0.0/16",
        b_pods: "10.245.0.0/16",
        a_at_b: ["10.244.0.0/16", "10.71.0.0/16"],
        b_at_a: ["10.245.0.0/16", "10.72.0.0/16"],
    };
    let (_world, a, b) = two_clusters(&names).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    traffic::serve(&b.nodes[1].pod, PORT);
    let (from, to) = (&a.nodes[1], &b.nodes[1]);
    assert_eq!(traffic::tcp(&from.pod, to.pod_address, PORT, 1).unwrap(), from.pod_address);
    assert_eq!(traffic::udp(&from.pod, to.pod_address, PORT).unwrap(), from.pod_address);
    traffic::ping(&from.pod, to.pod_address, 100).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn both_may_call_the_other_the_same() {
    let same = ["10.61.0.0/16", "10.71.0.0/16"];
    let names = Names { a_at_b: same, b_at_a: same, ..OVERLAPPING };
    let (_world, a, b) = two_clusters(&names).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    traffic::serve(&b.nodes[1].pod, PORT);
    let name = Ipv4Addr::new(10, 61, 2, 5);
    assert_eq!(traffic::tcp(&a.nodes[1].pod, name, PORT, 1).unwrap(), name);
    assert_eq!(traffic::udp(&a.nodes[1].pod, name, PORT).unwrap(), name);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_packets_pass_or_are_reported() {
    let (_world, a, b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    traffic::serve(&b.nodes[1].pod, PORT);
    let there = Ipv4Addr::new(10, 62, 2, 5);
    for node in &a.nodes {
        traffic::tcp(&node.pod, there, PORT, 1 << 20).unwrap();
        traffic::ping(&node.pod, there, 1420).unwrap();
        let told = traffic::ping(&node.pod, there, 1421).unwrap_err();
        assert!(told.contains("mtu=1420") || told.contains("mtu = 1420"), "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_address_leads_to_what_it_is_mapped_to() {
    let (_world, a, mut b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    let mapped = Ipv4Addr::new(10, 72, 0, 9);
    let pod = &a.nodes[1].pod;
    let refused = traffic::tcp(pod, mapped, PORT, 1).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EHOSTUNREACH), "{refused}");

    let node = &b.nodes[1];
    traffic::serve(&node.host, PORT);
    let mappings = [(TranslatedIp(mapped.into()), node.address.into())].into();
    b.peers.values_mut().next().unwrap().mappings = mappings;
    b.apply().await;
    let me = Ipv4Addr::new(10, 61, 2, 5);
    assert_eq!(traffic::tcp(pod, mapped, PORT, 1).unwrap(), me);
    assert_eq!(traffic::udp(pod, mapped, PORT).unwrap(), me);

    let mut open = Open::connect(pod, mapped, PORT);
    open.say_something().unwrap();
    b.peers.values_mut().next().unwrap().mappings.clear();
    b.apply().await;
    open.say_something().unwrap_err();
    traffic::tcp(pod, mapped, PORT, 1).unwrap_err();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gateway_nothing_leaves_the_cluster() {
    let (_world, mut a, _b) = two_clusters(&OVERLAPPING).await;
    let there = Ipv4Addr::new(10, 62, 2, 5);
    a.gateway_node = None;
    a.apply().await;
    for node in &a.nodes {
        let refused = traffic::tcp(&node.pod, there, PORT, 1).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENETUNREACH), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_probe_notices_when_a_tunnel_is_cut_and_mended() {
    let (world, a, b) = two_clusters(&OVERLAPPING).await;
    for cluster in [&a, &b] {
        timeout(SOON, cluster.wait_for(Connected)).await.expect("the tunnel works");
    }
    world.cut(true);
    for cluster in [&a, &b] {
        let noticed = timeout(Duration::from_secs(3), cluster.wait_for(Connecting));
        noticed.await.expect("the cut is noticed");
    }
    world.cut(false);
    for cluster in [&a, &b] {
        timeout(SOON, cluster.wait_for(Connected)).await.expect("the tunnel works again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_killed_is_back_soon() {
    let (_world, mut a, b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    traffic::serve(&b.nodes[1].pod, PORT);
    drop(a.gateway.take());
    timeout(SOON, b.wait_for(Connecting)).await.expect("the loss is noticed");
    a.start().await;
    a.apply().await;
    for cluster in [&a, &b] {
        timeout(SOON, cluster.wait_for(Connected)).await.expect("the tunnel works again");
    }
    traffic::tcp(&a.nodes[1].pod, Ipv4Addr::new(10, 62, 2, 5), PORT, 1).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_opened_while_there_is_no_gateway_works_once_it_is_back() {
    let (_world, mut a, b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    traffic::serve(&b.nodes[1].pod, PORT);
    a.kill_gateway().await;
    let pods = a.nodes.iter().map(|node| node.pod.clone());
    let there = Ipv4Addr::new(10, 62, 2, 5);
    let opening: Vec<_> =
        pods.map(|pod| spawn_blocking(move || traffic::tcp(&pod, there, PORT, 1))).collect();
    for node in &a.nodes {
        let ask = async || traffic::opening(&node.pod);
        eventually("a connection is being opened", ask, |opening| *opening == 1).await;
    }
    a.start().await;
    a.apply().await;
    for opening in opening {
        opening.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_packet_goes_in_circles() {
    let (_world, mut a, _b) = two_clusters(&OVERLAPPING).await;
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
    let there = Ipv4Addr::new(10, 62, 2, 5);
    let pod = a.nodes[1].pod.clone();
    let passed = |a: &common::Cluster| traffic::packets_to(&a.nodes[0].host, "liqo.host");

    let before = passed(&a);
    let gateway = a.gateway.as_mut().unwrap();
    gateway.apply(&Inputs { mtu: 1500, peers: BTreeMap::new() }).await.unwrap();
    let refused = traffic::ping(&pod, there, 100).unwrap_err();
    assert!(refused.contains("Prohibited"), "{refused}");
    assert!(passed(&a) < before + 20, "one packet passed {} times", passed(&a) - before);

    a.apply().await;
    let before = passed(&a);
    drop(a.gateway.take());
    traffic::ping(&pod, there, 100).unwrap_err();
    assert!(passed(&a) < before + 20, "one packet passed {} times", passed(&a) - before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_right_is_left_alone_and_what_is_taken_away_comes_back() {
    let (_world, mut a, _b) = two_clusters(&OVERLAPPING).await;
    assert_eq!(a.apply().await, 0);
    for (node, command) in [
        (0, "ip link delete liqo.vxlan"),
        (1, "ip link delete liqo.vxlan"),
        (1, "ip rule delete to 10.62.0.0/16"),
        (1, "ip route flush table 18952"),
        (1, "ip neighbour flush dev liqo.vxlan nud permanent"),
        (1, "nft delete table ip liqo"),
        (1, "nft flush chain ip liqo postrouting"),
        (0, "ip link delete liqo.host"),
        (0, "ip address flush dev liqo.host"),
    ] {
        common::run_in(&a.nodes[node].host, command);
        assert_ne!(a.apply().await, 0, "{command}");
        assert_eq!(a.apply().await, 0, "{command}");
    }
    timeout(SOON, a.wait_for(Connected)).await.expect("the tunnel works");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_of_a_gateway_change_in_one_step() {
    const LOOKS: usize = 50;
    let (_world, mut a, _b) = two_clusters(&OVERLAPPING).await;
    let inside = Netns::open(&a.path).unwrap().unwrap();
    let gateway = a.gateway.as_mut().unwrap();
    let without = Inputs { mtu: 1500, peers: BTreeMap::new() };
    let with = Inputs { mtu: 1500, peers: a.peers.clone() };
    let mut whole = Vec::new();
    for inputs in [&without, &with] {
        gateway.apply(inputs).await.unwrap();
        whole.push(ruleset::table(&inside).unwrap());
    }
    assert_ne!(whole[0], whole[1]);

    let looking = spawn_blocking({
        let inside = inside.clone();
        move || {
            for _ in 0..LOOKS {
                let seen = ruleset::table(&inside);
                assert!(seen.as_ref().is_ok_and(|seen| whole.contains(seen)), "{seen:?}");
            }
        }
    });
    while !looking.is_finished() {
        for inputs in [&without, &with] {
            let before = ruleset::generation(&inside);
            gateway.apply(inputs).await.unwrap();
            assert_eq!(ruleset::generation(&inside), before + 1, "it is one transaction");
        }
    }
    looking.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_was_killed_leaves_nothing_once_another_node_has_it() {
    let (_world, mut a, _b) = two_clusters(&OVERLAPPING).await;
    let has_link = |a: &common::Cluster| picture(&a.nodes[0].name).contains("liqo.host");
    a.gateway_node = Some(a.nodes[1].address);
    a.apply_to_nodes().await;
    assert!(has_link(&a) && a.path.exists(), "its process is there, and may have just begun");

    a.kill_gateway().await;
    a.gateway_node = None;
    a.apply_to_nodes().await;
    assert!(has_link(&a) && a.path.exists(), "it may come back");

    a.gateway_node = Some(a.nodes[1].address);
    a.apply_to_nodes().await;
    assert!(!has_link(&a) && !a.path.exists());
    assert_eq!(a.apply_to_nodes().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_behind() {
    let mut world = common::World::new();
    let mut a = world.cluster('a', 1, OVERLAPPING.a_pods.parse().unwrap());
    let mut b = world.cluster('b', 2, OVERLAPPING.b_pods.parse().unwrap());
    let before: Vec<_> = a.nodes.iter().map(|node| picture(&node.name)).collect();
    common::peer(&mut a, &mut b, &OVERLAPPING);
    a.start().await;
    a.apply().await;
    let during: Vec<_> = a.nodes.iter().map(|node| picture(&node.name)).collect();
    assert_ne!(before, during);
    a.remove().await;
    let after: Vec<_> = a.nodes.iter().map(|node| picture(&node.name)).collect();
    assert_eq!(before, after);
    assert!(!a.path.exists());
}
