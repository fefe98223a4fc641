//! ForeignClusters as entries of the list of known clusters: how an entry is made, what may change
//! it, when it expires.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use tombolo_api::{
    ClusterId, ClusterIdentity, Fingerprint,
    discovery::{DiscoveryType, ForeignCluster, ForeignClusterSpec, RequestState},
    names::{DISCOVERY_TYPE_LABEL, FOUND_ANNOTATION, LAST_UPDATE_ANNOTATION, REQUEST_ANNOTATION},
};

use super::pin::{PinnedBy, pin};
use crate::{
    digest,
    view::{Entry, Request},
};

/// Whether there is a peering with that cluster, or one is wanted.
fn is_peered(entry: &Entry<'_>) -> bool {
    let mut directions = entry.outgoing.into_iter().chain(entry.incoming);
    entry.join || directions.any(|peering| peering.peered || peering.peering_request.is_some())
}

/// Whether a discovery of this kind may change an entry: one of the same or a weaker kind. Manual
/// entries belong to the user.
pub(super) fn may_be_changed_by(entry: &Entry<'_>, to: DiscoveryType) -> bool {
    let strength = |kind| match kind {
        DiscoveryType::IncomingPeering => 0,
        DiscoveryType::Lan => 1,
        DiscoveryType::Wan => 2,
        DiscoveryType::Manual => 3,
    };
    entry.kind != DiscoveryType::Manual && strength(entry.kind) <= strength(to)
}

/// Whether an entry has the same content as a discovery at that time and is recent: less than half
/// of the TTL has passed, so it need not be written yet.
pub(super) fn is_up_to_date(
    entry: &Entry<'_>,
    discovered: &ForeignCluster,
    time: Timestamp,
) -> bool {
    let Some(last) = entry.last_update else { return false };
    let discovered = &Entry::from_resource(discovered);
    let age = time.duration_since(last);
    let ttl = |it: &Entry<'_>| SignedDuration::from_secs(it.ttl.unwrap_or(0).into());
    // The TTL of a cached DNS record counts down, but it expires at the same time.
    let less = ttl(entry) - ttl(discovered);
    let is_cached = less.is_positive() && (age - less).abs() <= ROUNDED;
    entry.kind == discovered.kind
        && entry.auth_url == discovered.auth_url
        && (less.is_zero() || is_cached)
        // A time in the future was written by another clock.
        && (-ROUNDED..ttl(entry) / 2).contains(&age)
}

/// Tolerance, as times and TTLs are in whole seconds.
const ROUNDED: SignedDuration = SignedDuration::from_secs(2);

/// The entry for a cluster that has requested a peering, was not refused and has no entry. Only the
/// namespace of the request proves which cluster it comes from.
pub fn incoming(
    request: &Request<'_>,
    from: &ClusterId,
    known: &[Entry<'_>],
) -> Option<ForeignCluster> {
    let is_known = known.iter().any(|entry| match entry.peer.id() {
        Some(id) => id == from,
        None => entry.auth_url == request.auth_url,
    });
    let refused = request.state == RequestState::Refused;
    if !is_request_of(request, from) || refused || is_known {
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

/// The entry that was made for an earlier request of the cluster, and has to refer to this one.
pub fn replaced_request<'k, 'a>(
    request: &Request<'_>,
    from: &ClusterId,
    known: &'k [Entry<'a>],
) -> Option<&'k Entry<'a>> {
    known.iter().filter(|_| is_request_of(request, from)).find(|entry| {
        entry.peer.id() == Some(from)
            && entry.deleted.is_none()
            && entry.request.is_some_and(|uid| request.uid != Some(uid))
    })
}

fn is_request_of(request: &Request<'_>, from: &ClusterId) -> bool {
    request.cluster.cluster_id == *from
        && request.name == request.cluster.cluster_name.as_str()
        && !request.is_deleted
}

/// Whether an entry exists only for a peering that is over. `has_request`: the cluster's request
/// still exists.
pub fn is_over(entry: &Entry<'_>, has_request: bool) -> bool {
    entry.kind == DiscoveryType::IncomingPeering && !has_request && !is_peered(entry)
}

/// The oldest entry of a cluster id, if it is another one than `entry`: that one is in effect.
pub fn oldest_other<'k, 'a>(
    entry: &Entry<'_>,
    id: &ClusterId,
    known: &'k [Entry<'a>],
) -> Option<&'k Entry<'a>> {
    known
        .iter()
        .filter(|other| other.peer.id() == Some(id) && other.uid != entry.uid)
        .filter(|other| {
            (other.created, other.name) < (entry.created, entry.name) || entry.peer.id() != Some(id)
        })
        .min_by_key(|other| (other.created, other.name))
}

/// Whether a new entry makes an older one of the same cluster permanent: a user has created the new
/// one, and the older one was discovered.
pub fn takes_over(entry: &Entry<'_>, older: &Entry<'_>) -> bool {
    entry.kind == DiscoveryType::Manual
        && older.kind != DiscoveryType::Manual
        && older.deleted.is_none()
}

/// Whether another entry of the same cluster does the cleanup of an entry that is being deleted:
/// one that stays, or one of those deleted at the same time.
pub fn is_left_to_others(entry: &Entry<'_>, known: &[Entry<'_>]) -> bool {
    known
        .iter()
        .filter(|other| other.peer.id() == entry.peer.id())
        .any(|other| other.deleted.is_none() || other.uid > entry.uid)
}

