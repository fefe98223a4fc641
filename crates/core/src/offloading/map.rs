//! The NamespaceMap of this cluster for a peer.

use std::collections::BTreeMap;

use tombolo_api::names::REPLICATE_TO_LABEL;
use tombolo_api::offloading::{NamespaceOffloading, NamespaceOffloadingSpec};
use tombolo_api::virtualkubelet::{NamespaceMap, NamespaceMapSpec};
use tombolo_api::{ClusterId, ClusterName};

use super::{MapAction, Target, selects};
use crate::view::Map;

/// Whether to delete a map of this cluster: only if that has not happened yet.
pub fn must_be_deleted(map: &Map<'_>, action: MapAction) -> bool {
    action == MapAction::Remove && !map.is_deleted
}

/// The map to apply for a peer. `None` if the existing one needs no change, or is being deleted: it
/// is created again once it is gone.
pub fn map_to_apply(
    home: &ClusterName,
    peer: &ClusterId,
    desired: BTreeMap<String, String>,
    have: Option<&NamespaceMap>,
) -> Option<NamespaceMap> {
    let is_done = |have: &NamespaceMap| {
        let map = Map::from_resource(have);
        map.is_deleted || *map.desired == desired && replicate_to(have) == Some(peer.as_str())
    };
    if have.is_some_and(is_done) {
        return None;
    }
    let mut map = NamespaceMap::new(home.as_str(), NamespaceMapSpec { desired_mapping: desired });
    map.metadata.labels = Some([(REPLICATE_TO_LABEL.to_owned(), peer.to_string())].into());
    Some(map)
}

/// The part of a NamespaceOffloading on which maps depend.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MapInput<'a> {
    spec: &'a NamespaceOffloadingSpec,
    terminating: bool,
}

impl<'a> MapInput<'a> {
    /// The input from a NamespaceOffloading.
    pub fn of(offloading: &'a NamespaceOffloading) -> Self {
        let terminating = offloading.metadata.deletion_timestamp.is_some();
        Self { spec: &offloading.spec, terminating }
    }

    /// Whether the map for a cluster may depend on this input.
    pub fn affects(&self, target: &Target) -> bool {
        selects(self.spec.cluster_selector.as_ref(), target)
    }
}

fn replicate_to(map: &NamespaceMap) -> Option<&str> {
    map.metadata.labels.as_ref()?.get(REPLICATE_TO_LABEL).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn desired() -> BTreeMap<String, String> {
        [("shop".to_owned(), "shop-rome".to_owned())].into()
    }

    fn terminating<K: kube::Resource>(mut object: K) -> K {
        object.meta_mut().deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        object
    }

    fn apply(peer: &str, have: Option<&NamespaceMap>) -> Option<NamespaceMap> {
        map_to_apply(&"rome".parse().unwrap(), &peer.parse().unwrap(), desired(), have)
    }

    #[test]
    fn a_map_is_applied_only_if_it_differs() {
        let map = apply("milan-id", None).unwrap();
        assert_eq!(map.metadata.name.as_deref(), Some("rome"));
        assert_eq!(map.spec.desired_mapping, desired());
        assert_eq!(apply("milan-id", Some(&map)), None);
        assert!(apply("other-id", Some(&map)).is_some(), "another peer");
        let mut other = map.clone();
        other.spec.desired_mapping.clear();
        assert!(apply("milan-id", Some(&other)).is_some());
        assert_eq!(apply("milan-id", Some(&terminating(other))), None);
    }

    #[test]
    fn a_map_is_deleted_once() {
        let map = apply("milan-id", None).unwrap();
        let must_be_deleted =
            |map: &NamespaceMap, action| must_be_deleted(&Map::from_resource(map), action);
        assert!(must_be_deleted(&map, MapAction::Remove));
        for action in [MapAction::Keep, MapAction::Drain] {
            assert!(!must_be_deleted(&map, action));
        }
        assert!(!must_be_deleted(&terminating(map), MapAction::Remove), "it is deleted already");
    }

    #[test]
    fn maps_depend_on_the_spec_and_only_for_selected_clusters() {
        let offloading = |spec: Value, status: Value| -> NamespaceOffloading {
            serde_json::from_value(json!({
                "metadata": { "name": "offloading", "namespace": "shop" },
                "spec": spec, "status": status,
            }))
            .unwrap()
        };
        let north = json!({ "clusterSelector": { "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "region", "operator": "In", "values": ["north"] },
        ] }] } });
        let all = offloading(json!({}), json!({}));
        let reported = offloading(
            json!({}),
            json!({ "clusters": [{ "clusterID": "milan-id", "phase": "Ready" }] }),
        );
        let selected = offloading(north, json!({}));
        assert!(MapInput::of(&all) == MapInput::of(&reported));
        assert!(MapInput::of(&all) != MapInput::of(&selected));
        assert!(MapInput::of(&all) != MapInput::of(&terminating(all.clone())));
        let in_region = |region: &str| Target {
            node: "liqo-milan".into(),
            labels: [("region".to_owned(), region.to_owned())].into(),
        };
        assert!(MapInput::of(&selected).affects(&in_region("north")));
        assert!(!MapInput::of(&selected).affects(&in_region("south")));
        assert!(MapInput::of(&all).affects(&in_region("south")));
    }
}
