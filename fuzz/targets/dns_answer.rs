//! DNS answers to the search of a domain. Here one packet contains all records (PTR, SRV, TXT,
//! addresses), which come in separate answers otherwise.
#![no_main]

use hickory_proto::{op::Message, rr::Record};
use libfuzzer_sys::fuzz_target;
use tombolo_api::{config::DiscoveryConfig, discovery::SearchDomain};
use tombolo_core::{
    discovery::{
        EntryChange, Found, ListedCluster, MAX_LISTED, Search, SearchContext, Service, is_found_in,
        is_identified, is_superseded, listed, names, next_search,
    },
    view::{Domain, Entry},
};
use tombolo_fuzz::{is_identity, is_valid_entry};

fuzz_target!(|packet: &[u8]| {
    let Ok(message) = Message::from_vec(packet) else { return };
    let records = message.answers;
    let domain: SearchDomain = serde_json::from_value(serde_json::json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "SearchDomain",
        "metadata": { "name": "company", "uid": "company" },
        "spec": { "domain": "example.com." },
    }))
    .expect("a domain");
    let domain = Domain::from_resource(&domain);
    let mut found = Found::default();
    for (name, (target, ttl)) in names(records.clone()) {
        assert_eq!(name, name.to_ascii_lowercase());
        let service = Service::read(&target, ttl, &records, &records);
        match service.and_then(|service| service.at(&records)) {
            Ok(cluster) => {
                assert_eq!(cluster.record, name);
                is_listed(&cluster, &domain, &records);
                found.clusters.push(cluster);
            }
            Err(error) => {
                assert_eq!(error.record, name);
                found.unusable.push(error);
            }
        }
    }
    is_reported(found, &domain);
});

fn is_listed(cluster: &ListedCluster, domain: &Domain<'_>, records: &[Record]) {
    assert!((1..=604_800).contains(&cluster.ttl));
    let longest = records.iter().map(|record| record.ttl).max().unwrap_or(0);
    assert!(cluster.ttl <= longest.max(1), "its TTL is longer than that of any record");
    if let Some(identity) = &cluster.cluster {
        is_identity(identity);
    }
    let us = "us".parse().expect("an id");
    let domains = ["company".to_owned()].into();
    let context = SearchContext { us: &us, domain, domains: &domains, autojoin: false };
    let now = jiff::Timestamp::UNIX_EPOCH;
    if cluster.cluster.as_ref().is_some_and(|identity| identity.cluster_id == us) {
        assert_eq!(listed(cluster, &context, &[], now), EntryChange::Ignored);
        return;
    }
    let EntryChange::Create(entry) = listed(cluster, &context, &[], now) else {
        panic!("an unknown cluster gets a new entry");
    };
    is_valid_entry(&entry);
    let view = Entry::from_resource(&entry);
    assert!(!entry.spec.join && is_found_in(&view, domain));
    let later = now + jiff::SignedDuration::from_secs(cluster.ttl.into());
    let context = SearchContext { autojoin: true, ..context };
    let EntryChange::Update(again) = listed(cluster, &context, &[view], later) else {
        panic!("a known cluster is recognized");
    };
    is_valid_entry(&again);
    assert!(!again.spec.join, "a known cluster is not joined automatically");
    assert_eq!(is_identified(cluster, domain, &[]), cluster.cluster.is_some());
    assert!(!is_superseded(&view, cluster, &context, &[view]));
    // A different cluster with the same name gets another object name.
    let mut other = *entry;
    other.metadata.annotations = None;
    other.metadata.owner_references = None;
    other.spec.cluster_identity = None;
    other.spec.auth_url = "https://elsewhere".to_owned();
    let other = Entry::from_resource(&other);
    let EntryChange::Create(second) = listed(cluster, &context, &[other], now) else {
        panic!("a cluster with the same name gets its own entry");
    };
    is_valid_entry(&second);
    assert_ne!(second.metadata.name.as_deref(), Some(other.name));
}

fn is_reported(found: Found, domain: &Domain<'_>) {
    let now = jiff::Timestamp::UNIX_EPOCH;
    let names = found.clusters.iter().map(|cluster| cluster.record.clone()).collect();
    let search = Search { servers: "192.0.2.53:53".to_owned(), answer: Ok(found) };
    let status = search.status(domain, names, now);
    assert!(status.foreign_clusters.len() <= MAX_LISTED);
    assert!(status.conditions.iter().all(|said| said.message.len() <= 32 * 1024));
    let wait = next_search(&search, None, &DiscoveryConfig::default(), now);
    assert!((1..=30).contains(&wait.as_secs()), "{wait:?}");
}
