//! Packets from one cluster to another and back, with the rewrites of both.

use std::net::IpAddr;

use proptest::prelude::*;
use tombolo_api::Cidr;

use super::strategies::{
    Peering, TranslatedBy, host_bits, in_network, peering, peering_of, peering_with,
};
use super::{
    Arrival, CidrTranslation, Location, Mappings, Networks, Packet, RealIp, Rewrites, TranslatedIp,
};

/// A packet in the tunnel, and after its arrival.
struct Walk {
    wire: Packet,
    arrived: Packet,
}

fn walk(from: &Networks, to: &Networks, packet: Packet) -> Walk {
    let wire = Rewrites::of(from).leave(packet).expect("it is for the peer");
    match Rewrites::of(to).arrive(wire, &Mappings::new()) {
        Some(Arrival::Passes(arrived)) => Walk { wire, arrived },
        other => panic!("{wire:?} does not arrive: {other:?}"),
    }
}

/// A pod of `here` connects to the translated address of a pod of `there`, and gets an answer.
/// Checks what holds in every peering, and returns the first packet in the tunnel.
fn call_and_answer(peering: &Peering, [caller, called]: [u128; 2]) -> Packet {
    let Peering { here, there } = peering;
    let caller = in_network(here.local_pods.real(), caller);
    let called = in_network(there.local_pods.real(), called);
    let translated = here.local_address(called, |_| None).unwrap();
    let caller_at_peer = there.local_address(caller, |_| None).unwrap();

    let call = walk(here, there, Packet { source: caller, destination: translated });
    assert_eq!(call.wire.destination, translated, "translated as in the sending cluster");
    assert_eq!(call.wire.source, caller_at_peer, "translated as in the receiving cluster");
    assert_eq!(call.arrived, Packet { source: caller_at_peer, destination: called });
    assert_eq!(host_of(here.local_pods, call.wire.source), host_of(here.local_pods, caller));
    assert_eq!(host_of(there.local_pods, translated), host_of(there.local_pods, called));

    let back = Packet { source: called, destination: call.arrived.source };
    let answer = walk(there, here, back);
    assert_eq!(answer.wire, Packet { source: translated, destination: caller_at_peer });
    assert_eq!(answer.arrived, Packet { source: translated, destination: caller });
    call.wire
}

fn host_of(network: CidrTranslation, ip: IpAddr) -> u128 {
    host_bits(network.real(), ip)
}

/// A network whose first byte is made from two numbers, below 4 and below 64.
fn network(v6: bool, quarter: u8, slot: u8, length: u8) -> Cidr {
    let first = (quarter << 6) | slot;
    let text =
        if v6 { format!("{first:x}00::/{length}") } else { format!("{first}.0.0.0/{length}") };
    text.parse().unwrap()
}

