//! The twin namespaces of a peer in this cluster: which to create, which to delete, and the status
//! of its NamespaceMap. Namespaces that are not twins of the peer are never touched.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use tombolo_api::ClusterId;
use tombolo_api::names::{
    AUTH_NAMESPACE, HOME_NAMESPACE_ANNOTATION, NAMESPACE, REMOTE_CLUSTER_ID_LABEL,
};
use tombolo_api::virtualkubelet::{MappingPhase, NamespaceMapStatus, RemoteNamespace};

use crate::view::Map;

/// A desired twin namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Twin {
    /// Name of the namespace in the home cluster.
    pub home: String,
    /// Name of the twin in this cluster.
    pub name: String,
}

/// An existing namespace of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    /// A twin of the peer.
    Twin {
        /// Name of the namespace in the home cluster.
        home: String,
        /// Whether it is being deleted.
        terminating: bool,
    },
    /// Any other namespace.
    Foreign,
}

/// The plan for one NamespaceMap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TwinPlan {
    /// Namespaces to create.
    pub create: Vec<Twin>,
    /// Existing namespaces to keep.
    pub keep: Vec<Twin>,
    /// Names of namespaces to delete.
    pub delete: Vec<String>,
    /// The status of the map.
    pub status: NamespaceMapStatus,
    /// Whether to remove the finalizer: the map is being deleted, and no twin is left.
    pub release: bool,
}

/// The home cluster of a twin namespace.
pub fn home_cluster(namespace: &Namespace) -> Option<ClusterId> {
    let label = namespace.metadata.labels.as_ref()?.get(REMOTE_CLUSTER_ID_LABEL)?;
    home_namespace(namespace).and_then(|_| label.parse().ok())
}

fn home_namespace(namespace: &Namespace) -> Option<&String> {
    namespace.metadata.annotations.as_ref()?.get(HOME_NAMESPACE_ANNOTATION)
}

/// Classifies a namespace as a twin of this home cluster or not.
pub fn classify(namespace: &Namespace, home: &ClusterId) -> Existing {
    let is_of_home = home_cluster(namespace).as_ref() == Some(home);
    match home_namespace(namespace).filter(|_| is_of_home) {
        Some(name) => Existing::Twin {
            home: name.clone(),
            terminating: namespace.metadata.deletion_timestamp.is_some(),
        },
        None => Existing::Foreign,
    }
}

/// The plan for a map received from a peer. `existing` has all twins of the peer and every other
/// namespace whose name is in the map.
pub fn twins(map: &Map<'_>, existing: &BTreeMap<String, Existing>) -> TwinPlan {
    let mut plan = TwinPlan::default();
    let mut wanted = BTreeSet::new();
    for (home, name) in map.desired {
        let twin = || Twin { home: home.clone(), name: name.clone() };
        let (phase, message) = match existing.get(name) {
            _ if is_reserved(name) => {
                refused(format!("the name {name} is reserved: choose another one"))
            }
            _ if wanted.contains(name) => refused(format!(
                "{name} is already the twin of another namespace of the same cluster"
            )),
            Some(Existing::Twin { home: other, .. }) if other != home => refused(format!(
                "{name} is already the twin of the namespace {other} of the same cluster"
            )),
            Some(Existing::Foreign) => refused(format!(
                "the namespace {name} exists already and is not a twin: choose another name or \
                 delete it"
            )),
            Some(Existing::Twin { terminating: true, .. }) => {
                wanted.insert(name);
                (MappingPhase::Terminating, None)
            }
            Some(Existing::Twin { terminating: false, .. }) => {
                wanted.insert(name);
                plan.keep.push(twin());
                (MappingPhase::Accepted, None)
            }
            None => {
                wanted.insert(name);
                plan.create.push(twin());
                continue;
            }
        };
        plan.status.current_mapping.insert(home.clone(), remote(name, phase, message));
    }
    for (name, existing) in existing {
        let Existing::Twin { home, terminating } = existing else { continue };
        if wanted.contains(name) {
            continue;
        }
        if !terminating {
            plan.delete.push(name.clone());
        }
        let gone = || remote(name, MappingPhase::Terminating, None);
        plan.status.current_mapping.entry(home.clone()).or_insert_with(gone);
    }
    plan.release = map.is_deleted && plan.status.current_mapping.is_empty();
    plan
}

fn remote(name: &str, phase: MappingPhase, message: Option<String>) -> RemoteNamespace {
    RemoteNamespace { remote_namespace: name.to_owned(), phase, message }
}

fn refused(message: String) -> (MappingPhase, Option<String>) {
    (MappingPhase::Refused, Some(message))
}

