//! The entries of the database of clusters: how one comes to be, who may change it, when it goes.

use std::{borrow::Borrow, collections::BTreeMap};

use jiff::{SignedDuration, Timestamp};
use tombolo_api::{
    ClusterId, ClusterIdentity, Fingerprint,
    discovery::{DiscoveryType, ForeignCluster, ForeignClusterSpec, RequestState},
    names::{DISCOVERY_TYPE_LABEL, FOUND_ANNOTATION, LAST_UPDATE_ANNOTATION, REQUEST_ANNOTATION},
};

use super::pin::{PinnedBy, pin};
use crate::{digest, tenant::id_of, view::Request};

/// How an entry was discovered. One that does not say so was made by somebody.
pub fn kind(entry: &ForeignCluster) -> DiscoveryType {
    let labels = entry.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(DISCOVERY_TYPE_LABEL));
    label.and_then(|text| text.parse().ok()).unwrap_or(DiscoveryType::Manual)
}

/// Whether there is a peering with that cluster, or is to be one.
pub fn peered(entry: &ForeignCluster) -> bool {
    let status = entry.status.as_ref();
    let directions = status.map(|status| [&status.outgoing, &status.incoming]);
    let established = directions
        .into_iter()
        .flatten()
        .flatten()
        .any(|peering| peering.peered || peering.peering_request.is_some());
    entry.spec.join || established
}

/// Whether a sighting of this kind may change an entry: one that was found in the same way, or in
/// a weaker one. What somebody made is theirs.
pub(super) fn gives_way(entry: &ForeignCluster, to: DiscoveryType) -> bool {
    let strength = |kind| match kind {
        DiscoveryType::IncomingPeering => 0,
        DiscoveryType::Lan => 1,
        DiscoveryType::Wan => 2,
        DiscoveryType::Manual => 3,
    };
    kind(entry) != DiscoveryType::Manual && strength(kind(entry)) <= strength(to)
}

pub(super) fn last_update(entry: &ForeignCluster) -> Option<Timestamp> {
    entry.metadata.annotations.as_ref()?.get(LAST_UPDATE_ANNOTATION)?.parse().ok()
}

/// Whether an entry says already what a sighting at that time has to say, and is recent: half of the
/// TTL is left for the next writing, which need not be at once then.
pub(super) fn says_already(
    entry: &ForeignCluster,
    sighted: &ForeignCluster,
    time: Timestamp,
) -> bool {
    let Some(last) = last_update(entry) else { return false };
    let age = time.duration_since(last);
    let ttl = |it: &ForeignCluster| SignedDuration::from_secs(it.spec.ttl.unwrap_or(0).into());
    // What a DNS server has cached holds for less each time, but until the same time.
    let less = ttl(entry) - ttl(sighted);
    let is_cached = less.is_positive() && (age - less).abs() <= ROUNDED;
    kind(entry) == kind(sighted)
        && entry.spec.auth_url == sighted.spec.auth_url
        && (less.is_zero() || is_cached)
        // What is ahead was written by another clock.
        && (-ROUNDED..ttl(entry) / 2).contains(&age)
}

/// So far apart is what is the same, when times and TTLs are in whole seconds.
const ROUNDED: SignedDuration = SignedDuration::from_secs(2);

/// The entry for a cluster that asked for a peering, was not refused and is not known. The namespace that the
/// request is in says which cluster it comes from: that is all there is to believe.
pub fn incoming(
    request: &Request<'_>,
    from: &ClusterId,
    known: &[impl Borrow<ForeignCluster>],
) -> Option<ForeignCluster> {
    let is_known = known.iter().map(Borrow::borrow).any(|entry| {
        id_of(entry) == Some(from)
            || entry.spec.cluster_identity.is_none() && entry.spec.auth_url == request.auth_url
    });
    let refused = request.state == RequestState::Refused;
    if !is_asked_by(request, from) || refused || is_known {
        return None;
    }
    let name = object_name(request.cluster, known);
    let mut entry = ForeignCluster::new(&name, spec(request.auth_url.to_owned()));
    entry.spec.cluster_identity = Some(request.cluster.clone());
    entry.metadata.labels = Some(labelled(DiscoveryType::IncomingPeering));
    let uid = request.uid.unwrap_or_default().to_owned();
    entry.metadata.annotations = Some([(REQUEST_ANNOTATION.to_owned(), uid)].into());
    Some(entry)
}

