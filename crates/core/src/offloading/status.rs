//! The status of a NamespaceOffloading.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use tombolo_api::names::REPLICATE_TO_LABEL;
use tombolo_api::offloading::{
    NamespaceOffloading, NamespaceOffloadingStatus, OffloadedCluster, OffloadingPhase,
};
use tombolo_api::virtualkubelet::{MappingPhase, NamespaceMap};
use tombolo_api::{ClusterId, ClusterName};

use crate::{owner::belongs_to, view::Map};

/// The NamespaceMap for a cluster.
#[derive(Clone, Debug)]
pub struct PeerMap<'a> {
    /// The cluster.
    pub cluster: ClusterId,
    /// The map.
    pub map: Map<'a>,
}

impl<'a> PeerMap<'a> {
    /// `None` if the map is not of this cluster, `us`.
    pub fn of(map: &'a NamespaceMap, us: &ClusterName) -> Option<Self> {
        let meta = &map.metadata;
        let meta = belongs_to(meta.name.as_deref()?, us).then_some(meta)?;
        let cluster = meta.labels.as_ref()?.get(REPLICATE_TO_LABEL)?;
        Some(Self { cluster: cluster.parse().ok()?, map: Map::from_resource(map) })
    }
}

/// The status of a NamespaceOffloading, from all maps that report its namespace.
pub fn status(
    offloading: &NamespaceOffloading,
    maps: &[PeerMap<'_>],
    now: jiff::Timestamp,
) -> NamespaceOffloadingStatus {
    let namespace = offloading.metadata.namespace.as_deref().unwrap_or_default();
    let mut clusters: Vec<_> = maps.iter().filter_map(|map| cluster(namespace, map)).collect();
    clusters.sort_by(|a, b| a.cluster_id.cmp(&b.cluster_id));
    let (ready, reason, message) = summary(&clusters);
    let before = offloading.status.iter().flat_map(|status| &status.conditions);
    let since = before
        .filter(|condition| condition.type_ == READY && (condition.status == "True") == ready)
        .map(|condition| condition.last_transition_time.clone())
        .next();
    let condition = Condition {
        type_: READY.into(),
        status: if ready { "True" } else { "False" }.into(),
        reason: reason.into(),
        message,
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: offloading.metadata.generation,
    };
    NamespaceOffloadingStatus { clusters, conditions: vec![condition] }
}

/// Whether a namespace has no twin in any cluster, and none is desired.
pub fn is_gone_everywhere(namespace: &str, maps: &[PeerMap<'_>]) -> bool {
    maps.iter().all(|map| cluster(namespace, map).is_none())
}

/// The namespaces reported by a map of this cluster, `us`.
pub fn reported_namespaces(map: &NamespaceMap, us: &ClusterName) -> BTreeSet<String> {
    reports(Some(map), us).into_keys().map(str::to_owned).collect()
}

/// The namespaces with a different report after a change of a map.
pub fn changed_namespaces(
    before: Option<&NamespaceMap>,
    after: Option<&NamespaceMap>,
    us: &ClusterName,
) -> BTreeSet<String> {
    let (before, after) = (reports(before, us), reports(after, us));
    let all = before.keys().chain(after.keys());
    all.filter(|name| before.get(*name) != after.get(*name)).map(|name| (*name).into()).collect()
}

fn reports<'a>(
    map: Option<&'a NamespaceMap>,
    us: &ClusterName,
) -> BTreeMap<&'a str, OffloadedCluster> {
    let Some(peer) = map.and_then(|map| PeerMap::of(map, us)) else {
        return BTreeMap::new();
    };
    let namespaces = peer.map.desired.keys().chain(peer.map.reported.keys());
    namespaces.filter_map(|name| Some((name.as_str(), cluster(name, &peer)?))).collect()
}

const READY: &str = "Ready";

fn cluster(namespace: &str, peer: &PeerMap<'_>) -> Option<OffloadedCluster> {
    let (desired, reported) = (peer.map.desired.get(namespace), peer.map.reported.get(namespace));
    let (name, phase, message) = match (desired, reported) {
        (None, None) => return None,
        (Some(name), Some(current)) if current.remote_namespace == *name => {
            let phase = match current.phase {
                MappingPhase::Accepted => OffloadingPhase::Ready,
                MappingPhase::Refused => OffloadingPhase::Failed,
                MappingPhase::Terminating => OffloadingPhase::Terminating,
            };
            (name, phase, current.message.clone())
        }
        (Some(name), _) => (name, OffloadingPhase::Pending, None),
        // A refused twin never existed.
        (None, Some(current)) if current.phase == MappingPhase::Refused => return None,
        (None, Some(current)) => {
            (&current.remote_namespace, OffloadingPhase::Terminating, current.message.clone())
        }
    };
    Some(OffloadedCluster {
        cluster_id: peer.cluster.clone(),
        remote_namespace_name: Some(name.clone()),
        phase,
        message,
    })
}