/// Name of the entry for a cluster: the cluster's name, with its id if that is taken.
pub fn object_name(cluster: &ClusterIdentity, known: &[Entry<'_>]) -> String {
    let (name, id) = (cluster.cluster_name.as_str(), &cluster.cluster_id);
    let is_free = |name: &String| !known.iter().any(|entry| entry.name == name);
    let short = [name.to_owned(), format!("{name}-{}", id.short())];
    let last = || format!("{name}-{}", digest::short(id.as_str(), 6));
    short.into_iter().find(is_free).unwrap_or_else(last)
}

/// Whether an entry may be pinned to another certificate by a discovery of this kind. Not with a
/// peering: then a user has to change the fingerprint.
pub(super) fn may_repin(entry: &Entry<'_>, said: PinnedBy, to: Option<Fingerprint>) -> bool {
    to.is_some() && entry.pinned_by() == Some(said) && !is_peered(entry)
}

/// Pins an entry to another certificate, with the resource version so that a concurrent change is
/// not lost.
pub(super) fn repin(
    again: &mut ForeignCluster,
    entry: &Entry<'_>,
    said: PinnedBy,
    to: Option<Fingerprint>,
) {
    again.metadata.resource_version = entry.resource_version.map(str::to_owned);
    pin(again, said, to);
}

/// A new entry, with the time of its discovery.
pub(super) fn new_entry(
    name: &str,
    kind: DiscoveryType,
    auth_url: String,
    ttl: u32,
    now: Timestamp,
) -> ForeignCluster {
    let mut entry = discovered(name, kind, auth_url, ttl, now);
    let annotations = entry.metadata.annotations.get_or_insert_default();
    annotations.insert(FOUND_ANNOTATION.to_owned(), now.to_string());
    entry
}

/// The fields that every discovery sets. Without the fingerprint: anybody in the network can
/// announce one.
fn discovered(
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

/// The same for an existing entry.
pub(super) fn refreshed(
    entry: &Entry<'_>,
    kind: DiscoveryType,
    auth_url: String,
    ttl: u32,
    now: Timestamp,
) -> ForeignCluster {
    let mut again = discovered(entry.name, kind, auth_url, ttl, now);
    again.metadata.uid = entry.uid.map(str::to_owned);
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

    pub fn views(known: &[ForeignCluster]) -> Vec<Entry<'_>> {
        known.iter().map(Entry::from_resource).collect()
    }

    #[test]
    fn a_stronger_kind_of_discovery_wins() {
        use DiscoveryType::{IncomingPeering, Lan, Manual, Wan};
        for (there, gives_way_to) in [
            (IncomingPeering, vec![IncomingPeering, Lan, Wan, Manual]),
            (Lan, vec![Lan, Wan, Manual]),
            (Wan, vec![Wan, Manual]),
            (Manual, vec![]),
        ] {
            let entry = entry("m", there.as_str(), Some("milan-id"));
            let entry = Entry::from_resource(&entry);
            let all = [IncomingPeering, Lan, Wan, Manual];
            let winners: Vec<_> =
                all.into_iter().filter(|kind| may_be_changed_by(&entry, *kind)).collect();
            assert_eq!(winners, gives_way_to, "{there}");
        }
    }

    #[test]
    fn an_unchanged_entry_is_up_to_date_for_half_of_its_ttl() {
        let holds = |kind: DiscoveryType, url: &str, ttl: u32, time: &str| {
            let there = entry("milan", "WAN", Some("milan-id"));
            let there = Entry::from_resource(&there);
            let discovered = refreshed(&there, kind, url.to_owned(), ttl, at(time));
            is_up_to_date(&there, &discovered, at(time))
        };
        let url = "https://10.0.0.5:31200";
        for (kind, url, ttl, time, expected) in [
            (DiscoveryType::Wan, url, 60, NOW, true),
            (DiscoveryType::Wan, url, 60, "2026-05-01T12:00:29Z", true),
            (DiscoveryType::Wan, url, 60, "2026-05-01T12:00:30Z", false),
            (DiscoveryType::Wan, "https://10.0.0.6:31200", 60, NOW, false),
            (DiscoveryType::Lan, url, 60, NOW, false),
            // From a cache, and refreshed.
            (DiscoveryType::Wan, url, 40, "2026-05-01T12:00:20Z", true),
            (DiscoveryType::Wan, url, 39, "2026-05-01T12:00:20Z", true),
            (DiscoveryType::Wan, url, 20, "2026-05-01T12:00:20Z", false),
            (DiscoveryType::Wan, url, 61, "2026-05-01T12:00:20Z", false),
            (DiscoveryType::Wan, url, 30, "2026-05-01T12:00:30Z", false),
            // Written by a clock that was ahead.
            (DiscoveryType::Wan, url, 60, "2026-05-01T11:59:58Z", true),
            (DiscoveryType::Wan, url, 60, "2026-05-01T11:59:57Z", false),
        ] {
            assert_eq!(holds(kind, url, ttl, time), expected, "{kind} {url} {ttl} {time}");
        }
        let mut unseen = entry("milan", "WAN", Some("milan-id"));
        unseen.metadata.annotations = None;
        let unseen = Entry::from_resource(&unseen);
        assert!(!is_up_to_date(&unseen, &entry("milan", "WAN", None), at(NOW)));
    }

    #[test]
    fn entries_of_clusters_with_the_same_name_have_different_names() {
        let clusters = ["milan-1", "milan-2", "milan-3", "milan-4"];
        let mut known: Vec<ForeignCluster> = Vec::new();
        for id in clusters {
            let (cluster_id, cluster_name) = (id.parse().unwrap(), "milan".parse().unwrap());
            let name = object_name(&ClusterIdentity { cluster_id, cluster_name }, &views(&known));
            assert!(known.iter().all(|entry| entry.metadata.name.as_deref() != Some(&name)));
            known.push(entry(&name, "LAN", Some(id)));
        }
    }

    fn incoming(
        request: &ResourceRequest,
        from: &ClusterId,
        known: &[ForeignCluster],
    ) -> Option<ForeignCluster> {
        super::incoming(&Request::from_resource(request), from, &views(known))
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
    fn a_request_of_an_unknown_cluster_creates_a_weak_entry() {
        let from = "milan-id".parse().unwrap();
        let new = incoming(&request("milan-id"), &from, &[]).unwrap();
        let new = Entry::from_resource(&new);
        assert_eq!(new.kind, DiscoveryType::IncomingPeering);
        assert_eq!(new.auth_url, "https://10.0.0.5:31200");
        assert!(is_over(&new, false) && !is_over(&new, true));
        let known = [entry("m", "Manual", Some("milan-id"))];
        assert_eq!(incoming(&request("milan-id"), &from, &known), None);
        let known = [entry("m", "Manual", None)];
        assert_eq!(incoming(&request("milan-id"), &from, &known), None);
    }

    #[test]
    fn a_refused_request_creates_no_entry() {
        let mut refused = request("milan-id");
        refused.status = serde_json::from_value(json!({ "state": "Refused" })).unwrap();
        assert_eq!(incoming(&refused, &"milan-id".parse().unwrap(), &[]), None);
    }

    #[test]
    fn a_request_with_the_id_of_another_cluster_is_ignored() {
        let from = "milan-id".parse().unwrap();
        assert_eq!(incoming(&request("naples-id"), &from, &[]), None);
    }

    #[test]
    fn the_oldest_entry_of_an_id_is_in_effect() {
        let id = "milan-id".parse().unwrap();
        let (mut old, new) =
            (entry("b", "LAN", Some("milan-id")), entry("a", "LAN", Some("milan-id")));
        old.metadata.creation_timestamp =
            serde_json::from_value(json!("2026-05-01T11:00:00Z")).unwrap();
        let (old, new) = (Entry::from_resource(&old), Entry::from_resource(&new));
        let oldest_other =
            |entry: &Entry<'_>| oldest_other(entry, &id, &[new, old]).map(|found| found.uid);
        assert_eq!(oldest_other(&new), Some(old.uid));
        assert_eq!(oldest_other(&old), None);
        let unfilled = entry("c", "Manual", None);
        assert_eq!(oldest_other(&Entry::from_resource(&unfilled)), Some(old.uid));
    }

    #[test]
    fn an_entry_of_an_earlier_request_refers_to_the_next() {
        let (from, mut next) = ("milan-id".parse().unwrap(), request("milan-id"));
        next.metadata.uid = Some("2".to_owned());
        for (kind, uid, is_replaced) in
            [("IncomingPeering", "1", true), ("IncomingPeering", "2", false), ("LAN", "1", false)]
        {
            let mut made = entry("m", kind, Some("milan-id"));
            let annotation = (REQUEST_ANNOTATION.to_owned(), uid.to_owned());
            made.metadata.annotations = Some([annotation].into());
            let known = [Entry::from_resource(&made)];
            let found = replaced_request(&Request::from_resource(&next), &from, &known);
            assert_eq!(found.is_some(), is_replaced, "{kind} {uid}");
        }
    }

    #[test]
    fn a_manual_entry_takes_over_a_discovered_one() {
        let all = ["Manual", "WAN", "LAN", "IncomingPeering"];
        let entry = |kind| entry("m", kind, Some("milan-id"));
        let takes_over = |entry: &ForeignCluster, older: &ForeignCluster| {
            takes_over(&Entry::from_resource(entry), &Entry::from_resource(older))
        };
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
    fn of_entries_deleted_together_exactly_one_cleans_up() {
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
        let [one, two, stays] = [&one, &two, &stays].map(Entry::from_resource);
        assert!(is_left_to_others(&one, &[one, two]));
        assert!(!is_left_to_others(&two, &[one, two]));
        assert!(!is_left_to_others(&one, &[one]));
        assert!(is_left_to_others(&two, &[two, stays]));
    }
}
