use serde_json::json;
use tombolo_api::discovery::SearchDomain;

use super::*;
use crate::discovery::entry::tests::views;

const NOW: &str = "2026-05-01T12:00:00Z";

fn domain() -> SearchDomain {
    domain_called("company")
}

fn domain_called(name: &str) -> SearchDomain {
    serde_json::from_value(json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "SearchDomain",
        "metadata": { "name": name, "uid": name },
        "spec": { "domain": "example.com." },
    }))
    .unwrap()
}

fn properties(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn campus() -> ListedCluster {
    let none = BTreeMap::new();
    ListedCluster::read("Campus-1.example.com.", "auth.campus-1.example.com.", 443, &none, 60)
        .unwrap()
}

fn campus_of(id: &str) -> ListedCluster {
    let cluster =
        ClusterIdentity { cluster_id: id.parse().unwrap(), cluster_name: "milan".parse().unwrap() };
    ListedCluster { cluster: Some(cluster), ..campus() }
}

fn entry(name: &str, kind: &str, id: Option<&str>) -> ForeignCluster {
    let identity = id.map(|id| json!({ "clusterID": id, "clusterName": "milan" }));
    serde_json::from_value(json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": {
            "name": name, "uid": name, "labels": { "discovery.liqo.io/discovery-type": kind },
        },
        "spec": { "authUrl": "https://10.0.0.5:31200", "clusterIdentity": identity },
    }))
    .unwrap()
}

fn change(what: &ListedCluster, known: &[ForeignCluster]) -> EntryChange {
    change_in(&domain(), what, known, NOW)
}

/// Both domains exist.
fn change_in(
    domain: &SearchDomain,
    what: &ListedCluster,
    known: &[ForeignCluster],
    now: &str,
) -> EntryChange {
    let (us, domains) = ("rome-id".parse().unwrap(), uids(&["company", "other"]));
    let domain = &Domain::from_resource(domain);
    let context = SearchContext { us: &us, domain, domains: &domains, autojoin: false };
    listed(what, &context, &views(known), now.parse().unwrap())
}

fn is_found_in(entry: &ForeignCluster, domain: &SearchDomain) -> bool {
    super::is_found_in(&Entry::from_resource(entry), &Domain::from_resource(domain))
}

fn is_orphaned(entry: &ForeignCluster, domains: &BTreeSet<String>) -> bool {
    super::is_orphaned(&Entry::from_resource(entry), domains)
}

fn is_identified(what: &ListedCluster, known: &[ForeignCluster]) -> bool {
    super::is_identified(what, &Domain::from_resource(&domain()), &views(known))
}

/// Names of the entries that are superseded.
fn superseded<'a>(what: &ListedCluster, known: &'a [ForeignCluster]) -> Vec<&'a str> {
    let (us, domain, domains) = ("rome-id".parse().unwrap(), domain(), BTreeSet::new());
    let domain = &Domain::from_resource(&domain);
    let context = SearchContext { us: &us, domain, domains: &domains, autojoin: false };
    let known = views(known);
    let superseded = known.iter().filter(|entry| is_superseded(entry, what, &context, &known));
    superseded.map(|entry| entry.name).collect()
}

fn uids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The entry after a first search.
fn created(what: &ListedCluster) -> ForeignCluster {
    let EntryChange::Create(mut made) = change(what, &[]) else { panic!("not new") };
    made.metadata.uid = Some("made".to_owned());
    *made
}

#[test]
fn an_unknown_cluster_gets_an_entry_of_the_domain() {
    let new = created(&campus());
    assert_eq!(new.metadata.name.as_deref(), Some("campus-1"));
    assert_eq!(new.spec.auth_url, "https://auth.campus-1.example.com:443");
    assert_eq!((new.spec.ttl, new.spec.join), (Some(60), false));
    assert_eq!(new.spec.cluster_identity, None);
    assert_eq!(Entry::from_resource(&new).kind, DiscoveryType::Wan);
    assert!(is_found_in(&new, &domain()) && !is_found_in(&new, &domain_called("other")));
    let owner = &new.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("SearchDomain", "company"));
    assert_eq!(created(&campus_of("milan-id")).metadata.name.as_deref(), Some("milan"));
}

#[test]
fn a_name_that_is_taken_gets_digits() {
    let odd = ListedCluster { record: "__.example.com.".to_owned(), ..campus() };
    for (listed, name) in [(campus(), "campus-1"), (odd, "cluster")] {
        assert_eq!(created(&listed).metadata.name.as_deref(), Some(name));
        let known = [entry(name, "Manual", Some("other-id"))];
        let EntryChange::Create(new) = change(&listed, &known) else { panic!("not new") };
        let (before, digits) = new.metadata.name.as_deref().unwrap().rsplit_once('-').unwrap();
        assert_eq!((before, digits.len()), (name, 6));
    }
}

