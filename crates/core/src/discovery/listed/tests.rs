use serde_json::json;

use super::*;

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

fn campus() -> Listed {
    let none = BTreeMap::new();
    Listed::read("Campus-1.example.com.", "auth.campus-1.example.com.", 443, &none, 60).unwrap()
}

fn campus_of(id: &str) -> Listed {
    let cluster =
        ClusterIdentity { cluster_id: id.parse().unwrap(), cluster_name: "milan".parse().unwrap() };
    Listed { cluster: Some(cluster), ..campus() }
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

fn sighting(what: &Listed, known: &[ForeignCluster]) -> Sighting {
    sighting_in(&domain(), what, known, NOW)
}

/// Both domains are there.
fn sighting_in(
    domain: &SearchDomain,
    what: &Listed,
    known: &[ForeignCluster],
    now: &str,
) -> Sighting {
    let (us, domains) = ("rome-id".parse().unwrap(), uids(&["company", "other"]));
    let searcher = Searcher { us: &us, domain, domains: &domains, autojoin: false };
    listed(what, &searcher, known, now.parse().unwrap())
}

fn uids(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The entry that there is after a first search.
fn made(what: &Listed) -> ForeignCluster {
    let Sighting::New(mut made) = sighting(what, &[]) else { panic!("not new") };
    made.metadata.uid = Some("made".to_owned());
    *made
}

#[test]
fn an_unknown_cluster_becomes_an_entry_of_the_domain() {
    let new = made(&campus());
    assert_eq!(new.metadata.name.as_deref(), Some("campus-1"));
    assert_eq!(new.spec.auth_url, "https://auth.campus-1.example.com:443");
    assert_eq!((new.spec.ttl, new.spec.join), (Some(60), false));
    assert_eq!(new.spec.cluster_identity, None);
    assert_eq!(kind(&new), DiscoveryType::Wan);
    assert!(is_found_in(&new, &domain()) && !is_found_in(&new, &domain_called("other")));
    let owner = &new.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("SearchDomain", "company"));
    assert_eq!(made(&campus_of("milan-id")).metadata.name.as_deref(), Some("milan"));
}

#[test]
fn a_name_that_is_taken_gets_digits() {
    let odd = Listed { record: "__.example.com.".to_owned(), ..campus() };
    for (listed, name) in [(campus(), "campus-1"), (odd, "cluster")] {
        assert_eq!(made(&listed).metadata.name.as_deref(), Some(name));
        let known = [entry(name, "Manual", Some("other-id"))];
        let Sighting::New(new) = sighting(&listed, &known) else { panic!("not new") };
        let (before, digits) = new.metadata.name.as_deref().unwrap().rsplit_once('-').unwrap();
        assert_eq!((before, digits.len()), (name, 6));
    }
}

#[test]
fn it_is_peered_with_as_told() {
    let (us, domain, domains) = ("rome-id".parse().unwrap(), domain(), uids(&["company"]));
    let searcher = Searcher { us: &us, domain: &domain, domains: &domains, autojoin: true };
    let seen = listed(&campus(), &searcher, &[], NOW.parse().unwrap());
    assert!(matches!(seen, Sighting::New(new) if new.spec.join));
}

#[test]
fn an_entry_is_found_again_by_its_record_whoever_it_is_by_then() {
    let mut there = made(&campus());
    for id in [None, Some("milan-id")] {
        there.spec.cluster_identity = id.and_then(|id| campus_of(id).cluster);
        let moved = Listed { auth_url: "https://other.example.com:443".to_owned(), ..campus() };
        let Sighting::Again(again) = sighting(&moved, &[there.clone()]) else { panic!("{id:?}") };
        assert_eq!(again.metadata.uid.as_deref(), Some("made"));
        assert_eq!(again.spec.auth_url, "https://other.example.com:443");
        assert!(is_found_in(&again, &domain()));
    }
}

#[test]
fn what_has_not_changed_is_written_again_after_half_of_its_ttl() {
    let known = [made(&campus())];
    let seen = |what: &Listed, time: &str| sighting_in(&domain(), what, &known, time);
    assert_eq!(seen(&campus(), "2026-05-01T12:00:29Z"), Sighting::Unchanged);
    let cached = Listed { ttl: 40, ..campus() };
    assert_eq!(seen(&cached, "2026-05-01T12:00:20Z"), Sighting::Unchanged);
    let later = seen(&campus(), "2026-05-01T12:00:30Z");
    assert!(matches!(later, Sighting::Again(again) if is_found_in(&again, &domain())));
    let longer = Listed { ttl: 90, ..campus() };
    assert!(matches!(seen(&longer, NOW), Sighting::Again(_)));
}

#[test]
fn weaker_entries_are_taken_over_and_stronger_ones_left_alone() {
    let milan = campus_of("milan-id");
    for kind in ["LAN", "IncomingPeering"] {
        let known = [entry("there", kind, Some("milan-id"))];
        let Sighting::Again(again) = sighting(&milan, &known) else { panic!("{kind}") };
        assert_eq!(again.metadata.name.as_deref(), Some("there"));
        assert!(is_found_in(&again, &domain()));
    }
    let known = [entry("there", "Manual", Some("milan-id"))];
    assert_eq!(sighting(&milan, &known), Sighting::LeftAlone);
}

#[test]
fn of_two_domains_that_list_a_cluster_the_first_keeps_it() {
    let there = made(&campus_of("milan-id"));
    let seen = sighting_in(&domain_called("other"), &campus_of("milan-id"), &[there], NOW);
    assert_eq!(seen, Sighting::LeftAlone);
}

#[test]
fn what_a_domain_has_left_behind_another_one_takes() {
    let (milan, lost) = (campus_of("milan-id"), domain_called("lost"));
    let Sighting::New(mut there) = sighting_in(&lost, &milan, &[], NOW) else { panic!("not new") };
    there.metadata.uid = Some("made".to_owned());
    assert!(is_orphan(&there, &uids(&["company"])) && !is_orphan(&there, &uids(&["lost"])));
    let Sighting::Again(again) = sighting(&milan, &[*there]) else { panic!("left alone") };
    assert!(is_found_in(&again, &domain()) && !is_found_in(&again, &lost));
    assert!(!is_orphan(&entry("there", "LAN", None), &uids(&[])));
}

#[test]
fn who_has_to_show_a_certificate_is_asked_for_it() {
    let (pin, milan) = ("0f".repeat(32).parse().unwrap(), campus_of("milan-id"));
    let pinned = |mut entry: ForeignCluster| {
        entry.spec.fingerprint = Some(pin);
        entry
    };
    let named = Listed { fingerprint: Some(pin), ..milan.clone() };
    for (what, there, is_introduced_then) in [
        (&milan, pinned(entry("there", "LAN", Some("milan-id"))), false),
        (&milan, pinned(entry("there", "IncomingPeering", Some("milan-id"))), false),
        (&milan, entry("there", "LAN", Some("milan-id")), true),
        (&milan, pinned(entry("there", "LAN", Some("turin-id"))), true),
        (&milan, pinned(entry("there", "Manual", Some("milan-id"))), true),
        (&milan, pinned(made(&milan)), true),
        // Of a domain that may not be there any more.
        (&milan, pinned(entry("there", "WAN", Some("milan-id"))), false),
        (&named, pinned(entry("there", "LAN", Some("milan-id"))), true),
    ] {
        let known = [there];
        let answer = is_introduced(what, &domain(), &known);
        assert_eq!(answer, is_introduced_then, "{:?} {known:?}", what.fingerprint);
    }
    let known = [pinned(entry("there", "LAN", Some("milan-id")))];
    let mut asked = milan.clone();
    asked.introduce(campus_of("milan-id").cluster.unwrap(), pin);
    assert!(matches!(sighting(&asked, &known), Sighting::Again(_)));
    // It is not who the record says.
    let mut another = milan.clone();
    another.introduce(campus_of("turin-id").cluster.unwrap(), pin);
    assert_eq!(another, milan);
    let mut nameless = campus();
    nameless.introduce(campus_of("turin-id").cluster.unwrap(), pin);
    assert_eq!((nameless.cluster, nameless.shown), (campus_of("turin-id").cluster, Some(pin)));
}

#[test]
fn who_has_given_no_identity_may_be_another_one_by_now() {
    let mut there = made(&campus_of("milan-id"));
    for (status, is_known) in [("True", true), ("False", false)] {
        let said = json!({
            "type": "Authenticated", "status": status, "reason": "It", "message": "",
            "lastTransitionTime": NOW,
        });
        there.status = serde_json::from_value(json!({ "conditions": [said] })).unwrap();
        let known = [there.clone()];
        assert_eq!(is_introduced(&campus(), &domain(), &known), is_known);
    }
    let Sighting::New(new) = sighting(&campus_of("reinstalled-id"), &[there]) else {
        panic!("not new")
    };
    assert_eq!(id_of(&new).map(ClusterId::as_str), Some("reinstalled-id"));
}

#[test]
fn a_pinned_entry_is_taken_over_only_by_who_has_its_certificate() {
    let (pin, another) = ("0f".repeat(32).parse().unwrap(), "00".repeat(32).parse().unwrap());
    let mut pinned = entry("there", "LAN", Some("milan-id"));
    pinned.spec.fingerprint = Some(pin);
    let milan = campus_of("milan-id");
    for (fingerprint, shown, is_heard) in [
        (None, None, false),
        (None, Some(another), false),
        (None, Some(pin), true),
        (Some(another), Some(pin), false),
        (Some(pin), None, true),
    ] {
        let milan = Listed { fingerprint, shown, ..milan.clone() };
        let seen = sighting(&milan, &[pinned.clone()]);
        assert_eq!(matches!(seen, Sighting::Again(_)), is_heard, "{fingerprint:?} {shown:?}");
    }
    let mut ours = made(&milan);
    ours.spec.fingerprint = Some(pin);
    assert_eq!(sighting(&milan, &[ours]), Sighting::Unchanged, "what is ours stays");
}

#[test]
fn one_cluster_is_one_entry_once_it_is_known_who_it_is() {
    let (us, nameless) = ("rome-id".parse().unwrap(), made(&campus()));
    let (unknown, milan) = (campus(), campus_of("milan-id"));
    let alone = [nameless.clone()];
    assert!(superseded(&milan, &domain(), &alone, &us).is_empty());
    assert_eq!(sighting(&milan, &alone), Sighting::Unchanged);
    let both = [nameless.clone(), entry("there", "LAN", Some("milan-id"))];
    assert_eq!(superseded(&milan, &domain(), &both, &us), [&nameless]);
    assert!(superseded(&unknown, &domain(), &both, &us).is_empty());
    assert!(!is_introduced(&unknown, &domain(), &both));
    assert!(is_introduced(&milan, &domain(), &[]));
}

#[test]
fn a_cluster_that_its_own_domain_lists_is_no_other() {
    let (us, ours) = ("rome-id".parse().unwrap(), campus_of("rome-id"));
    assert_eq!(sighting(&ours, &[]), Sighting::LeftAlone);
    let nameless = made(&campus());
    let known = [nameless];
    assert_eq!(superseded(&ours, &domain(), &known, &us), [&known[0]]);
}

#[test]
fn txt_says_who_it_is() {
    let print = "0f".repeat(32);
    let said = properties(&[("id", "milan-id"), ("name", "milan"), ("fingerprint", &print)]);
    let read = Listed::read("a.example.com.", "auth.example.com.", 443, &said, 0).unwrap();
    assert_eq!(read.cluster, campus_of("milan-id").cluster);
    assert_eq!(read.fingerprint.map(|print| print.to_string()), Some(print));
    assert_eq!(read.ttl, 1);
    let long = Listed::read("a.example.com.", "auth.example.com.", 443, &said, u32::MAX).unwrap();
    assert_eq!(long.ttl, 604_800, "a week");
    let said = properties(&[("id", "milan-id")]);
    let read = Listed::read("a.example.com.", "auth.example.com.", 443, &said, 5).unwrap();
    assert_eq!(read.cluster.unwrap().cluster_name.as_str(), "a");
}

#[test]
fn what_is_wrong_is_said() {
    let none = BTreeMap::new();
    for (host, port, said, what) in [
        (".", 443, none.clone(), "no such service"),
        ("auth.example.com.", 0, none.clone(), "no such service"),
        ("a\\032b.example.com.", 443, none.clone(), "no host name"),
        ("192.0.2.", 443, none, "no host name"),
        ("auth.example.com.", 443, properties(&[("id", "Not An Id")]), "invalid id"),
        ("auth.example.com.", 443, properties(&[("name", "\u{fffd}")]), "invalid name"),
        ("auth.example.com.", 443, properties(&[("fingerprint", "12")]), "invalid fingerprint"),
    ] {
        let error = Listed::read("a.example.com.", host, port, &said, 5).unwrap_err().to_string();
        assert!(error.starts_with("a.example.com. ") && error.ends_with(what), "{error}");
    }
}
