//! Connections that the kernel tracks: they keep the translation with which they began.

use std::{io, net::IpAddr};

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_netfilter::{
    NetfilterMessageInner,
    conntrack::{ConntrackAttribute, ConntrackMessage, IPTuple, Tuple},
};
use tombolo_core::plan::gateway::Connection;

use super::{Error, Result, netfilter, netns::Netns};

/// Makes the kernel forget some connections; says how many.
pub fn forget(netns: &Netns, is_stale: impl Fn(&Connection) -> bool + Send) -> Result<usize> {
    netns.run(|| forget_here(is_stale))?.map_err(Error::Conntrack)
}

fn forget_here(is_stale: impl Fn(&Connection) -> bool) -> io::Result<usize> {
    let tracked = netfilter::request(ConntrackMessage::Get(Vec::new()), NLM_F_DUMP)?;
    let stale = tracked.into_iter().filter_map(|message| match message {
        NetfilterMessageInner::Conntrack(ConntrackMessage::New(attributes)) => {
            let (there, connection) = parse(attributes)?;
            is_stale(&connection).then_some(there)
        }
        _ => None,
    });
    let mut forgotten = 0;
    for there in stale {
        let delete = ConntrackMessage::Delete(vec![ConntrackAttribute::CtaTupleOrig(there)]);
        match netfilter::request(delete, 0) {
            Err(error) if error.raw_os_error() != Some(libc::ENOENT) => return Err(error),
            _ => forgotten += 1,
        }
    }
    Ok(forgotten)
}

fn parse(attributes: Vec<ConntrackAttribute>) -> Option<(Vec<Tuple>, Connection)> {
    let (mut there, mut back) = (None, None);
    for attribute in attributes {
        match attribute {
            ConntrackAttribute::CtaTupleOrig(tuple) => there = Some(tuple),
            ConntrackAttribute::CtaTupleReply(tuple) => back = Some(tuple),
            _ => {}
        }
    }
    let there = there?;
    let (from, to) = addresses(&there)?;
    let (answers, _) = addresses(&back?)?;
    Some((there, Connection { from, to, answers }))
}

fn addresses(tuple: &[Tuple]) -> Option<(IpAddr, IpAddr)> {
    let (mut from, mut to) = (None, None);
    for part in tuple {
        let Tuple::Ip(addresses) = part else { continue };
        for address in addresses {
            match address {
                IPTuple::SourceAddress(ip) => from = Some(*ip),
                IPTuple::DestinationAddress(ip) => to = Some(*ip),
                _ => {}
            }
        }
    }
    Some((from?, to?))
}