/// Names that no twin may have, even if there is no such namespace.
fn is_reserved(name: &str) -> bool {
    [NAMESPACE, AUTH_NAMESPACE, "default"].contains(&name)
        || name.starts_with("kube-")
        || name.starts_with("liqo-tenant-")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tombolo_api::virtualkubelet::NamespaceMap;

    use super::*;

    fn twins(map: &NamespaceMap, existing: &BTreeMap<String, Existing>) -> TwinPlan {
        super::twins(&Map::from_resource(map), existing)
    }

    fn map(desired: &Value, terminating: bool) -> NamespaceMap {
        serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
            "metadata": {
                "name": "rome", "deletionTimestamp": terminating.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "desiredMapping": desired },
        }))
        .unwrap()
    }

    fn there(namespaces: &[(&str, Existing)]) -> BTreeMap<String, Existing> {
        namespaces.iter().map(|(name, what)| ((*name).to_owned(), what.clone())).collect()
    }

    fn twin_of(home: &str, terminating: bool) -> Existing {
        Existing::Twin { home: home.into(), terminating }
    }

    fn phases(plan: &TwinPlan) -> Vec<(&str, &str, MappingPhase)> {
        let current = plan.status.current_mapping.iter();
        current.map(|(home, twin)| (home.as_str(), &*twin.remote_namespace, twin.phase)).collect()
    }

    #[test]
    fn a_missing_twin_is_created_and_then_accepted() {
        let map = map(&json!({ "shop": "shop-rome" }), false);
        let twin = Twin { home: "shop".into(), name: "shop-rome".into() };
        let plan = twins(&map, &there(&[]));
        assert_eq!((plan.create.as_slice(), phases(&plan)), ([twin.clone()].as_slice(), vec![]));
        let plan = twins(&map, &there(&[("shop-rome", twin_of("shop", false))]));
        assert_eq!(plan.keep, [twin]);
        assert_eq!(phases(&plan), [("shop", "shop-rome", MappingPhase::Accepted)]);
    }

    #[test]
    fn other_namespaces_are_refused_and_never_touched() {
        for existing in [Existing::Foreign, twin_of("other", false)] {
            let desired = json!({ "shop": "mine", "other": "mine" });
            let plan = twins(&map(&desired, false), &there(&[("mine", existing.clone())]));
            assert!(plan.create.is_empty() && plan.delete.is_empty());
            let refused = &plan.status.current_mapping["shop"];
            assert_eq!(refused.phase, MappingPhase::Refused);
            assert!(refused.message.is_some());
        }
        assert!(
            twins(&map(&json!({}), true), &there(&[("mine", Existing::Foreign)])).delete.is_empty()
        );
    }

    #[test]
    fn reserved_names_are_refused() {
        for name in ["kube-system", "kube-x", "liqo", "liqo-auth", "liqo-tenant-x", "default"] {
            let plan = twins(&map(&json!({ "shop": name }), false), &there(&[]));
            assert_eq!(plan.create, []);
            assert_eq!(phases(&plan), [("shop", name, MappingPhase::Refused)]);
        }
    }

    #[test]
    fn undesired_twins_are_deleted() {
        let there = there(&[
            ("a", twin_of("shop", false)),
            ("b", twin_of("old", true)),
            ("c", Existing::Foreign),
        ]);
        for map in [map(&json!({}), false), map(&json!({ "shop": "a", "new": "n" }), true)] {
            let plan = twins(&map, &there);
            assert_eq!(plan.delete, ["a"]);
            assert!(plan.create.is_empty());
            assert!(!plan.release, "twins are left");
            assert_eq!(
                phases(&plan),
                [("old", "b", MappingPhase::Terminating), ("shop", "a", MappingPhase::Terminating)]
            );
        }
    }

    #[test]
    fn a_terminating_map_is_released_when_no_twin_is_left() {
        let desired = json!({ "shop": "a" });
        let foreign = there(&[("a", Existing::Foreign)]);
        assert!(twins(&map(&desired, true), &foreign).release);
        assert!(!twins(&map(&desired, false), &there(&[])).release);
    }

    #[test]
    fn a_terminating_twin_is_created_again_only_when_it_is_gone() {
        let plan =
            twins(&map(&json!({ "shop": "a" }), false), &there(&[("a", twin_of("shop", true))]));
        assert!(plan.create.is_empty() && plan.delete.is_empty());
        assert_eq!(phases(&plan), [("shop", "a", MappingPhase::Terminating)]);
    }

    #[test]
    fn only_a_namespace_with_label_and_annotation_is_a_twin() {
        let namespace = |meta: Value| -> Namespace {
            serde_json::from_value(json!({ "metadata": meta })).unwrap()
        };
        let rome = "rome-id".parse().unwrap();
        let (label, annotation) = (REMOTE_CLUSTER_ID_LABEL, HOME_NAMESPACE_ANNOTATION);
        let both = json!({ "labels": { label: "rome-id" }, "annotations": { annotation: "shop" } });
        assert_eq!(home_cluster(&namespace(both.clone())).as_ref(), Some(&rome));
        assert_eq!(classify(&namespace(both), &rome), twin_of("shop", false));
        let other = json!({ "labels": { label: "other" }, "annotations": { annotation: "shop" } });
        assert_eq!(classify(&namespace(other), &rome), Existing::Foreign);
        let label_only = json!({ "labels": { label: "rome-id" } });
        assert_eq!(home_cluster(&namespace(label_only.clone())), None);
        assert_eq!(classify(&namespace(label_only), &rome), Existing::Foreign);
    }
}
