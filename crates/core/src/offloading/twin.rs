//! The namespaces that stand, in this cluster, for those of another: which to make, which to
//! remove, and what to tell the other cluster. A namespace that is no twin of it is never touched.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use tombolo_api::ClusterId;
use tombolo_api::names::{
    AUTH_NAMESPACE, HOME_NAMESPACE_ANNOTATION, NAMESPACE, REMOTE_CLUSTER_ID_LABEL,
};
use tombolo_api::virtualkubelet::{
    MappingPhase, NamespaceMap, NamespaceMapStatus, RemoteNamespace,
};

use crate::{identity::Stage, view::Offer};

/// A namespace to have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Twin {
    /// Name of the namespace in the home cluster.
    pub home: String,
    /// Name of the namespace in this one.
    pub name: String,
}

/// A namespace of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Existing {
    /// It stands for a namespace of the cluster in question.
    Twin {
        /// Name of the namespace in the home cluster.
        home: String,
        /// Whether it is on its way out.
        leaves: bool,
    },
    /// It is somebody else's.
    Foreign,
}

/// What to do for one NamespaceMap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TwinPlan {
    /// Namespaces to make.
    pub make: Vec<Twin>,
    /// Namespaces that are there, and whose contents are to be kept.
    pub keep: Vec<Twin>,
    /// Names of the namespaces to delete.
    pub delete: Vec<String>,
    /// What the map's status says, as things are.
    pub status: NamespaceMapStatus,
}

/// What a namespace is to a cluster.
pub fn is_twin(namespace: &Namespace, home: &ClusterId) -> Existing {
    let meta = &namespace.metadata;
    let label = meta.labels.as_ref().and_then(|labels| labels.get(REMOTE_CLUSTER_ID_LABEL));
    let annotation = meta.annotations.as_ref().and_then(|a| a.get(HOME_NAMESPACE_ANNOTATION));
    match (label, annotation) {
        (Some(id), Some(name)) if id == home.as_str() => {
            Existing::Twin { home: name.clone(), leaves: meta.deletion_timestamp.is_some() }
        }
        _ => Existing::Foreign,
    }
}

/// Whether a map that a cluster has sent is to go, with the twins, though its sender keeps it: no pods of
/// that cluster may run here any more. `offer` is what it was lent; it goes as soon as the other cluster
/// has taken its pods back, and for that it has some time.
pub fn is_outstayed(stage: Stage, offer: Option<&Offer<'_>>, now: Timestamp) -> bool {
    let is_over = |offer: &Offer<'_>| {
        offer.deleted.is_some_and(|end| now.duration_since(end) >= TIME_TO_LEAVE)
    };
    stage < Stage::Hosted && offer.is_none_or(is_over)
}

/// How long a cluster may take to end its pods here.
const TIME_TO_LEAVE: SignedDuration = SignedDuration::from_mins(5);

/// Decides for the map that a cluster has sent. `existing` has all twins of that cluster and every
/// other namespace with a name that the map asks for.
pub fn twins(map: &NamespaceMap, existing: &BTreeMap<String, Existing>) -> TwinPlan {
    let none = BTreeMap::new();
    let leaves = map.metadata.deletion_timestamp.is_some();
    let desired = if leaves { &none } else { &map.spec.desired_mapping };
    let mut plan = TwinPlan::default();
    let mut wanted = BTreeSet::new();
    for (home, name) in desired {
        let twin = || Twin { home: home.clone(), name: name.clone() };
        let (phase, message) = match existing.get(name) {
            _ if is_reserved(name) => refused(format!(
                "the name {name} is kept for the cluster itself: choose another one"
            )),
            _ if wanted.contains(name) => {
                refused(format!("{name} already stands for another namespace of the same cluster"))
            }
            Some(Existing::Twin { home: other, .. }) if other != home => refused(format!(
                "{name} already stands for the namespace {other} of the same cluster"
            )),
            Some(Existing::Foreign) => refused(format!(
                "there is a namespace {name} already, which was not made for this: choose \
                 another name or remove it"
            )),
            Some(Existing::Twin { leaves: true, .. }) => {
                wanted.insert(name);
                (MappingPhase::Terminating, None)
            }
            Some(Existing::Twin { leaves: false, .. }) => {
                wanted.insert(name);
                plan.keep.push(twin());
                (MappingPhase::Accepted, None)
            }
            None => {
                wanted.insert(name);
                plan.make.push(twin());
                continue;
            }
        };
        plan.status.current_mapping.insert(home.clone(), remote(name, phase, message));
    }
    for (name, existing) in existing {
        let Existing::Twin { home, leaves } = existing else { continue };
        if wanted.contains(name) {
            continue;
        }
        if !leaves {
            plan.delete.push(name.clone());
        }
        let gone = || remote(name, MappingPhase::Terminating, None);
        plan.status.current_mapping.entry(home.clone()).or_insert_with(gone);
    }
    plan
}

fn remote(name: &str, phase: MappingPhase, message: Option<String>) -> RemoteNamespace {
    RemoteNamespace { remote_namespace: name.to_owned(), phase, message }
}

