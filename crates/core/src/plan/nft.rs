//! A small model of an nftables table: just what our tables are made of. It prints itself the way
//! `nft` does, for tests and for people.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr};

use ipnet::Ipv4Net;

/// A table of the family `ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Name.
    pub name: String,
    /// Maps, by name.
    pub maps: BTreeMap<String, BTreeMap<Ipv4Addr, Ipv4Addr>>,
    /// Chains. One that another leads to comes before it.
    pub chains: Vec<Chain>,
}

/// A chain of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// Name.
    pub name: String,
    /// Where it is called, unless only by other chains.
    pub hook: Option<Hook>,
    /// Rules, in order.
    pub rules: Vec<Rule>,
}

/// Where a chain is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hook {
    /// What it may do.
    pub kind: Kind,
    /// Where in the packet's way.
    pub place: Place,
    /// Smaller ones come first.
    pub priority: i32,
}

/// What a chain may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Look at every packet.
    Filter,
    /// Translate addresses, asked once for each connection.
    Nat,
}

/// A place in a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before it is routed.
    Prerouting,
    /// On the way to a local process.
    Input,
    /// Between two interfaces.
    Forward,
    /// On the way out.
    Postrouting,
}

/// A rule: what to do with a packet that all matches fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// All of these have to fit.
    pub matches: Vec<Match>,
    /// What to do.
    pub action: Action,
}

/// A property of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// It came in by this interface; a `*` at the end stands for anything.
    Input(String),
    /// It came in by another interface.
    NotInput(String),
    /// It goes out by this interface.
    Output(String),
    /// It goes out by another interface.
    NotOutput(String),
    /// Its source is in this network.
    Source(Ipv4Net),
    /// Its source is elsewhere.
    NotSource(Ipv4Net),
    /// Its destination is in this network.
    Destination(Ipv4Net),
    /// Its destination is elsewhere.
    NotDestination(Ipv4Net),
    /// It is UDP to this port.
    UdpTo(u16),
    /// It is a TCP packet that opens a connection.
    TcpSyn,
    /// It is an ICMP message.
    Icmp,
    /// It belongs to a connection that was let through.
    Established,
    /// The destination of its connection was translated.
    DestinationTranslated,
}

/// What to do with a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Let it through.
    Accept,
    /// Say that it may not pass.
    Reject,
    /// Ask another chain, and leave it at that.
    Goto(String),
    /// Keep the connection's source, and let no later chain change it.
    KeepSource,
    /// Give the connection this source.
    SourceTo(Ipv4Addr),
    /// Move the connection's source into this network; the host part stays.
    SourceInto(Ipv4Net),
    /// Give the connection the address of the interface that it leaves by as its source.
    Masquerade,
    /// Give the connection this destination.
    DestinationTo(Ipv4Addr),
    /// Give the connection the destination that this map has for it; if none, go on.
    DestinationByMap(String),
    /// Move the connection's destination into this network; the host part stays.
    DestinationInto(Ipv4Net),
    /// Write this source into the packet.
    WriteSource(Ipv4Addr),
    /// Let TCP segments be no larger than this.
    LimitSegments(u16),
}

/// Priority at which source NAT usually happens.
pub const SRCNAT: i32 = 100;

/// Priority at which destination NAT usually happens.
pub const DSTNAT: i32 = -100;

/// A rule from its parts.
pub fn rule(matches: impl IntoIterator<Item = Match>, action: Action) -> Rule {
    Rule { matches: matches.into_iter().collect(), action }
}

impl Chain {
    /// A chain that is called at a place.
    pub fn base(name: &str, kind: Kind, place: Place, priority: i32) -> Self {
        Self { name: name.into(), hook: Some(Hook { kind, place, priority }), rules: Vec::new() }
    }

    /// A chain that others lead to.
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
