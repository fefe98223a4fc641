//! Packets that walk from one cluster to another and back, by the rewrites that each of them makes.

use std::net::IpAddr;

use proptest::prelude::*;
use tombolo_api::Cidr;

use super::strategies::{
    Peering, Renamed, host_bits, in_network, peering, peering_of, peering_with,
};
use super::{
    Arrival, Location, Mappings, NamedNetwork, Networks, Packet, RealIp, Rewrites, TranslatedIp,
};

/// A packet on its way between clusters, and after it.
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

/// A pod here calls one over there by what this cluster calls it, and is answered: what has to be
/// so in every peering. Gives what is on the wire.
fn call_and_answer(peering: &Peering, [caller, called]: [u128; 2]) -> Packet {
    let Peering { here, there } = peering;
    let caller = in_network(here.local_pods.real(), caller);
    let called = in_network(there.local_pods.real(), called);
    let name = here.name_here(called, |_| None).unwrap();
    let callers_name = there.name_here(caller, |_| None).unwrap();

    let call = walk(here, there, Packet { source: caller, destination: name });
    assert_eq!(call.wire.destination, name, "the sender's name for the receiver");
    assert_eq!(call.wire.source, callers_name, "the receiver's name for the sender");
    assert_eq!(call.arrived, Packet { source: callers_name, destination: called });
    assert_eq!(host_of(here.local_pods, call.wire.source), host_of(here.local_pods, caller));
    assert_eq!(host_of(there.local_pods, name), host_of(there.local_pods, called));

    let back = Packet { source: called, destination: call.arrived.source };
    let answer = walk(there, here, back);
    assert_eq!(answer.wire, Packet { source: name, destination: callers_name });
    assert_eq!(answer.arrived, Packet { source: name, destination: caller });
    call.wire
}

fn host_of(network: NamedNetwork, ip: IpAddr) -> u128 {
    host_bits(network.real(), ip)
}

/// A network whose first byte is told by two numbers, below 4 and below 64.
fn network(v6: bool, quarter: u8, slot: u8, length: u8) -> Cidr {
    let first = (quarter << 6) | slot;
    let text =
        if v6 { format!("{first:x}00::/{length}") } else { format!("{first}.0.0.0/{length}") };
    text.parse().unwrap()
}

proptest! {
    #[test]
    fn whoever_renames_a_call_is_answered(peering in peering(), hosts: [u128; 2]) {
        call_and_answer(&peering, hosts);
        let Peering { here, there } = peering;
        call_and_answer(&Peering { here: there, there: here }, hosts);
    }

    #[test]
    fn where_nobody_renames_nothing_is_rewritten(
        peering in peering_with(Renamed::Nobody),
        hosts: [u128; 2],
    ) {
        let wire = call_and_answer(&peering, hosts);
        prop_assert_eq!(wire.source, in_network(peering.here.local_pods.real(), hosts[0]));
        prop_assert_eq!(wire.destination, in_network(peering.there.local_pods.real(), hosts[1]));
    }

    #[test]
    fn where_one_renames_only_the_other_rewrites(
        peering in peering_with(Renamed::Here),
        hosts: [u128; 2],
    ) {
        let wire = call_and_answer(&peering, hosts);
        prop_assert_eq!(wire.source, in_network(peering.here.local_pods.real(), hosts[0]));
        prop_assert_eq!(wire.destination, in_network(peering.here.remote_pods.name(), hosts[1]));
    }

    #[test]
    fn where_both_rename_both_rewrite(peering in peering_with(Renamed::Both), hosts: [u128; 2]) {
        let wire = call_and_answer(&peering, hosts);
        prop_assert_eq!(wire.source, in_network(peering.there.remote_pods.name(), hosts[0]));
        prop_assert_eq!(wire.destination, in_network(peering.here.remote_pods.name(), hosts[1]));
    }

    #[test]
    fn two_with_the_same_networks_and_names_call_each_other(
        peering in peering_with(Renamed::Both),
        host: u128,
    ) {
        let ours = [peering.here.local_pods, peering.here.local_external];
        let wire = call_and_answer(&peering_of(ours, ours), [host, host]);
        prop_assert_eq!(wire.source, wire.destination);
    }

    #[test]
    fn many_peers_share_one_network_and_one_name_for_us(
        v6: bool,
        length in 8_u8..=24,
        slots in [0_u8..64, 0..64, 0..64],
        hosts: [u128; 2],
    ) {
        let pods = network(v6, 0, slots[0], length);
        let external = network(v6, 1, slots[1], 24);
        let us = [
            NamedNetwork::new(pods, network(v6, 2, slots[2], length)).unwrap(),
            NamedNetwork::new(external, external).unwrap(),
        ];
        let peerings: Vec<_> = (0..16)
            .map(|n| {
                let them = [(pods, n), (external, n + 16)].map(|(real, slot)| {
                    NamedNetwork::new(real, network(v6, 3, slot, real.net().prefix_len())).unwrap()
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
    fn what_is_no_pod_is_known_as_the_cluster_itself(
        Peering { here, there } in peering(),
        bits: [u128; 2],
    ) {
        let name = in_network(here.remote_pods.name(), bits[1]);
        let other = in_network(here.local_external.real(), bits[0]);
        let arrived = walk(&here, &there, Packet { source: other, destination: name }).arrived;
        prop_assert_eq!(arrived.source, there.our_name_for_their_self().0);
        prop_assert!(there.local_pods.real().net().contains(&arrived.destination));
    }

    #[test]
    fn a_probe_finds_the_gateway(Peering { here, there } in peering(), source: u128) {
        let probe = Packet {
            source: in_network(here.local_external.real(), source),
            destination: here.our_name_for_their_self().0,
        };
        let wire = Rewrites::of(&here).leave(probe).unwrap();
        let arrival = Rewrites::of(&there).arrive(wire, &Mappings::new());
        prop_assert_eq!(arrival, Some(Arrival::ForGateway));
    }

    #[test]
    fn an_external_address_leads_where_its_mapping_says(
        Peering { here, there } in peering(),
        hosts: [u128; 2],
        endpoint: IpAddr,
    ) {
        let name = in_network(here.remote_external.name(), hosts[1]);
        prop_assume!(name != here.our_name_for_their_self().0);
        let caller = in_network(here.local_pods.real(), hosts[0]);
        let wire = Rewrites::of(&here).leave(Packet { source: caller, destination: name }).unwrap();
        let arrive = |mappings| Rewrites::of(&there).arrive(wire, &mappings);
        let source = here.local_pods.translate(RealIp(caller)).unwrap().0;
        let passes = Arrival::Passes(Packet { source, destination: endpoint });
        prop_assert_eq!(arrive([(TranslatedIp(name), endpoint)].into()), Some(passes));
        prop_assert_eq!(arrive(Mappings::new()), None, "it stands for nothing");
    }

    #[test]
    fn what_arrives_goes_where_the_address_is_said_to_be(
        Peering { here, there } in peering(),
        hosts: [u128; 2],
        is_external: bool,
        endpoint: IpAddr,
    ) {
        let network = if is_external { here.remote_external } else { here.remote_pods };
        let destination = in_network(network.name(), hosts[1]);
        prop_assume!(destination != here.our_name_for_their_self().0);
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
        let said = match there.locate_from_there(destination, |_| Some(endpoint)).unwrap() {
            Location::Here(pod) => pod.real.0,
            Location::Elsewhere(ip) => ip,
            Location::There(pod) => panic!("{pod:?} is where it is called from"),
        };
        prop_assert_eq!(arrived.destination, said);
    }
}
