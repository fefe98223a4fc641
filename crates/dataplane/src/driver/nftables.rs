//! nftables, by netlink: a table is replaced whole, in one transaction. A comment in the table says
//! which plan it was made from, so that one that is right is left alone.

mod expression;

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    net::Ipv4Addr,
};

use netlink_packet_core::{NLM_F_ACK, NLM_F_APPEND, NLM_F_CREATE, NLM_F_DUMP};
use netlink_packet_netfilter::{
    NetfilterMessageInner,
    nftables::{
        ChainAttribute, ChainMessage, DataAttribute, Hook as HookAttribute, InetHookNumber,
        ListAttribute, NfTablesMessage, RuleAttribute, RuleMessage, SetAttribute,
        SetElementAttribute, SetElementList, SetElementMessage, SetFlags, SetMessage,
        TableAttribute, TableMessage,
    },
    none::ControlMessage,
};
use tombolo_core::plan::nft::{Chain, Kind, Place, Table};

use super::{
    Error, Result,
    netfilter::{self, message},
};

/// Makes a table what it should be; says whether it had to be replaced.
pub fn apply(table: &Table) -> Result<bool> {
    let fail = |action| move |source| Error::Nftables { action, table: table.name.clone(), source };
    let comment = comment(table);
    if find(&table.name).map_err(fail("read"))? == Some(Found::of(table, &comment)) {
        return Ok(false);
    }
    transaction(replace(table, comment)).map_err(fail("replace"))?;
    Ok(true)
}

/// Removes a table, if it is there.
pub fn remove(name: &str) -> Result<()> {
    match transaction(vec![(NfTablesMessage::DeleteTable(named(name)), 0)]) {
        Err(source) if source.raw_os_error() != Some(libc::ENOENT) => {
            Err(Error::Nftables { action: "remove", table: name.into(), source })
        }
        _ => Ok(()),
    }
}

/// What tells a table that is as we made it from one that somebody else changed.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    comment: Vec<u8>,
    rules: usize,
}

impl Found {
    fn of(table: &Table, comment: &[u8]) -> Self {
        let rules = table.chains.iter().map(|chain| chain.rules.len()).sum();
        Self { comment: comment.to_vec(), rules }
    }
}

fn find(name: &str) -> io::Result<Option<Found>> {
    let tables = match request(NfTablesMessage::GetTable(named(name)), 0) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
        answer => answer?,
    };
    let comment = tables.into_iter().find_map(|message| match message {
        NfTablesMessage::NewTable(table) => {
            Some(table.attributes.into_iter().find_map(|attribute| match attribute {
                TableAttribute::UserData(bytes) => Some(bytes),
                _ => None,
            }))
        }
        _ => None,
    });
    let Some(comment) = comment else { return Ok(None) };
    let rules = RuleMessage { attributes: vec![RuleAttribute::Table(name.into())] };
    let rules = request(NfTablesMessage::GetRule(rules), NLM_F_DUMP)?;
    Ok(Some(Found { comment: comment.unwrap_or_default(), rules: rules.len() }))
}

fn named(name: &str) -> TableMessage {
    TableMessage { attributes: vec![TableAttribute::Name(name.into())] }
}

/// User data with a comment that `nft` shows.
fn comment(table: &Table) -> Vec<u8> {
    const COMMENT: u8 = 0;
    let mut hasher = DefaultHasher::new();
    table.to_string().hash(&mut hasher);
    let text = format!("tombolo {:016x}\0", hasher.finish());
    let mut data = vec![COMMENT, u8::try_from(text.len()).unwrap_or_default()];
    data.extend(text.bytes());
    data
}

type Step = (NfTablesMessage, u16);

