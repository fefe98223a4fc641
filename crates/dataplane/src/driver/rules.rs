//! Routing rules.

use std::collections::{BTreeMap, BTreeSet};

use futures::TryStreamExt as _;
use ipnet::IpNet;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use rtnetlink::{Handle, IpVersion};
use tombolo_core::plan::{Rule, network::diff};

use super::{Result, netlink};

/// Makes the rules that lead to our tables what they should be; says how many had to be changed.
pub async fn apply(
    handle: &Handle,
    tables: &BTreeSet<u32>,
    want: &BTreeSet<Rule>,
) -> Result<usize> {
    let have = list(handle, tables).await?;
    let changes = diff(&have.keys().cloned().collect(), want);
    for rule in &changes.put {
        let mut request = handle.rule().add().v4().priority(rule.priority);
        request = match rule.table {
            Some(table) => request.table_id(table).action(RuleAction::ToTable),
            None => request.action(RuleAction::Unreachable),
        };
        if let Some(IpNet::V4(to)) = rule.to {
            request = request.destination_prefix(to.network(), to.prefix_len());
        }
        if let Some(input) = &rule.input {
            request = request.input_interface(input);
        }
        let action = format!("add a routing rule with the priority {}", rule.priority);
        request.execute().await.map_err(netlink(action))?;
    }
    for rule in &changes.remove {
        let action = format!("remove a routing rule with the priority {}", rule.priority);
        handle.rule().del(have[rule].clone()).execute().await.map_err(netlink(action))?;
    }
    Ok(changes.put.len() + changes.remove.len())
}

async fn list(handle: &Handle, tables: &BTreeSet<u32>) -> Result<BTreeMap<Rule, RuleMessage>> {
    let request = handle.rule().get(IpVersion::V4).execute();
    let messages: Vec<_> =
        request.try_collect().await.map_err(netlink("list the routing rules"))?;
    let rules = messages.into_iter().map(|message| (parse(&message), message));
    let ours = |rule: &Rule| tables.contains(&rule.table.unwrap_or(rule.priority));
    Ok(rules.filter(|(rule, _)| ours(rule)).collect())
}

fn parse(message: &RuleMessage) -> Rule {
    let table = match message.header.action {
        RuleAction::Unreachable => None,
        _ => Some(message.header.table.into()),
    };
    let mut rule = Rule { priority: 0, table, to: None, input: None };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(table) => rule.table = rule.table.map(|_| *table),
            RuleAttribute::Priority(priority) => rule.priority = *priority,
            RuleAttribute::Iifname(name) => rule.input = Some(name.clone()),
            RuleAttribute::Destination(ip) => {
                rule.to = IpNet::new(*ip, message.header.dst_len).ok();
            }
            _ => {}
        }
    }
    rule
}