fn summary(clusters: &[OffloadedCluster]) -> (bool, &'static str, String) {
    let of = |phase| clusters.iter().filter(move |cluster| cluster.phase == phase);
    if clusters.is_empty() {
        return (false, "NoClusters", "the cluster selector selects no peered cluster".into());
    }
    if let Some(failed) = of(OffloadingPhase::Failed).next() {
        let why = failed.message.as_deref().unwrap_or("no reason given");
        let cluster = &failed.cluster_id;
        return (false, "Refused", format!("cluster {cluster} refuses the namespace: {why}"));
    }
    let ready = of(OffloadingPhase::Ready).count();
    let all = clusters.len();
    let message = format!("{ready} of {all} clusters have the twin namespace");
    if ready == all { (true, "Offloaded", message) } else { (false, "InProgress", message) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn map(desired: &Value, current: &Value) -> NamespaceMap {
        serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
            "metadata": { "name": "rome" }, "spec": { "desiredMapping": desired },
            "status": { "currentMapping": current },
        }))
        .unwrap()
    }

    fn twin(name: &str, phase: &str) -> Value {
        json!({ "shop": { "remoteNamespace": name, "phase": phase, "message": "because" } })
    }

    fn summarized(map: &NamespaceMap) -> (Option<OffloadingPhase>, String) {
        let offloading = serde_json::from_value(json!({
            "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading", "namespace": "shop" }, "spec": {},
        }))
        .unwrap();
        let milan = "milan-id".parse().unwrap();
        let maps = [PeerMap { cluster: milan, map: Map::from_resource(map) }];
        let status = status(&offloading, &maps, jiff::Timestamp::UNIX_EPOCH);
        let condition = &status.conditions[0];
        (
            status.clusters.first().map(|cluster| cluster.phase),
            format!("{} {}", condition.status, condition.reason),
        )
    }

    #[test]
    fn the_phase_follows_the_map() {
        let shop = json!({ "shop": "shop-rome" });
        let phase = |desired: &Value, current| summarized(&map(desired, &current));
        let is = |phase, text: &str| (phase, text.to_owned());
        let (none, some) = (json!({}), &shop);
        assert_eq!(phase(&none, json!({})), is(None, "False NoClusters"));
        assert_eq!(phase(some, json!({})), is(Some(OffloadingPhase::Pending), "False InProgress"));
        assert_eq!(
            phase(some, twin("shop-rome", "Accepted")),
            is(Some(OffloadingPhase::Ready), "True Offloaded")
        );
        assert_eq!(
            phase(some, twin("other", "Accepted")),
            is(Some(OffloadingPhase::Pending), "False InProgress")
        );
        assert_eq!(
            phase(some, twin("shop-rome", "Refused")),
            is(Some(OffloadingPhase::Failed), "False Refused")
        );
        assert_eq!(
            phase(&none, twin("shop-rome", "Accepted")),
            is(Some(OffloadingPhase::Terminating), "False InProgress")
        );
        assert_eq!(phase(&none, twin("shop-rome", "Refused")), is(None, "False NoClusters"));
    }

    #[test]
    fn a_namespace_is_gone_if_no_map_reports_it() {
        let milan = || "milan-id".parse().unwrap();
        let gone = |map: &NamespaceMap| {
            let map = Map::from_resource(map);
            is_gone_everywhere("shop", &[PeerMap { cluster: milan(), map }])
        };
        assert!(gone(&map(&json!({}), &json!({}))));
        assert!(!gone(&map(&json!({}), &twin("shop-rome", "Terminating"))));
        assert!(!gone(&map(&json!({ "shop": "shop-rome" }), &json!({}))));
    }

    #[test]
    fn the_transition_time_changes_only_with_the_status() {
        let milan = "milan-id".parse().unwrap();
        let map = map(&json!({ "shop": "s" }), &json!({}));
        let maps = [PeerMap { cluster: milan, map: Map::from_resource(&map) }];
        let mut offloading: NamespaceOffloading = serde_json::from_value(json!({
            "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading", "namespace": "shop" }, "spec": {},
        }))
        .unwrap();
        let epoch = jiff::Timestamp::UNIX_EPOCH;
        offloading.status = Some(status(&offloading, &maps, epoch));
        let later = status(&offloading, &maps, epoch + jiff::SignedDuration::from_secs(9));
        assert_eq!(Some(later), offloading.status);
    }

    fn rome() -> ClusterName {
        "rome".parse().unwrap()
    }

    fn sent(desired: &Value, current: &Value) -> NamespaceMap {
        let mut map = map(desired, current);
        map.metadata.labels = Some([(REPLICATE_TO_LABEL.into(), "milan-id".into())].into());
        map
    }

    #[test]
    fn a_map_reports_desired_and_remaining_namespaces() {
        let shop = json!({ "shop": "shop-rome" });
        let left = json!({
            "left": { "remoteNamespace": "left-rome", "phase": "Terminating" },
            "bad": { "remoteNamespace": "kube-system", "phase": "Refused" },
        });
        let names =
            |map: &NamespaceMap| reported_namespaces(map, &rome()).into_iter().collect::<Vec<_>>();
        let mut map = sent(&shop, &left);
        assert_eq!(names(&map), ["left", "shop"]);
        map.metadata.name = Some("milan".into());
        assert!(names(&map).is_empty(), "received from a peer, whatever its labels");
    }

    #[test]
    fn a_change_of_a_map_affects_the_namespaces_with_a_different_report() {
        let desired = json!({ "shop": "shop-rome", "web": "web-rome" });
        let (before, after) =
            (sent(&desired, &json!({})), sent(&desired, &twin("shop-rome", "Accepted")));
        let changed = |before, after| -> Vec<String> {
            changed_namespaces(before, after, &rome()).into_iter().collect()
        };
        assert_eq!(changed(Some(&before), Some(&after)), ["shop"]);
        assert!(changed(Some(&after), Some(&after)).is_empty());
        assert_eq!(changed(None, Some(&after)), ["shop", "web"], "new");
        assert_eq!(changed(Some(&after), None), ["shop", "web"], "gone");
        let mut terminating = after.clone();
        terminating.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(changed(Some(&after), Some(&terminating)), ["shop", "web"]);
        let mut other = after.clone();
        other.metadata.name = Some("milan".into());
        assert_eq!(
            changed(Some(&after), Some(&other)),
            ["shop", "web"],
            "not of this cluster any more"
        );
    }
}
