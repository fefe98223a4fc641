//! A small model of an nftables table, with only the parts that the product uses. `Display` prints
//! it like `nft`.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use ipnet::Ipv4Net;

/// A table of the family `ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name.
    pub name: String,
    /// Maps, by name.
    pub maps: BTreeMap<String, BTreeMap<Ipv4Addr, Ipv4Addr>>,
    /// Chains. The target of a `goto` comes before its caller.
    pub chains: Vec<Chain>,
}

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// Hook of a base chain. `None` for a regular chain, which is called by others.
    pub hook: Option<Hook>,
    /// Rules, in order.
    pub rules: Vec<Rule>,
}

/// The hook of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Chain type.
    pub kind: Kind,
    /// Hook point.
    pub place: Place,
    /// Priority: smaller values first.
    pub priority: i32,
}

/// A chain type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Called for every packet.
    Filter,
    /// Translates addresses; called once per connection.
    Nat,
}

/// A hook point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before routing.
    Prerouting,
    /// To a local process.
    Input,
    /// Forwarded between interfaces.
    Forward,
    /// After routing.
    Postrouting,
}

/// A rule: its action applies to packets for which all matches hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Matches, all of which must hold.
    pub matches: Vec<Match>,
    /// Action.
    pub action: Action,
}

/// A match on a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Input interface; a trailing `*` is a wildcard.
    Input(String),
    /// Any other input interface.
    NotInput(String),
    /// Output interface.
    Output(String),
    /// Any other output interface.
    NotOutput(String),
    /// Source in this network.
    Source(Ipv4Net),
    /// Source outside of this network.
    NotSource(Ipv4Net),
    /// Destination in this network.
    Destination(Ipv4Net),
    /// Destination outside of this network.
    NotDestination(Ipv4Net),
    /// UDP destination port.
    UdpTo(u16),
    /// TCP SYN.
    TcpSyn,
    /// ICMP.
    Icmp,
    /// Conntrack state established or related.
    Established,
    /// Connection with destination NAT.
    DestinationTranslated,
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Accept the packet.
    Accept,
    /// Reject the packet with an ICMP error.
    Reject,
    /// Continue in another chain, without return.
    Goto(String),
    /// Source NAT to the same address, so that no later chain changes it.
    KeepSource,
    /// Source NAT to this address.
    SourceTo(Ipv4Addr),
    /// Source NAT to this network, with the same host part.
    SourceInto(Ipv4Net),
    /// Source NAT to the address of the output interface.
    Masquerade,
    /// Destination NAT to this address.
    DestinationTo(Ipv4Addr),
    /// Destination NAT by this map; continue if it has no entry.
    DestinationByMap(String),
    /// Destination NAT to this network, with the same host part.
    DestinationInto(Ipv4Net),
    /// Set the source of the packet, without connection tracking.
    WriteSource(Ipv4Addr),
    /// Limit the TCP maximum segment size.
    LimitSegments(u16),
}

/// Standard priority of source NAT.
pub const SRCNAT: i32 = 100;

/// Standard priority of destination NAT.
pub const DSTNAT: i32 = -100;

/// Creates a rule.
pub fn rule(matches: impl IntoIterator<Item = Match>, action: Action) -> Rule {
    Rule { matches: matches.into_iter().collect(), action }
}

impl Chain {
    /// A base chain, called at a hook point.
    pub fn base(name: &str, kind: Kind, place: Place, priority: i32) -> Self {
        Self { name: name.into(), hook: Some(Hook { kind, place, priority }), rules: Vec::new() }
    }

    /// A regular chain, called by other chains.
    pub fn regular(name: impl Into<String>) -> Self {
        Self { name: name.into(), hook: None, rules: Vec::new() }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "table ip {} {{", self.name)?;
        for (name, elements) in &self.maps {
            writeln!(f, "\tmap {name} {{")?;
            writeln!(f, "\t\ttype ipv4_addr : ipv4_addr")?;
            for (key, value) in elements {
                writeln!(f, "\t\t{key} : {value}")?;
            }
            writeln!(f, "\t}}")?;
        }
        for chain in &self.chains {
            writeln!(f, "\tchain {} {{", chain.name)?;
            if let Some(Hook { kind, place, priority }) = chain.hook {
                let kind = format!("{kind:?}").to_lowercase();
                let place = format!("{place:?}").to_lowercase();
                writeln!(f, "\t\ttype {kind} hook {place} priority {priority}; policy accept;")?;
            }
            for Rule { matches, action } in &chain.rules {
                write!(f, "\t\t")?;
                matches.iter().try_for_each(|it| write!(f, "{it} "))?;
                writeln!(f, "{action}")?;
            }
            writeln!(f, "\t}}")?;
        }
        writeln!(f, "}}")
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::Input(link) => write!(f, "iifname \"{link}\""),
            Match::NotInput(link) => write!(f, "iifname != \"{link}\""),
            Match::Output(link) => write!(f, "oifname \"{link}\""),
            Match::NotOutput(link) => write!(f, "oifname != \"{link}\""),
            Match::Source(net) => write!(f, "ip saddr {net}"),
            Match::NotSource(net) => write!(f, "ip saddr != {net}"),
            Match::Destination(net) => write!(f, "ip daddr {net}"),
            Match::NotDestination(net) => write!(f, "ip daddr != {net}"),
            Match::UdpTo(port) => write!(f, "udp dport {port}"),
            Match::TcpSyn => write!(f, "tcp flags & (syn | rst) == syn"),
            Match::Icmp => write!(f, "meta l4proto icmp"),
            Match::Established => write!(f, "ct state established,related"),
            Match::DestinationTranslated => write!(f, "ct status dnat"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Accept => write!(f, "accept"),
            Action::Reject => write!(f, "reject with icmp host-prohibited"),
            Action::Goto(chain) => write!(f, "goto {chain}"),
            Action::KeepSource => write!(f, "snat to ip saddr"),
            Action::SourceTo(ip) => write!(f, "snat to {ip}"),
            Action::SourceInto(net) => write!(f, "snat ip prefix to {net}"),
            Action::Masquerade => write!(f, "masquerade"),
            Action::DestinationTo(ip) => write!(f, "dnat to {ip}"),
            Action::DestinationByMap(map) => write!(f, "dnat to ip daddr map @{map}"),
            Action::DestinationInto(net) => write!(f, "dnat ip prefix to {net}"),
            Action::WriteSource(ip) => write!(f, "ip saddr set {ip}"),
            Action::LimitSegments(size) => write!(f, "tcp option maxseg size set {size}"),
        }
    }
}