#[test]
fn autojoin_sets_join_of_a_new_entry() {
    let (us, domain, domains) = ("rome-id".parse().unwrap(), domain(), uids(&["company"]));
    let domain = &Domain::from_resource(&domain);
    let context = SearchContext { us: &us, domain, domains: &domains, autojoin: true };
    let seen = listed(&campus(), &context, &[], NOW.parse().unwrap());
    assert!(matches!(seen, EntryChange::Create(new) if new.spec.join));
}

#[test]
fn an_entry_is_matched_by_its_record_whatever_its_id() {
    let mut there = created(&campus());
    for id in [None, Some("milan-id")] {
        there.spec.cluster_identity = id.and_then(|id| campus_of(id).cluster);
        let moved =
            ListedCluster { auth_url: "https://other.example.com:443".to_owned(), ..campus() };
        let EntryChange::Update(again) = change(&moved, &[there.clone()]) else { panic!("{id:?}") };
        assert_eq!(again.metadata.uid.as_deref(), Some("made"));
        assert_eq!(again.spec.auth_url, "https://other.example.com:443");
        assert!(is_found_in(&again, &domain()));
    }
}

#[test]
fn an_unchanged_entry_is_written_after_half_of_its_ttl() {
    let known = [created(&campus())];
    let seen = |what: &ListedCluster, time: &str| change_in(&domain(), what, &known, time);
    assert_eq!(seen(&campus(), "2026-05-01T12:00:29Z"), EntryChange::Unchanged);
    let cached = ListedCluster { ttl: 40, ..campus() };
    assert_eq!(seen(&cached, "2026-05-01T12:00:20Z"), EntryChange::Unchanged);
    let later = seen(&campus(), "2026-05-01T12:00:30Z");
    assert!(matches!(later, EntryChange::Update(again) if is_found_in(&again, &domain())));
    let longer = ListedCluster { ttl: 90, ..campus() };
    assert!(matches!(seen(&longer, NOW), EntryChange::Update(_)));
}

#[test]
fn weaker_entries_are_taken_over_and_stronger_ones_ignored() {
    let milan = campus_of("milan-id");
    for kind in ["LAN", "IncomingPeering"] {
        let known = [entry("there", kind, Some("milan-id"))];
        let EntryChange::Update(again) = change(&milan, &known) else { panic!("{kind}") };
        assert_eq!(again.metadata.name.as_deref(), Some("there"));
        assert!(is_found_in(&again, &domain()));
    }
    let known = [entry("there", "Manual", Some("milan-id"))];
    assert_eq!(change(&milan, &known), EntryChange::Ignored);
}

#[test]
fn of_two_domains_that_list_a_cluster_the_first_owns_it() {
    let there = created(&campus_of("milan-id"));
    let seen = change_in(&domain_called("other"), &campus_of("milan-id"), &[there], NOW);
    assert_eq!(seen, EntryChange::Ignored);
}

#[test]
fn another_domain_adopts_an_orphaned_entry() {
    let (milan, lost) = (campus_of("milan-id"), domain_called("lost"));
    let EntryChange::Create(mut there) = change_in(&lost, &milan, &[], NOW) else {
        panic!("not new")
    };
    there.metadata.uid = Some("made".to_owned());
    assert!(is_orphaned(&there, &uids(&["company"])) && !is_orphaned(&there, &uids(&["lost"])));
    let EntryChange::Update(again) = change(&milan, &[*there]) else { panic!("left alone") };
    assert!(is_found_in(&again, &domain()) && !is_found_in(&again, &lost));
    assert!(!is_orphaned(&entry("there", "LAN", None), &uids(&[])));
}

#[test]
fn a_pinned_entry_requires_a_query_of_the_auth_service() {
    let (pin, milan) = ("0f".repeat(32).parse().unwrap(), campus_of("milan-id"));
    let pinned = |mut entry: ForeignCluster| {
        entry.spec.fingerprint = Some(pin);
        entry
    };
    let named = ListedCluster { fingerprint: Some(pin), ..milan.clone() };
    for (what, there, is_introduced_then) in [
        (&milan, pinned(entry("there", "LAN", Some("milan-id"))), false),
        (&milan, pinned(entry("there", "IncomingPeering", Some("milan-id"))), false),
        (&milan, entry("there", "LAN", Some("milan-id")), true),
        (&milan, pinned(entry("there", "LAN", Some("turin-id"))), true),
        (&milan, pinned(entry("there", "Manual", Some("milan-id"))), true),
        (&milan, pinned(created(&milan)), true),
        // Of a domain that may be deleted.
        (&milan, pinned(entry("there", "WAN", Some("milan-id"))), false),
        (&named, pinned(entry("there", "LAN", Some("milan-id"))), true),
    ] {
        let known = [there];
        let answer = is_identified(what, &known);
        assert_eq!(answer, is_introduced_then, "{:?} {known:?}", what.fingerprint);
    }
    let known = [pinned(entry("there", "LAN", Some("milan-id")))];
    let mut asked = milan.clone();
    asked.identify(campus_of("milan-id").cluster.unwrap(), pin);
    assert!(matches!(change(&asked, &known), EntryChange::Update(_)));
    // Not the cluster that the record names.
    let mut another = milan.clone();
    another.identify(campus_of("turin-id").cluster.unwrap(), pin);
    assert_eq!(another, milan);
    let mut nameless = campus();
    nameless.identify(campus_of("turin-id").cluster.unwrap(), pin);
    assert_eq!((nameless.cluster, nameless.shown), (campus_of("turin-id").cluster, Some(pin)));
}