/// The entry that is there because the cluster has asked before, and is to stand for this request.
pub fn asked_again<'a>(
    request: &Request<'_>,
    from: &ClusterId,
    known: &'a [impl Borrow<ForeignCluster>],
) -> Option<&'a ForeignCluster> {
    let known = known.iter().map(Borrow::borrow);
    known.filter(|_| is_asked_by(request, from)).find(|entry| {
        id_of(entry) == Some(from)
            && entry.metadata.deletion_timestamp.is_none()
            && request_of(entry).is_some_and(|uid| request.uid != Some(uid))
    })
}

/// Which request an entry is there for, if that is all it is there for: its UID.
pub(crate) fn request_of(entry: &ForeignCluster) -> Option<&str> {
    let annotation = entry.metadata.annotations.as_ref()?.get(REQUEST_ANNOTATION)?;
    (kind(entry) == DiscoveryType::IncomingPeering).then_some(annotation)
}

fn is_asked_by(request: &Request<'_>, from: &ClusterId) -> bool {
    request.cluster.cluster_id == *from
        && request.name == request.cluster.cluster_name.as_str()
        && !request.is_deleted
}

/// Whether an entry is there only because of a peering that is over. `asked` says whether a
/// request of that cluster is there.
pub fn is_over(entry: &ForeignCluster, asked: bool) -> bool {
    kind(entry) == DiscoveryType::IncomingPeering && !asked && !peered(entry)
}

/// The entry that counts for a cluster id, if it is another one: the oldest.
pub fn senior<'a>(
    entry: &ForeignCluster,
    id: &ClusterId,
    known: &'a [impl Borrow<ForeignCluster>],
) -> Option<&'a ForeignCluster> {
    fn rank(entry: &ForeignCluster) -> (Option<Timestamp>, Option<&str>) {
        let created = entry.metadata.creation_timestamp.as_ref().map(|time| time.0);
        (created, entry.metadata.name.as_deref())
    }
    known
        .iter()
        .map(Borrow::borrow)
        .filter(|other| id_of(other) == Some(id) && other.metadata.uid != entry.metadata.uid)
        .filter(|other| rank(other) < rank(entry) || id_of(entry) != Some(id))
        .min_by_key(|other| rank(other))
}

/// Whether an entry, of a cluster that has an older one, has that one stay for good: somebody has made
/// it, while the other was only found.
pub fn takes_over(entry: &ForeignCluster, senior: &ForeignCluster) -> bool {
    kind(entry) == DiscoveryType::Manual
        && kind(senior) != DiscoveryType::Manual
        && senior.metadata.deletion_timestamp.is_none()
}

/// Whether what an entry that is being deleted stood for is not its own to remove: another entry for
/// that cluster stays, or is being deleted as well and is the one to do it.
pub fn is_left_to_others(entry: &ForeignCluster, known: &[ForeignCluster]) -> bool {
    known.iter().filter(|other| id_of(other) == id_of(entry)).any(|other| {
        other.metadata.deletion_timestamp.is_none() || other.metadata.uid > entry.metadata.uid
    })
}

/// What the entry for a cluster is called: after the cluster, and its id too when that is taken.
pub fn object_name(cluster: &ClusterIdentity, known: &[impl Borrow<ForeignCluster>]) -> String {
    let (name, id) = (cluster.cluster_name.as_str(), &cluster.cluster_id);
    let is_free = |name: &String| {
        !known.iter().any(|entry| entry.borrow().metadata.name.as_ref() == Some(name))
    };
    let short = [name.to_owned(), format!("{name}-{}", id.short())];
    let last = || format!("{name}-{}", digest::short(id.as_str(), 6));
    short.into_iter().find(is_free).unwrap_or_else(last)
}