fn replace(table: &Table, comment: Vec<u8>) -> Vec<Step> {
    let name = &table.name;
    let mut fresh = named(name);
    fresh.attributes.push(TableAttribute::UserData(comment));
    let mut steps = vec![
        (NfTablesMessage::NewTable(named(name)), NLM_F_CREATE),
        (NfTablesMessage::DeleteTable(named(name)), 0),
        (NfTablesMessage::NewTable(fresh), NLM_F_CREATE),
    ];
    for (id, (map, elements)) in (1..).zip(&table.maps) {
        steps.push((NfTablesMessage::NewSet(new_map(name, map, id)), NLM_F_CREATE));
        steps.extend(fill_map(name, map, elements));
    }
    let new_chain = |chain| (NfTablesMessage::NewChain(new_chain(name, chain)), NLM_F_CREATE);
    steps.extend(table.chains.iter().map(new_chain));
    for chain in &table.chains {
        steps.extend(chain.rules.iter().map(|rule| {
            let attributes = vec![
                RuleAttribute::Table(name.clone()),
                RuleAttribute::Chain(chain.name.clone()),
                RuleAttribute::Expressions(expression::of(rule)),
            ];
            let message = NfTablesMessage::NewRule(RuleMessage { attributes });
            (message, NLM_F_CREATE | NLM_F_APPEND)
        }));
    }
    steps
}

fn new_chain(table: &str, chain: &Chain) -> ChainMessage {
    let mut attributes =
        vec![ChainAttribute::Table(table.into()), ChainAttribute::Name(chain.name.clone())];
    if let Some(hook) = chain.hook {
        let kind = match hook.kind {
            Kind::Filter => "filter",
            Kind::Nat => "nat",
        };
        let place = match hook.place {
            Place::Prerouting => InetHookNumber::PreRouting,
            Place::Input => InetHookNumber::LocalIn,
            Place::Forward => InetHookNumber::Forward,
            Place::Postrouting => InetHookNumber::PostRouting,
        };
        let priority = hook.priority.cast_unsigned();
        attributes.push(ChainAttribute::Type(kind.into()));
        attributes.push(ChainAttribute::Hook(vec![
            HookAttribute::Number(place.into()),
            HookAttribute::Priority(priority),
        ]));
    }
    ChainMessage { attributes }
}

fn new_map(table: &str, name: &str, id: u32) -> SetMessage {
    const IPV4_ADDR: u32 = 7;
    SetMessage {
        attributes: vec![
            SetAttribute::Table(table.into()),
            SetAttribute::Name(name.into()),
            SetAttribute::Flags(SetFlags::Map),
            SetAttribute::KeyType(IPV4_ADDR),
            SetAttribute::KeyLen(4),
            SetAttribute::DataType(IPV4_ADDR),
            SetAttribute::DataLen(4),
            SetAttribute::Id(id),
        ],
    }
}

/// An attribute holds at most 64 KiB, so many elements go in several messages.
fn fill_map(
    table: &str,
    map: &str,
    elements: &BTreeMap<Ipv4Addr, Ipv4Addr>,
) -> impl Iterator<Item = Step> {
    let value = |ip: &Ipv4Addr| DataAttribute::Value(ip.octets().to_vec());
    let elements: Vec<_> = elements
        .iter()
        .map(|(from, to)| {
            ListAttribute::Element(vec![
                SetElementAttribute::Key(value(from)),
                SetElementAttribute::Data(value(to)),
            ])
        })
        .collect();
    elements
        .chunks(1000)
        .map(|some| {
            let attributes = vec![
                SetElementList::Table(table.into()),
                SetElementList::Set(map.into()),
                SetElementList::Elements(some.to_vec()),
            ];
            (NfTablesMessage::NewSetElement(SetElementMessage { attributes }), NLM_F_CREATE)
        })
        .collect::<Vec<_>>()
        .into_iter()
}

/// All steps or none.
fn transaction(steps: Vec<Step>) -> io::Result<()> {
    let last = u32::try_from(steps.len()).map_err(io::Error::other)?;
    let mut batch = message(ControlMessage::BatchBegin, 0, 0);
    for (sequence, (step, flags)) in (1..).zip(steps) {
        let acknowledge = if sequence == last { NLM_F_ACK } else { 0 };
        batch.extend(message(step, flags | acknowledge, sequence));
    }
    batch.extend(message(ControlMessage::BatchEnd, 0, last + 1));
    netfilter::exchange(&batch).map(drop)
}

fn request(inner: NfTablesMessage, flags: u16) -> io::Result<Vec<NfTablesMessage>> {
    let answers = netfilter::request(inner, flags)?.into_iter();
    Ok(answers
        .filter_map(|answer| match answer {
            NetfilterMessageInner::NfTables(message) => Some(message),
            _ => None,
        })
        .collect())
}
