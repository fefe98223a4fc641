//! The NamespaceMap that this cluster writes for another one.

use std::collections::BTreeMap;

use tombolo_api::names::REPLICATE_TO_LABEL;
use tombolo_api::offloading::{NamespaceOffloading, NamespaceOffloadingSpec};
use tombolo_api::virtualkubelet::{NamespaceMap, NamespaceMapSpec};
use tombolo_api::{ClusterId, ClusterName};

use super::{MapFate, Target, selects};

/// Whether this cluster has made the map.
pub fn is_ours(map: &NamespaceMap) -> bool {
    replicate_to(map).is_some()
}

/// Whether a map of ours is to be deleted, by what is to be done with the map for its cluster.
pub fn is_left_over(map: &NamespaceMap, fate: MapFate) -> bool {
    is_ours(map) && fate == MapFate::Remove && map.metadata.deletion_timestamp.is_none()
}

/// The map to apply for a cluster. None if the map that is there says so already, or is being
/// deleted: then it is made again once it is gone.
pub fn map_to_apply(
    home: &ClusterName,
    peer: &ClusterId,
    desired: BTreeMap<String, String>,
    have: Option<&NamespaceMap>,
) -> Option<NamespaceMap> {
    let is_done = |have: &NamespaceMap| {
        let leaves = have.metadata.deletion_timestamp.is_some();
        leaves || have.spec.desired_mapping == desired && replicate_to(have) == Some(peer.as_str())
    };
    if have.is_some_and(is_done) {
        return None;
    }
    let mut map = NamespaceMap::new(home.as_str(), NamespaceMapSpec { desired_mapping: desired });
    map.metadata.labels = Some([(REPLICATE_TO_LABEL.to_owned(), peer.to_string())].into());
    Some(map)
}

/// The part of a NamespaceOffloading that maps depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wish<'a> {
    spec: &'a NamespaceOffloadingSpec,
    leaves: bool,
}

impl<'a> Wish<'a> {
    /// What a NamespaceOffloading asks for.
    pub fn of(offloading: &'a NamespaceOffloading) -> Self {
        let leaves = offloading.metadata.deletion_timestamp.is_some();
        Self { spec: &offloading.spec, leaves }
    }

    /// Whether the map for a cluster may depend on it.
    pub fn concerns(&self, target: &Target) -> bool {
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

    fn leaves<K: kube::Resource>(mut object: K) -> K {
        object.meta_mut().deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        object
    }

    fn apply(peer: &str, have: Option<&NamespaceMap>) -> Option<NamespaceMap> {
        map_to_apply(&"rome".parse().unwrap(), &peer.parse().unwrap(), desired(), have)
    }

    #[test]
    fn a_map_is_written_only_if_it_says_something_else() {
        let map = apply("milan-id", None).unwrap();
        assert_eq!(map.metadata.name.as_deref(), Some("rome"));
        assert_eq!(map.spec.desired_mapping, desired());
        assert!(is_ours(&map));
        assert_eq!(apply("milan-id", Some(&map)), None);
        assert!(apply("other-id", Some(&map)).is_some(), "it is for another cluster");
        let mut other = map.clone();
        other.spec.desired_mapping.clear();
        assert!(apply("milan-id", Some(&other)).is_some());
        assert_eq!(apply("milan-id", Some(&leaves(other))), None);
    }

    #[test]
    fn only_our_maps_are_left_over() {
        let map = apply("milan-id", None).unwrap();
        assert!(is_left_over(&map, MapFate::Remove));
        for fate in [MapFate::Keep, MapFate::Drain] {
            assert!(!is_left_over(&map, fate));
        }
        assert!(!is_left_over(&leaves(map.clone()), MapFate::Remove), "it is deleted already");
        let theirs = NamespaceMap::new("milan", map.spec);
        assert!(!is_left_over(&theirs, MapFate::Remove));
    }

    #[test]
    fn a_wish_is_neither_the_status_nor_for_clusters_that_are_not_selected() {
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
        assert!(Wish::of(&all) == Wish::of(&reported));
        assert!(Wish::of(&all) != Wish::of(&selected));
        assert!(Wish::of(&all) != Wish::of(&leaves(all.clone())));
        let in_region = |region: &str| Target {
            node: "liqo-milan".into(),
            labels: [("region".to_owned(), region.to_owned())].into(),
        };
        assert!(Wish::of(&selected).concerns(&in_region("north")));
        assert!(!Wish::of(&selected).concerns(&in_region("south")));
        assert!(Wish::of(&all).concerns(&in_region("south")));
    }
}