/// Whether an entry that is pinned to one certificate follows to another, which was said in this way.
/// With whom there is a peering, somebody has to say it by hand: there is too much to lose.
pub(super) fn follows(entry: &ForeignCluster, said: PinnedBy, to: Option<Fingerprint>) -> bool {
    to.is_some() && PinnedBy::of(entry) == Some(said) && !peered(entry)
}

/// Pins an entry to another certificate, unless somebody has changed it meanwhile.
pub(super) fn pin_anew(
    again: &mut ForeignCluster,
    entry: &ForeignCluster,
    said: PinnedBy,
    to: Option<Fingerprint>,
) {
    again.metadata.resource_version = entry.metadata.resource_version.clone();
    pin(again, said, to);
}

/// What the first sighting says of an entry.
pub(super) fn first_sighted(
    name: &str,
    kind: DiscoveryType,
    auth_url: String,
    ttl: u32,
    now: Timestamp,
) -> ForeignCluster {
    let mut entry = sighted(name, kind, auth_url, ttl, now);
    let annotations = entry.metadata.annotations.get_or_insert_default();
    annotations.insert(FOUND_ANNOTATION.to_owned(), now.to_string());
    entry
}

/// What every sighting says of an entry. The fingerprint is not among it: anybody in the network can
/// say one.
fn sighted(
    name: &str,
    kind: DiscoveryType,
    auth_url: String,
    ttl: u32,
    now: Timestamp,
) -> ForeignCluster {
    let mut entry = ForeignCluster::new(name, spec(auth_url));
    entry.spec.ttl = Some(ttl);
    entry.metadata.labels = Some(labelled(kind));
    let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    entry.metadata.annotations = Some(BTreeMap::from([(LAST_UPDATE_ANNOTATION.to_owned(), time)]));
    entry
}

/// The same of an entry that is there.
pub(super) fn sighted_again(
    entry: &ForeignCluster,
    kind: DiscoveryType,
    auth_url: String,
    ttl: u32,
    now: Timestamp,
) -> ForeignCluster {
    let name = entry.metadata.name.as_deref().unwrap_or_default();
    let mut again = sighted(name, kind, auth_url, ttl, now);
    again.metadata.uid = entry.metadata.uid.clone();
    again
}

fn labelled(kind: DiscoveryType) -> BTreeMap<String, String> {
    BTreeMap::from([(DISCOVERY_TYPE_LABEL.to_owned(), kind.to_string())])
}