proptest! {
    #[test]
    fn a_connection_works_whichever_cluster_translates(peering in peering(), hosts: [u128; 2]) {
        call_and_answer(&peering, hosts);
        let Peering { here, there } = peering;
        call_and_answer(&Peering { here: there, there: here }, hosts);
    }

    #[test]
    fn without_translation_nothing_is_rewritten(
        peering in peering_with(TranslatedBy::Neither),
        hosts: [u128; 2],
    ) {
        let wire = call_and_answer(&peering, hosts);
        prop_assert_eq!(wire.source, in_network(peering.here.local_pods.real(), hosts[0]));
        prop_assert_eq!(wire.destination, in_network(peering.there.local_pods.real(), hosts[1]));
    }

    #[test]
    fn where_one_cluster_translates_the_other_rewrites(
        peering in peering_with(TranslatedBy::Here),
        hosts: [u128; 2],
    ) {
        let wire = call_and_answer(&peering, hosts);
        prop_assert_eq!(wire.source, in_network(peering.here.local_pods.real(), hosts[0]));
        prop_assert_eq!(wire.destination, in_network(peering.here.remote_pods.translated(), hosts[1]));
    }

    #[test]
    fn where_both_translate_both_rewrite(peering in peering_with(TranslatedBy::Both), hosts: [u128; 2]) {
        let wire = call_and_answer(&peering, hosts);
        prop_assert_eq!(wire.source, in_network(peering.there.remote_pods.translated(), hosts[0]));
        prop_assert_eq!(wire.destination, in_network(peering.here.remote_pods.translated(), hosts[1]));
    }

    #[test]
    fn clusters_with_equal_real_and_translated_cidrs_can_connect(
        peering in peering_with(TranslatedBy::Both),
        host: u128,
    ) {
        let ours = [peering.here.local_pods, peering.here.local_external];
        let wire = call_and_answer(&peering_of(ours, ours), [host, host]);
        prop_assert_eq!(wire.source, wire.destination);
    }

    #[test]
    fn many_peers_can_have_the_same_real_cidr_and_translate_ours_to_the_same(
        v6: bool,
        length in 8_u8..=24,
        slots in [0_u8..64, 0..64, 0..64],
        hosts: [u128; 2],
    ) {
        let pods = network(v6, 0, slots[0], length);
        let external = network(v6, 1, slots[1], 24);
        let us = [
            CidrTranslation::new(pods, network(v6, 2, slots[2], length)).unwrap(),
            CidrTranslation::new(external, external).unwrap(),
        ];
        let peerings: Vec<_> = (0..16)
            .map(|n| {
                let them = [(pods, n), (external, n + 16)].map(|(real, slot)| {
                    CidrTranslation::new(real, network(v6, 3, slot, real.net().prefix_len())).unwrap()
                });
                peering_of(us, them)
            })
            .collect();
        let rewrites: Vec<_> = peerings.iter().map(|it| Rewrites::of(&it.here)).collect();
        for (n, peering) in peerings.iter().enumerate() {
            let wire = call_and_answer(peering, hosts);
            let fits: Vec<_> =
                (0..16).filter(|&m| rewrites[m].is_of_peer(wire.destination)).collect();
            prop_assert_eq!(fits, [n]);
        }
    }

    #[test]
    fn sources_that_are_not_pods_become_the_gateway(
        Peering { here, there } in peering(),
        bits: [u128; 2],
    ) {
        let translated = in_network(here.remote_pods.translated(), bits[1]);
        let other = in_network(here.local_external.real(), bits[0]);
        let arrived = walk(&here, &there, Packet { source: other, destination: translated }).arrived;
        prop_assert_eq!(arrived.source, there.peer_gateway_ip().0);
        prop_assert!(there.local_pods.real().net().contains(&arrived.destination));
    }

    #[test]
    fn a_probe_reaches_the_gateway(Peering { here, there } in peering(), source: u128) {
        let probe = Packet {
            source: in_network(here.local_external.real(), source),
            destination: here.peer_gateway_ip().0,
        };
        let wire = Rewrites::of(&here).leave(probe).unwrap();
        let arrival = Rewrites::of(&there).arrive(wire, &Mappings::new());
        prop_assert_eq!(arrival, Some(Arrival::ForGateway));
    }

    #[test]
    fn an_external_address_leads_to_its_mapped_endpoint(
        Peering { here, there } in peering(),
        hosts: [u128; 2],
        endpoint: IpAddr,
    ) {
        let translated = in_network(here.remote_external.translated(), hosts[1]);
        prop_assume!(translated != here.peer_gateway_ip().0);
        let caller = in_network(here.local_pods.real(), hosts[0]);
        let wire = Rewrites::of(&here).leave(Packet { source: caller, destination: translated }).unwrap();
        let arrive = |mappings| Rewrites::of(&there).arrive(wire, &mappings);
        let source = here.local_pods.translate(RealIp(caller)).unwrap().0;
        let passes = Arrival::Passes(Packet { source, destination: endpoint });
        prop_assert_eq!(arrive([(TranslatedIp(translated), endpoint)].into()), Some(passes));
        prop_assert_eq!(arrive(Mappings::new()), None, "it is not mapped");
    }

    #[test]
    fn rewrite_and_locate_agree_on_the_destination(
        Peering { here, there } in peering(),
        hosts: [u128; 2],
        is_external: bool,
        endpoint: IpAddr,
    ) {
        let network = if is_external { here.remote_external } else { here.remote_pods };
        let destination = in_network(network.translated(), hosts[1]);
        prop_assume!(destination != here.peer_gateway_ip().0);
        let mappings = if is_external {
            Mappings::from([(TranslatedIp(destination), endpoint)])
        } else {
            Mappings::new()
        };
        let source = in_network(here.local_pods.real(), hosts[0]);
        let wire = Rewrites::of(&here).leave(Packet { source, destination }).unwrap();
        let Some(Arrival::Passes(arrived)) = Rewrites::of(&there).arrive(wire, &mappings) else {
            panic!("{wire:?} does not arrive")
        };
        let located = match there.locate_from_peer(destination, |_| Some(endpoint)).unwrap() {
            Location::Here(pod) => pod.real.0,
            Location::Elsewhere(ip) => ip,
            Location::There(pod) => panic!("{pod:?} is in the sending cluster"),
        };
        prop_assert_eq!(arrived.destination, located);
    }
}
