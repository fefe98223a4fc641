//! mDNS packets, parsed by the mDNS library, and the announcements in them.
#![no_main]

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use hickory_proto::{
    op::Message,
    rr::{RData, Record},
};
use libfuzzer_sys::fuzz_target;
use tombolo_api::{config::DiscoveryConfig, names::MDNS_SERVICE};
use tombolo_core::{
    discovery::{Announcement, EntryChange, LocalCluster, announced, expires_at},
    view::Entry,
};
use tombolo_fuzz::{is_identity, is_valid_entry};

fuzz_target!(|packet: &[u8]| {
    listen(packet);
    let Ok(message) = Message::from_vec(packet) else { return };
    let records: Vec<&Record> = message.answers.iter().chain(&message.additionals).collect();
    let addresses = records.iter().filter_map(|record| record.data.ip_addr()).collect();
    let properties = records.iter().flat_map(|record| properties(record)).collect();
    for record in &records {
        if let RData::SRV(service) = &record.data {
            is_read(&record.name.to_string(), &addresses, service.port, &properties);
        }
    }
});

/// Parses the packet without its questions: the library skips unknown ones, which its own fuzzing
/// check reports as an error.
fn listen(packet: &[u8]) {
    let mut packet = packet.to_vec();
    if let Some(questions) = packet.get_mut(4..6) {
        questions.fill(0);
    }
    mdns_sd::fuzz_api::parse_packet(&packet);
}

fn properties(record: &Record) -> Vec<(String, String)> {
    let RData::TXT(text) = &record.data else { return Vec::new() };
    let texts = text.txt_data.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    let pair = |text: String| {
        let (key, value) = text.split_once('=').unwrap_or((&text, ""));
        (key.to_owned(), value.to_owned())
    };
    texts.map(pair).collect()
}

fn is_read(
    name: &str,
    addresses: &BTreeSet<IpAddr>,
    port: u16,
    properties: &BTreeMap<String, String>,
) {
    let addresses = addresses.iter().copied();
    let Ok(heard) = Announcement::read(name, addresses, port, properties) else { return };
    is_identity(&heard.cluster);
    assert!((1..=86_400).contains(&heard.ttl));
    assert_ne!(heard.port, 0);
    let said: BTreeMap<_, _> =
        heard.properties().into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    let name = format!("{}.{MDNS_SERVICE}.", heard.cluster.cluster_id);
    let again = Announcement::read(&name, heard.addresses.clone(), heard.port, &said);
    assert_eq!(again.as_ref(), Ok(&heard));

    let us = "us".parse().expect("an id");
    let now = jiff::Timestamp::UNIX_EPOCH;
    let ours = DiscoveryConfig { group: heard.group.clone(), ..DiscoveryConfig::default() };
    let others = DiscoveryConfig { group: Some("another group".to_owned()), ..ours.clone() };
    let local = LocalCluster { us: &us, networks: &[], config: &ours };
    if heard.group != others.group {
        let elsewhere = LocalCluster { config: &others, ..local };
        assert_eq!(announced(&heard, &[], &elsewhere, now), EntryChange::Ignored);
    }
    let itself = LocalCluster { us: &heard.cluster.cluster_id, ..local };
    assert_eq!(announced(&heard, &[], &itself, now), EntryChange::Ignored);
    if heard.cluster.cluster_id == us {
        return;
    }
    let EntryChange::Create(entry) = announced(&heard, &[], &local, now) else {
        panic!("an unknown cluster gets a new entry");
    };
    is_valid_entry(&entry);
    let view = Entry::from_resource(&entry);
    let expiry = expires_at(&view, now, now).expect("a discovered entry expires");
    assert!(expiry > now);
    // A different cluster with the same name gets another object name; the same cluster is updated.
    let mut other = (*entry).clone();
    other.spec.cluster_identity = None;
    other.spec.auth_url = "https://elsewhere".to_owned();
    let EntryChange::Create(second) =
        announced(&heard, &[Entry::from_resource(&other)], &local, now)
    else {
        panic!("a cluster with the same name gets its own entry");
    };
    is_valid_entry(&second);
    assert_ne!(second.metadata.name, entry.metadata.name);
    let known = [view];
    assert_eq!(announced(&heard, &known, &local, now), EntryChange::Unchanged);
    let EntryChange::Update(again) = announced(&heard, &known, &local, expiry) else {
        panic!("a known cluster is recognized");
    };
    is_valid_entry(&again);
}
