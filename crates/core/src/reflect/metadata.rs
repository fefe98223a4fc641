//! The metadata of reflected objects: their origin, their destination, and the labels for both.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tombolo_api::ClusterId;
use tombolo_api::names::{DESTINATION_LABEL, ORIGIN_LABEL};

/// The origin and the destination of reflected objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReflectionRoute {
    /// The home cluster.
    pub origin: ClusterId,
    /// The remote cluster.
    pub destination: ClusterId,
    /// The twin namespace.
    pub namespace: String,
}

/// The metadata of a reflected object.
pub fn reflected(home: &ObjectMeta, route: &ReflectionRoute) -> ObjectMeta {
    let mut labels = kept(home.labels.as_ref());
    labels.insert(ORIGIN_LABEL.into(), route.origin.to_string());
    labels.insert(DESTINATION_LABEL.into(), route.destination.to_string());
    let annotations = kept(home.annotations.as_ref());
    ObjectMeta {
        name: home.name.clone(),
        namespace: Some(route.namespace.clone()),
        labels: Some(labels),
        annotations: (!annotations.is_empty()).then_some(annotations),
        ..ObjectMeta::default()
    }
}

/// Whether an object in the remote cluster was reflected from this origin.
pub fn is_from(object: &ObjectMeta, origin: &ClusterId) -> bool {
    let origin_of = object.labels.as_ref().and_then(|labels| labels.get(ORIGIN_LABEL));
    origin_of.is_some_and(|id| id == origin.as_str())
}

/// The labels or annotations to reflect: all but those of the product and of tools.
fn kept(map: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let map = map.into_iter().flatten();
    let kept = map.filter(|(key, _)| !is_bookkeeping(key));
    kept.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn is_bookkeeping(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    domain == "liqo.io"
        || domain.ends_with(".liqo.io")
        || domain == "kubectl.kubernetes.io"
        || key == "endpoints.kubernetes.io/last-change-trigger-time"
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub fn to_milan() -> ReflectionRoute {
        ReflectionRoute {
            origin: "rome-id".parse().unwrap(),
            destination: "milan-id".parse().unwrap(),
            namespace: "shop-rome".into(),
        }
    }

    #[test]
    fn labels_and_annotations_are_reflected_except_bookkeeping() {
        let home: ObjectMeta = serde_json::from_value(json!({
            "name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7",
            "finalizers": ["x"], "ownerReferences": [],
            "labels": { "app": "web", "liqo.io/type": "x", "virtualkubelet.liqo.io/origin": "y" },
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
                "endpoints.kubernetes.io/last-change-trigger-time": "now",
                "team": "a",
            },
        }))
        .unwrap();
        let there = reflected(&home, &to_milan());
        assert_eq!(
            serde_json::to_value(&there).unwrap(),
            json!({
                "name": "web", "namespace": "shop-rome",
                "labels": {
                    "app": "web",
                    "virtualkubelet.liqo.io/origin": "rome-id",
                    "virtualkubelet.liqo.io/destination": "milan-id",
                },
                "annotations": { "team": "a" },
            })
        );
        assert!(is_from(&there, &"rome-id".parse().unwrap()));
        assert!(!is_from(&home, &"rome-id".parse().unwrap()));
    }
}