#[test]
fn an_entry_without_an_identity_is_queried_again() {
    let mut there = created(&campus_of("milan-id"));
    for (status, is_known) in [("True", true), ("False", false)] {
        let said = json!({
            "type": "Authenticated", "status": status, "reason": "It", "message": "",
            "lastTransitionTime": NOW,
        });
        there.status = serde_json::from_value(json!({ "conditions": [said] })).unwrap();
        let known = [there.clone()];
        assert_eq!(is_identified(&campus(), &known), is_known);
    }
    let EntryChange::Create(new) = change(&campus_of("reinstalled-id"), &[there]) else {
        panic!("not new")
    };
    let id = Entry::from_resource(&new).peer.id();
    assert_eq!(id.map(ClusterId::as_str), Some("reinstalled-id"));
}

#[test]
fn a_pinned_entry_is_taken_over_only_with_its_certificate() {
    let (pin, another) = ("0f".repeat(32).parse().unwrap(), "00".repeat(32).parse().unwrap());
    let mut pinned = entry("there", "LAN", Some("milan-id"));
    pinned.spec.fingerprint = Some(pin);
    let milan = campus_of("milan-id");
    for (fingerprint, shown, is_updated) in [
        (None, None, false),
        (None, Some(another), false),
        (None, Some(pin), true),
        (Some(another), Some(pin), false),
        (Some(pin), None, true),
    ] {
        let milan = ListedCluster { fingerprint, shown, ..milan.clone() };
        let seen = change(&milan, &[pinned.clone()]);
        assert_eq!(matches!(seen, EntryChange::Update(_)), is_updated, "{fingerprint:?} {shown:?}");
    }
    let mut ours = created(&milan);
    ours.spec.fingerprint = Some(pin);
    assert_eq!(change(&milan, &[ours]), EntryChange::Unchanged, "an entry of this domain stays");
}

#[test]
fn a_duplicate_entry_is_removed_once_the_id_is_known() {
    let nameless = created(&campus());
    let (unknown, milan) = (campus(), campus_of("milan-id"));
    let alone = [nameless.clone()];
    assert!(superseded(&milan, &alone).is_empty());
    assert_eq!(change(&milan, &alone), EntryChange::Unchanged);
    let both = [nameless.clone(), entry("there", "LAN", Some("milan-id"))];
    assert_eq!(superseded(&milan, &both), ["campus-1"]);
    assert!(superseded(&unknown, &both).is_empty());
    assert!(!is_identified(&unknown, &both));
    assert!(is_identified(&milan, &[]));
}

#[test]
fn a_cluster_ignores_its_own_record() {
    let ours = campus_of("rome-id");
    assert_eq!(change(&ours, &[]), EntryChange::Ignored);
    let known = [created(&campus())];
    assert_eq!(superseded(&ours, &known), ["campus-1"]);
}

#[test]
fn a_txt_record_has_id_name_and_fingerprint() {
    let print = "0f".repeat(32);
    let said = properties(&[("id", "milan-id"), ("name", "milan"), ("fingerprint", &print)]);
    let read = ListedCluster::read("a.example.com.", "auth.example.com.", 443, &said, 0).unwrap();
    assert_eq!(read.cluster, campus_of("milan-id").cluster);
    assert_eq!(read.fingerprint.map(|print| print.to_string()), Some(print));
    assert_eq!(read.ttl, 1);
    let long =
        ListedCluster::read("a.example.com.", "auth.example.com.", 443, &said, u32::MAX).unwrap();
    assert_eq!(long.ttl, 604_800, "a week");
    let said = properties(&[("id", "milan-id")]);
    let read = ListedCluster::read("a.example.com.", "auth.example.com.", 443, &said, 5).unwrap();
    assert_eq!(read.cluster.unwrap().cluster_name.as_str(), "a");
}

#[test]
fn invalid_records_are_named() {
    let none = BTreeMap::new();
    for (host, port, said, what) in [
        (".", 443, none.clone(), "(target \".\" or port 0)"),
        ("auth.example.com.", 0, none.clone(), "(target \".\" or port 0)"),
        ("a\\032b.example.com.", 443, none.clone(), "not a host name"),
        ("192.0.2.", 443, none, "not a host name"),
        ("auth.example.com.", 443, properties(&[("id", "Not An Id")]), "invalid id"),
        ("auth.example.com.", 443, properties(&[("name", "\u{fffd}")]), "invalid name"),
        ("auth.example.com.", 443, properties(&[("fingerprint", "12")]), "invalid fingerprint"),
    ] {
        let error =
            ListedCluster::read("a.example.com.", host, port, &said, 5).unwrap_err().to_string();
        assert!(error.starts_with("a.example.com. ") && error.ends_with(what), "{error}");
    }
}
