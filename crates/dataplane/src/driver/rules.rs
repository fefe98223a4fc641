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
        let mut request = handle
            .rule()
            .add()
            .v4()
            .table_id(rule.table)
            .priority(rule.priority)
            .action(RuleAction::ToTable);
        if let Some(IpNet::V4(to)) = rule.to {
            request = request.destination_prefix(to.network(), to.prefix_len());
        }
        if let Some(input) = &rule.input {
            request = request.input_interface(input);
        }
        let action = format!("add a rule to the routing table {}", rule.table);
        request.execute().await.map_err(netlink(action))?;
    }
    for rule in &changes.remove {
        let action = format!("remove a rule to the routing table {}", rule.table);
        handle.rule().del(have[rule].clone()).execute().await.map_err(netlink(action))?;
    }
    Ok(changes.put.len() + changes.remove.len())
}

async fn list(handle: &Handle, tables: &BTreeSet<u32>) -> Result<BTreeMap<Rule, RuleMessage>> {
    let request = handle.rule().get(IpVersion::V4).execute();
    let messages: Vec<_> =
        request.try_collect().await.map_err(netlink("list the routing rules"))?;
    let rules = messages.into_iter().map(|message| (parse(&message), message));
    Ok(rules.filter(|(rule, _)| tables.contains(&rule.table)).collect())
}

fn parse(message: &RuleMessage) -> Rule {
    let mut rule = Rule { priority: 0, table: message.header.table.into(), to: None, input: None };
    for attribute in &message.attributes {
        match attribute {
            RuleAttribute::Table(table) => rule.table = *table,
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
