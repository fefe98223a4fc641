//! The expressions that the kernel runs for a rule. Numbers of attributes and their values are those
//! of `linux/netfilter/nf_tables.h`.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use netlink_packet_core::{DefaultNla, Emitable as _, NLA_F_NESTED};
use netlink_packet_netfilter::nftables::{ExpressionAttribute, Expressions, ListAttribute};
use tombolo_core::plan::nft::{Action, Match, Rule};

/// The expressions of a rule.
pub fn of(rule: &Rule) -> Vec<ListAttribute<ExpressionAttribute>> {
    let matches = rule.matches.iter().flat_map(of_match);
    matches.chain(of_action(&rule.action)).map(Into::into).collect()
}

const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;
const SOURCE_ADDRESS: u32 = 12;
const DESTINATION_ADDRESS: u32 = 16;
const IIFNAME: u32 = 6;
const OIFNAME: u32 = 7;
const L4PROTO: u32 = 16;
const CT_STATE: u32 = 0;
const CT_STATUS: u32 = 2;
const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
const STATUS_DNAT: u32 = 1 << 5;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;

fn of_match(it: &Match) -> Vec<Expressions> {
    match it {
        Match::Input(name) => interface(IIFNAME, EQUAL, name),
        Match::NotInput(name) => interface(IIFNAME, NOT_EQUAL, name),
        Match::Output(name) => interface(OIFNAME, EQUAL, name),
        Match::NotOutput(name) => interface(OIFNAME, NOT_EQUAL, name),
        Match::Source(net) => address(SOURCE_ADDRESS, EQUAL, *net),
        Match::NotSource(net) => address(SOURCE_ADDRESS, NOT_EQUAL, *net),
        Match::Destination(net) => address(DESTINATION_ADDRESS, EQUAL, *net),
        Match::NotDestination(net) => address(DESTINATION_ADDRESS, NOT_EQUAL, *net),
        Match::Icmp => protocol(ICMP).into(),
        Match::UdpTo(port) => {
            let port = [load(TRANSPORT_HEADER, 2, 2), compare(EQUAL, &port.to_be_bytes())];
            protocol(UDP).into_iter().chain(port).collect()
        }
        Match::TcpSyn => {
            const SYN: u8 = 2;
            const RST: u8 = 4;
            let flags = [load(TRANSPORT_HEADER, 13, 1), mask(&[SYN | RST]), compare(EQUAL, &[SYN])];
            protocol(TCP).into_iter().chain(flags).collect()
        }
        Match::Established => connection(CT_STATE, ESTABLISHED_OR_RELATED),
        Match::DestinationTranslated => connection(CT_STATUS, STATUS_DNAT),
    }
}

fn of_action(action: &Action) -> Vec<Expressions> {
    const SNAT: u32 = 0;
    const DNAT: u32 = 1;
    const ACCEPT: i32 = 1;
    const GOTO: i32 = -4;
    match action {
        Action::Accept => vec![verdict(ACCEPT, None)],
        Action::Goto(chain) => vec![verdict(GOTO, Some(chain))],
        Action::Reject => {
            const HOST_PROHIBITED: u8 = 10;
            vec![expression("reject", [number(1, 0), bytes(2, &[HOST_PROHIBITED])])]
        }
        Action::KeepSource => vec![load(NETWORK_HEADER, SOURCE_ADDRESS, 4), nat(SNAT, None)],
        Action::SourceTo(ip) => vec![immediate(1, &ip.octets()), nat(SNAT, None)],
        Action::DestinationTo(ip) => vec![immediate(1, &ip.octets()), nat(DNAT, None)],
        Action::SourceInto(net) => nat_into(SNAT, *net),
        Action::DestinationInto(net) => nat_into(DNAT, *net),
        Action::Masquerade => vec![expression("masq", [])],
        Action::DestinationByMap(map) => vec![
            load(NETWORK_HEADER, DESTINATION_ADDRESS, 4),
            expression("lookup", [text(1, map), number(2, 1), number(3, 1)]),
            nat(DNAT, None),
        ],
        Action::WriteSource(ip) => write_source(*ip),
        Action::LimitSegments(size) => {
            const MAXSEG: u8 = 2;
            const TCP_OPTION: u32 = 1;
            let attributes = [
                bytes(2, &[MAXSEG]),
                number(3, 2),
                number(4, 2),
                number(6, TCP_OPTION),
                number(7, 1),
            ];
            vec![immediate(1, &size.to_be_bytes()), expression("exthdr", attributes)]
        }
    }
}