fn spec(auth_url: String) -> ForeignClusterSpec {
    ForeignClusterSpec {
        auth_url,
        join: false,
        cluster_identity: None,
        ttl: None,
        fingerprint: None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tombolo_api::discovery::ResourceRequest;

    use super::*;

    pub const NOW: &str = "2026-05-01T12:00:00Z";

    pub fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    pub fn entry(name: &str, kind: &str, id: Option<&str>) -> ForeignCluster {
        let identity = id.map(|id| json!({ "clusterID": id, "clusterName": "milan" }));
        serde_json::from_value(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1",
            "kind": "ForeignCluster",
            "metadata": {
                "name": name,
                "uid": name,
                "labels": { "discovery.liqo.io/discovery-type": kind },
                "annotations": { "discovery.liqo.io/last-update-time": NOW },
                "creationTimestamp": NOW,
            },
            "spec": { "authUrl": "https://10.0.0.5:31200", "clusterIdentity": identity, "ttl": 60 },
        }))
        .unwrap()
    }

    const NOBODY: [ForeignCluster; 0] = [];

    #[test]
    fn the_stronger_way_to_find_a_cluster_wins() {
        use DiscoveryType::{IncomingPeering, Lan, Manual, Wan};
        for (there, gives_way_to) in [
            (IncomingPeering, vec![IncomingPeering, Lan, Wan, Manual]),
            (Lan, vec![Lan, Wan, Manual]),
            (Wan, vec![Wan, Manual]),
            (Manual, vec![]),
        ] {
            let entry = entry("m", there.as_str(), Some("milan-id"));
            let all = [IncomingPeering, Lan, Wan, Manual];
            let winners: Vec<_> = all.into_iter().filter(|kind| gives_way(&entry, *kind)).collect();
            assert_eq!(winners, gives_way_to, "{there}");
        }
    }

    #[test]
    fn an_entry_says_so_already_for_half_of_its_ttl() {
        let says = |kind: DiscoveryType, url: &str, ttl: u32, time: &str| {
            let there = entry("milan", "WAN", Some("milan-id"));
            let sighted = sighted_again(&there, kind, url.to_owned(), ttl, at(time));
            says_already(&there, &sighted, at(time))
        };
        let url = "https://10.0.0.5:31200";
        for (kind, url, ttl, time, is_said) in [
            (DiscoveryType::Wan, url, 60, NOW, true),
            (DiscoveryType::Wan, url, 60, "2026-05-01T12:00:29Z", true),
            (DiscoveryType::Wan, url, 60, "2026-05-01T12:00:30Z", false),
            (DiscoveryType::Wan, "https://10.0.0.6:31200", 60, NOW, false),
            (DiscoveryType::Lan, url, 60, NOW, false),
            // Of a cache, and anew.
            (DiscoveryType::Wan, url, 40, "2026-05-01T12:00:20Z", true),
            (DiscoveryType::Wan, url, 39, "2026-05-01T12:00:20Z", true),
            (DiscoveryType::Wan, url, 20, "2026-05-01T12:00:20Z", false),
            (DiscoveryType::Wan, url, 61, "2026-05-01T12:00:20Z", false),
            (DiscoveryType::Wan, url, 30, "2026-05-01T12:00:30Z", false),
            // By a clock that was ahead.
            (DiscoveryType::Wan, url, 60, "2026-05-01T11:59:58Z", true),
            (DiscoveryType::Wan, url, 60, "2026-05-01T11:59:57Z", false),
        ] {
            assert_eq!(says(kind, url, ttl, time), is_said, "{kind} {url} {ttl} {time}");
        }
        let mut unseen = entry("milan", "WAN", Some("milan-id"));
        unseen.metadata.annotations = None;
        assert!(!says_already(&unseen, &entry("milan", "WAN", None), at(NOW)));
    }

    #[test]
    fn however_many_clusters_have_a_name_each_entry_has_another() {
        let clusters = ["milan-1", "milan-2", "milan-3", "milan-4"];
        let mut known: Vec<ForeignCluster> = Vec::new();
        for id in clusters {
            let (cluster_id, cluster_name) = (id.parse().unwrap(), "milan".parse().unwrap());
            let name = object_name(&ClusterIdentity { cluster_id, cluster_name }, &known);
            assert!(known.iter().all(|entry| entry.metadata.name.as_deref() != Some(&name)));
            known.push(entry(&name, "LAN", Some(id)));
        }
    }

    fn incoming(
        request: &ResourceRequest,
        from: &ClusterId,
        known: &[impl Borrow<ForeignCluster>],
    ) -> Option<ForeignCluster> {
        super::incoming(&Request::from_resource(request), from, known)
    }

    fn asked_again<'a>(
        request: &ResourceRequest,
        from: &ClusterId,
        known: &'a [impl Borrow<ForeignCluster>],
    ) -> Option<&'a ForeignCluster> {
        super::asked_again(&Request::from_resource(request), from, known)
    }

    fn request(id: &str) -> ResourceRequest {
        serde_json::from_value(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1",
            "kind": "ResourceRequest",
            "metadata": { "name": "milan" },
            "spec": {
                "clusterIdentity": { "clusterID": id, "clusterName": "milan" },
                "authUrl": "https://10.0.0.5:31200",
            },
        }))
        .unwrap()
    }

    #[test]
    fn an_unknown_cluster_that_asks_becomes_a_weak_entry() {
        let from = "milan-id".parse().unwrap();
        let new = incoming(&request("milan-id"), &from, &NOBODY).unwrap();
        assert_eq!(kind(&new), DiscoveryType::IncomingPeering);
        assert_eq!(new.spec.auth_url, "https://10.0.0.5:31200");
        assert!(is_over(&new, false) && !is_over(&new, true));
        let known = [entry("m", "Manual", Some("milan-id"))];
        assert_eq!(incoming(&request("milan-id"), &from, &known), None);
        let known = [entry("m", "Manual", None)];
        assert_eq!(incoming(&request("milan-id"), &from, &known), None);
    }

    #[test]
    fn a_request_that_was_refused_makes_no_entry() {
        let mut refused = request("milan-id");
        refused.status = serde_json::from_value(json!({ "state": "Refused" })).unwrap();
        assert_eq!(incoming(&refused, &"milan-id".parse().unwrap(), &NOBODY), None);
    }

    #[test]
    fn nobody_asks_in_anothers_name() {
        let from = "milan-id".parse().unwrap();
        assert_eq!(incoming(&request("naples-id"), &from, &NOBODY), None);
    }

    #[test]
    fn the_oldest_entry_of_an_id_counts() {
        let id = "milan-id".parse().unwrap();
        let (mut old, new) =
            (entry("b", "LAN", Some("milan-id")), entry("a", "LAN", Some("milan-id")));
        old.metadata.creation_timestamp =
            serde_json::from_value(json!("2026-05-01T11:00:00Z")).unwrap();
        let known = [new.clone(), old.clone()];
        assert_eq!(senior(&new, &id, &known), Some(&old));
        assert_eq!(senior(&old, &id, &known), None);
        let unfilled = entry("c", "Manual", None);
        assert_eq!(senior(&unfilled, &id, &known), Some(&old));
    }

    #[test]
    fn an_entry_is_found_where_it_is_without_a_copy() {
        let (from, known) = ("milan-id".parse().unwrap(), [entry("b", "LAN", Some("milan-id"))]);
        let known = known.map(Arc::new);
        let found = senior(&entry("c", "Manual", None), &from, &known);
        assert!(found.is_some_and(|found| std::ptr::eq(found, &*known[0])));
        assert_eq!(asked_again(&request("milan-id"), &from, &known), None);
        assert_eq!(incoming(&request("milan-id"), &from, &known), None);
    }

    #[test]
    fn what_somebody_makes_has_stay_what_was_only_found() {
        let all = ["Manual", "WAN", "LAN", "IncomingPeering"];
        let entry = |kind| entry("m", kind, Some("milan-id"));
        for there in all {
            assert_eq!(takes_over(&entry("Manual"), &entry(there)), there != "Manual", "{there}");
            for found in &all[1..] {
                assert!(!takes_over(&entry(found), &entry(there)), "{found} {there}");
            }
        }
        let mut ending = entry("LAN");
        ending.metadata.deletion_timestamp = serde_json::from_value(json!(NOW)).unwrap();
        assert!(!takes_over(&entry("Manual"), &ending));
    }

    #[test]
    fn of_several_entries_that_end_together_one_removes_what_they_stood_for() {
        let entry = |uid: &str, ends: bool| -> ForeignCluster {
            serde_json::from_value(json!({
                "metadata": {
                    "name": uid, "uid": uid,
                    "deletionTimestamp": ends.then_some("2026-01-01T00:00:00Z"),
                },
                "spec": {
                    "authUrl": "https://milan",
                    "clusterIdentity": { "clusterID": "m", "clusterName": "milan" },
                },
            }))
            .unwrap()
        };
        let (one, two, stays) = (entry("1", true), entry("2", true), entry("0", false));
        let both = [one.clone(), two.clone()];
        assert!(is_left_to_others(&one, &both));
        assert!(!is_left_to_others(&two, &both));
        assert!(!is_left_to_others(&one, std::slice::from_ref(&one)));
        assert!(is_left_to_others(&two, &[two.clone(), stays]));
    }
}
