//! ForeignClusters as entries of the list of known clusters: how an entry is made, what may change
//! it, when it expires.

use std::{borrow::Borrow, collections::BTreeMap};

use jiff::{SignedDuration, Timestamp};
use tombolo_api::{
    ClusterId, ClusterIdentity, Fingerprint,
    discovery::{DiscoveryType, ForeignCluster, ForeignClusterSpec, RequestState},
    names::{DISCOVERY_TYPE_LABEL, FOUND_ANNOTATION, LAST_UPDATE_ANNOTATION, REQUEST_ANNOTATION},
};

use super::pin::{PinnedBy, pin};
use crate::{digest, tenant::id_of, view::Request};

/// How an entry was discovered. Without a label, a user has created it.
pub fn kind(entry: &ForeignCluster) -> DiscoveryType {
    let labels = entry.metadata.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(DISCOVERY_TYPE_LABEL));
    label.and_then(|text| text.parse().ok()).unwrap_or(DiscoveryType::Manual)
}

/// Whether there is a peering with that cluster, or one is wanted.
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

/// Whether a discovery of this kind may change an entry: one of the same or a weaker kind. Manual
/// entries belong to the user.
pub(super) fn may_be_changed_by(entry: &ForeignCluster, to: DiscoveryType) -> bool {
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

/// Whether an entry has the same content as a discovery at that time and is recent: less than half
/// of the TTL has passed, so it need not be written yet.
pub(super) fn is_up_to_date(
    entry: &ForeignCluster,
    discovered: &ForeignCluster,
    time: Timestamp,
) -> bool {
    let Some(last) = last_update(entry) else { return false };
    let age = time.duration_since(last);
    let ttl = |it: &ForeignCluster| SignedDuration::from_secs(it.spec.ttl.unwrap_or(0).into());
    // The TTL of a cached DNS record counts down, but it expires at the same time.
    let less = ttl(entry) - ttl(discovered);
    let is_cached = less.is_positive() && (age - less).abs() <= ROUNDED;
    kind(entry) == kind(discovered)
        && entry.spec.auth_url == discovered.spec.auth_url
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
    known: &[impl Borrow<ForeignCluster>],
) -> Option<ForeignCluster> {
    let is_known = known.iter().map(Borrow::borrow).any(|entry| {
        id_of(entry) == Some(from)
            || entry.spec.cluster_identity.is_none() && entry.spec.auth_url == request.auth_url
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
pub fn replaced_request<'a>(
    request: &Request<'_>,
    from: &ClusterId,
    known: &'a [impl Borrow<ForeignCluster>],
) -> Option<&'a ForeignCluster> {
    let known = known.iter().map(Borrow::borrow);
    known.filter(|_| is_request_of(request, from)).find(|entry| {
        id_of(entry) == Some(from)
            && entry.metadata.deletion_timestamp.is_none()
            && request_of(entry).is_some_and(|uid| request.uid != Some(uid))
    })
}

/// UID of the request that an entry was made for, if it exists for that reason only.
pub(crate) fn request_of(entry: &ForeignCluster) -> Option<&str> {
    let annotation = entry.metadata.annotations.as_ref()?.get(REQUEST_ANNOTATION)?;
    (kind(entry) == DiscoveryType::IncomingPeering).then_some(annotation)
}

fn is_request_of(request: &Request<'_>, from: &ClusterId) -> bool {
    request.cluster.cluster_id == *from
        && request.name == request.cluster.cluster_name.as_str()
        && !request.is_deleted
}

/// Whether an entry exists only for a peering that is over. `has_request`: the cluster's request
/// still exists.
pub fn is_over(entry: &ForeignCluster, has_request: bool) -> bool {
    kind(entry) == DiscoveryType::IncomingPeering && !has_request && !peered(entry)
}

/// The oldest entry of a cluster id, if it is another one than `entry`: that one is in effect.
pub fn oldest_other<'a>(
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

/// Whether a new entry makes an older one of the same cluster permanent: a user has created the new
/// one, and the older one was discovered.
pub fn takes_over(entry: &ForeignCluster, older: &ForeignCluster) -> bool {
    kind(entry) == DiscoveryType::Manual
        && kind(older) != DiscoveryType::Manual
        && older.metadata.deletion_timestamp.is_none()
}

/// Whether another entry of the same cluster does the cleanup of an entry that is being deleted:
/// one that stays, or one of those deleted at the same time.
pub fn is_left_to_others(entry: &ForeignCluster, known: &[ForeignCluster]) -> bool {
    known.iter().filter(|other| id_of(other) == id_of(entry)).any(|other| {
        other.metadata.deletion_timestamp.is_none() || other.metadata.uid > entry.metadata.uid
    })
}

/// Name of the entry for a cluster: the cluster's name, with its id if that is taken.
pub fn object_name(cluster: &ClusterIdentity, known: &[impl Borrow<ForeignCluster>]) -> String {
    let (name, id) = (cluster.cluster_name.as_str(), &cluster.cluster_id);
    let is_free = |name: &String| {
        !known.iter().any(|entry| entry.borrow().metadata.name.as_ref() == Some(name))
    };
    let short = [name.to_owned(), format!("{name}-{}", id.short())];
    let last = || format!("{name}-{}", digest::short(id.as_str(), 6));
    short.into_iter().find(is_free).unwrap_or_else(last)
}

/// Whether an entry may be pinned to another certificate by a discovery of this kind. Not with a
/// peering: then a user has to change the fingerprint.
pub(super) fn may_repin(entry: &ForeignCluster, said: PinnedBy, to: Option<Fingerprint>) -> bool {
    to.is_some() && PinnedBy::of(entry) == Some(said) && !peered(entry)
}

/// Pins an entry to another certificate, with the resource version so that a concurrent change is
/// not lost.
pub(super) fn repin(
    again: &mut ForeignCluster,
    entry: &ForeignCluster,
    said: PinnedBy,
    to: Option<Fingerprint>,
) {
    again.metadata.resource_version = entry.metadata.resource_version.clone();
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
    entry: &ForeignCluster,
    kind: DiscoveryType,
    auth_url: String,
    ttl: u32,
    now: Timestamp,
) -> ForeignCluster {
    let name = entry.metadata.name.as_deref().unwrap_or_default();
    let mut again = discovered(name, kind, auth_url, ttl, now);
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
    fn a_stronger_kind_of_discovery_wins() {
        use DiscoveryType::{IncomingPeering, Lan, Manual, Wan};
        for (there, gives_way_to) in [
            (IncomingPeering, vec![IncomingPeering, Lan, Wan, Manual]),
            (Lan, vec![Lan, Wan, Manual]),
            (Wan, vec![Wan, Manual]),
            (Manual, vec![]),
        ] {
            let entry = entry("m", there.as_str(), Some("milan-id"));
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
        assert!(!is_up_to_date(&unseen, &entry("milan", "WAN", None), at(NOW)));
    }

    #[test]
    fn entries_of_clusters_with_the_same_name_have_different_names() {
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

    fn replaced_request<'a>(
        request: &ResourceRequest,
        from: &ClusterId,
        known: &'a [impl Borrow<ForeignCluster>],
    ) -> Option<&'a ForeignCluster> {
        super::replaced_request(&Request::from_resource(request), from, known)
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
    fn a_refused_request_creates_no_entry() {
        let mut refused = request("milan-id");
        refused.status = serde_json::from_value(json!({ "state": "Refused" })).unwrap();
        assert_eq!(incoming(&refused, &"milan-id".parse().unwrap(), &NOBODY), None);
    }

    #[test]
    fn a_request_with_the_id_of_another_cluster_is_ignored() {
        let from = "milan-id".parse().unwrap();
        assert_eq!(incoming(&request("naples-id"), &from, &NOBODY), None);
    }

    #[test]
    fn the_oldest_entry_of_an_id_is_in_effect() {
        let id = "milan-id".parse().unwrap();
        let (mut old, new) =
            (entry("b", "LAN", Some("milan-id")), entry("a", "LAN", Some("milan-id")));
        old.metadata.creation_timestamp =
            serde_json::from_value(json!("2026-05-01T11:00:00Z")).unwrap();
        let known = [new.clone(), old.clone()];
        assert_eq!(oldest_other(&new, &id, &known), Some(&old));
        assert_eq!(oldest_other(&old, &id, &known), None);
        let unfilled = entry("c", "Manual", None);
        assert_eq!(oldest_other(&unfilled, &id, &known), Some(&old));
    }

    #[test]
    fn lookups_return_references_into_the_index() {
        let (from, known) = ("milan-id".parse().unwrap(), [entry("b", "LAN", Some("milan-id"))]);
        let known = known.map(Arc::new);
        let found = oldest_other(&entry("c", "Manual", None), &from, &known);
        assert!(found.is_some_and(|found| std::ptr::eq(found, &*known[0])));
        assert_eq!(replaced_request(&request("milan-id"), &from, &known), None);
        assert_eq!(incoming(&request("milan-id"), &from, &known), None);
    }

    #[test]
    fn a_manual_entry_takes_over_a_discovered_one() {
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
        let both = [one.clone(), two.clone()];
        assert!(is_left_to_others(&one, &both));
        assert!(!is_left_to_others(&two, &both));
        assert!(!is_left_to_others(&one, std::slice::from_ref(&one)));
        assert!(is_left_to_others(&two, &[two.clone(), stays]));
    }
}