fn interface(key: u32, operator: u32, name: &str) -> Vec<Expressions> {
    let mut data = [0; libc::IFNAMSIZ];
    let length = match name.strip_suffix('*') {
        Some(beginning) => beginning.len(),
        None => data.len(),
    };
    for (to, from) in data.iter_mut().zip(name.trim_end_matches('*').bytes()) {
        *to = from;
    }
    vec![meta(key), compare(operator, &data[..length])]
}

fn address(offset: u32, operator: u32, net: Ipv4Net) -> Vec<Expressions> {
    vec![
        load(NETWORK_HEADER, offset, 4),
        mask(&net.netmask().octets()),
        compare(operator, &net.network().octets()),
    ]
}

fn protocol(protocol: u8) -> [Expressions; 2] {
    [meta(L4PROTO), compare(EQUAL, &[protocol])]
}

fn connection(key: u32, bits: u32) -> Vec<Expressions> {
    vec![
        expression("ct", [number(1, 1), number(2, key)]),
        mask(&bits.to_ne_bytes()),
        compare(NOT_EQUAL, &[0; 4]),
    ]
}

fn meta(key: u32) -> Expressions {
    expression("meta", [number(1, 1), number(2, key)])
}

fn load(base: u32, offset: u32, length: u32) -> Expressions {
    let attributes = [number(1, 1), number(2, base), number(3, offset), number(4, length)];
    expression("payload", attributes)
}

fn write_source(ip: Ipv4Addr) -> Vec<Expressions> {
    const INTERNET_CHECKSUM: u32 = 1;
    const CHECKSUM_OFFSET: u32 = 10;
    let attributes = [
        number(2, NETWORK_HEADER),
        number(3, SOURCE_ADDRESS),
        number(4, 4),
        number(5, 1),
        number(6, INTERNET_CHECKSUM),
        number(7, CHECKSUM_OFFSET),
    ];
    vec![immediate(1, &ip.octets()), expression("payload", attributes)]
}

fn mask(mask: &[u8]) -> Expressions {
    let length = u32::try_from(mask.len()).unwrap_or_default();
    let attributes = [
        number(1, 1),
        number(2, 1),
        number(3, length),
        nested(4, &[value(mask)]),
        nested(5, &[value(&vec![0; mask.len()])]),
    ];
    expression("bitwise", attributes)
}

fn compare(operator: u32, data: &[u8]) -> Expressions {
    expression("cmp", [number(1, 1), number(2, operator), nested(3, &[value(data)])])
}

fn immediate(register: u32, data: &[u8]) -> Expressions {
    expression("immediate", [number(1, register), nested(2, &[value(data)])])
}

fn verdict(code: i32, chain: Option<&str>) -> Expressions {
    let mut attributes = vec![bytes(1, &code.to_be_bytes())];
    attributes.extend(chain.map(|chain| text(2, chain)));
    let data = nested(2, &[nested(2, &attributes)]);
    expression("immediate", [number(1, 0), data])
}

/// To the address in register 1; with a register for the last one, into the network between them.
fn nat(kind: u32, last: Option<u32>) -> Expressions {
    const IPV4: u32 = 2;
    const NETMAP: u32 = 1 << 6;
    let mut attributes = vec![number(1, kind), number(2, IPV4), number(3, 1)];
    attributes.extend(last.into_iter().flat_map(|last| [number(4, last), number(7, NETMAP)]));
    expression("nat", attributes)
}

fn nat_into(kind: u32, net: Ipv4Net) -> Vec<Expressions> {
    vec![
        immediate(1, &net.network().octets()),
        immediate(2, &net.broadcast().octets()),
        nat(kind, Some(2)),
    ]
}

fn expression(name: &str, attributes: impl Into<Vec<DefaultNla>>) -> Expressions {
    Expressions::Other { expression_type: name.into(), attributes: attributes.into() }
}

fn number(kind: u16, value: u32) -> DefaultNla {
    bytes(kind, &value.to_be_bytes())
}

fn bytes(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

fn text(kind: u16, text: &str) -> DefaultNla {
    DefaultNla::new(kind, [text.as_bytes(), &[0]].concat())
}

fn value(data: &[u8]) -> DefaultNla {
    bytes(1, data)
}

fn nested(kind: u16, attributes: &[DefaultNla]) -> DefaultNla {
    let mut data = vec![0; attributes.buffer_len()];
    attributes.emit(&mut data);
    DefaultNla::new(kind | NLA_F_NESTED, data)
}