fn refused(message: String) -> (MappingPhase, Option<String>) {
    (MappingPhase::Refused, Some(message))
}

/// Names that nobody from outside gets, also while there is no such namespace.
fn is_reserved(name: &str) -> bool {
    [NAMESPACE, AUTH_NAMESPACE, "default"].contains(&name)
        || name.starts_with("kube-")
        || name.starts_with("liqo-tenant-")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tombolo_api::sharing::ResourceOffer;

    use super::*;

    fn map(desired: &Value, leaves: bool) -> NamespaceMap {
        serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
            "metadata": {
                "name": "rome", "deletionTimestamp": leaves.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "desiredMapping": desired },
        }))
        .unwrap()
    }

    #[test]
    fn who_is_no_guest_any_more_has_some_time_to_leave() {
        let at = |time: &str| format!("2026-01-01T{time}Z").parse().unwrap();
        let offer = |ends: Option<&str>| -> ResourceOffer {
            serde_json::from_value(json!({
                "metadata": { "name": "milan", "deletionTimestamp": ends },
                "spec": { "clusterID": "m", "resourceQuota": { "hard": {} } },
            }))
            .unwrap()
        };
        let (stays, leaves) = (offer(None), offer(Some("2026-01-01T12:00:00Z")));
        let (stays, leaves) = (Offer::from_resource(&stays), Offer::from_resource(&leaves));
        for stage in [Stage::Known, Stage::Peered] {
            assert!(is_outstayed(stage, None, at("12:00:00")), "it has taken its pods back");
            assert!(!is_outstayed(stage, Some(&stays), at("12:00:00")), "nobody has told it yet");
            assert!(!is_outstayed(stage, Some(&leaves), at("12:04:59")));
            assert!(is_outstayed(stage, Some(&leaves), at("12:05:00")));
        }
        for offer in [None, Some(&leaves), Some(&stays)] {
            assert!(!is_outstayed(Stage::Hosted, offer, at("13:00:00")));
        }
    }

    fn there(namespaces: &[(&str, Existing)]) -> BTreeMap<String, Existing> {
        namespaces.iter().map(|(name, what)| ((*name).to_owned(), what.clone())).collect()
    }

    fn twin_of(home: &str, leaves: bool) -> Existing {
        Existing::Twin { home: home.into(), leaves }
    }

    fn phases(plan: &TwinPlan) -> Vec<(&str, &str, MappingPhase)> {
        let current = plan.status.current_mapping.iter();
        current.map(|(home, twin)| (home.as_str(), &*twin.remote_namespace, twin.phase)).collect()
    }

    #[test]
    fn what_is_missing_is_made_and_then_accepted() {
        let map = map(&json!({ "shop": "shop-rome" }), false);
        let twin = Twin { home: "shop".into(), name: "shop-rome".into() };
        let plan = twins(&map, &there(&[]));
        assert_eq!((plan.make.as_slice(), phases(&plan)), ([twin.clone()].as_slice(), vec![]));
        let plan = twins(&map, &there(&[("shop-rome", twin_of("shop", false))]));
        assert_eq!(plan.keep, [twin]);
        assert_eq!(phases(&plan), [("shop", "shop-rome", MappingPhase::Accepted)]);
    }

    #[test]
    fn what_is_somebody_elses_is_refused_and_never_touched() {
        for existing in [Existing::Foreign, twin_of("other", false)] {
            let desired = json!({ "shop": "mine", "other": "mine" });
            let plan = twins(&map(&desired, false), &there(&[("mine", existing.clone())]));
            assert!(plan.make.is_empty() && plan.delete.is_empty());
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
            assert_eq!(plan.make, []);
            assert_eq!(phases(&plan), [("shop", name, MappingPhase::Refused)]);
        }
    }

    #[test]
    fn what_nobody_asks_for_any_more_goes() {
        let there = there(&[
            ("a", twin_of("shop", false)),
            ("b", twin_of("old", true)),
            ("c", Existing::Foreign),
        ]);
        for map in [map(&json!({}), false), map(&json!({ "shop": "a", "new": "n" }), true)] {
            let plan = twins(&map, &there);
            assert_eq!(plan.delete, ["a"]);
            assert!(plan.make.is_empty());
            assert_eq!(
                phases(&plan),
                [("old", "b", MappingPhase::Terminating), ("shop", "a", MappingPhase::Terminating)]
            );
        }
    }

    #[test]
    fn what_is_on_its_way_out_is_made_again_only_when_it_is_gone() {
        let plan =
            twins(&map(&json!({ "shop": "a" }), false), &there(&[("a", twin_of("shop", true))]));
        assert!(plan.make.is_empty() && plan.delete.is_empty());
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
        assert_eq!(is_twin(&namespace(both), &rome), twin_of("shop", false));
        let other = json!({ "labels": { label: "other" }, "annotations": { annotation: "shop" } });
        assert_eq!(is_twin(&namespace(other), &rome), Existing::Foreign);
        let label_only = json!({ "labels": { label: "rome-id" } });
        assert_eq!(is_twin(&namespace(label_only), &rome), Existing::Foreign);
    }
}
