//! What to do for one namespace of the home cluster: the quick way by a label, and the life of its
//! NamespaceOffloading.

use k8s_openapi::api::core::v1::Namespace;
use tombolo_api::names::{ENABLED, ENABLED_LABEL, MADE_FOR_ANNOTATION};
use tombolo_api::offloading::NamespaceOffloading;

use super::{PeerMap, is_gone_everywhere};

/// The next step for a namespace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NamespaceStep<'a> {
    /// Make the NamespaceOffloading that the label stands for.
    Create,
    /// Delete the NamespaceOffloading, which was made for a label that is gone.
    Delete(&'a NamespaceOffloading),
    /// Let virtual nodes read the namespace, let its pods be scheduled to them, and report.
    Establish(&'a NamespaceOffloading),
    /// Only report: the namespace is being deleted.
    Report(&'a NamespaceOffloading),
    /// Keep new pods in this cluster, and report. Virtual nodes need their rights until nothing is
    /// left of the namespace in other clusters.
    Drain(&'a NamespaceOffloading),
    /// Take the rights of virtual nodes away, and let the NamespaceOffloading go.
    Release(&'a NamespaceOffloading),
    /// The namespace is not offloaded: its pods are not to be scheduled to virtual nodes.
    Leave,
}

/// Decides by all maps that report the namespace.
pub fn namespace_step<'a>(
    namespace: &Namespace,
    offloading: Option<&'a NamespaceOffloading>,
    maps: &[PeerMap<'_>],
) -> NamespaceStep<'a> {
    let meta = &namespace.metadata;
    let label = meta.labels.as_ref().and_then(|labels| labels.get(ENABLED_LABEL));
    let is_enabled = label.is_some_and(|value| value == ENABLED);
    let leaves = meta.deletion_timestamp.is_some();
    let name = meta.name.as_deref().unwrap_or_default();
    match offloading {
        None if is_enabled && !leaves => NamespaceStep::Create,
        None => NamespaceStep::Leave,
        Some(it) if it.metadata.deletion_timestamp.is_some() => {
            match is_gone_everywhere(name, maps) {
                true => NamespaceStep::Release(it),
                false => NamespaceStep::Drain(it),
            }
        }
        Some(it) if !is_enabled && is_made_for_label(it) => NamespaceStep::Delete(it),
        Some(it) if leaves => NamespaceStep::Report(it),
        Some(it) => NamespaceStep::Establish(it),
    }
}

fn is_made_for_label(offloading: &NamespaceOffloading) -> bool {
    let annotations = offloading.metadata.annotations.as_ref();
    annotations.is_some_and(|annotations| annotations.contains_key(MADE_FOR_ANNOTATION))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::virtualkubelet::NamespaceMap;

    use super::*;

    const LEAVES: Option<&str> = Some("2026-01-01T00:00:00Z");

    fn namespace(label: Option<&str>, leaves: Option<&str>) -> Namespace {
        let labels = label.map(|value| json!({ ENABLED_LABEL: value }));
        serde_json::from_value(json!({
            "metadata": { "name": "shop", "labels": labels, "deletionTimestamp": leaves },
        }))
        .unwrap()
    }

    fn offloading(made_for: Option<&str>, leaves: Option<&str>) -> NamespaceOffloading {
        let annotations = made_for.map(|label| json!({ MADE_FOR_ANNOTATION: label }));
        serde_json::from_value(json!({
            "metadata": {
                "name": "offloading", "namespace": "shop",
                "annotations": annotations, "deletionTimestamp": leaves,
            },
            "spec": {},
        }))
        .unwrap()
    }

    fn step<'a>(
        namespace: &Namespace,
        offloading: Option<&'a NamespaceOffloading>,
    ) -> NamespaceStep<'a> {
        namespace_step(namespace, offloading, &[])
    }

    #[test]
    fn the_label_makes_a_namespace_offloading_and_takes_it_away() {
        let (with, without) = (namespace(Some("true"), None), namespace(None, None));
        let made = offloading(Some(ENABLED_LABEL), None);
        assert_eq!(step(&with, None), NamespaceStep::Create);
        assert_eq!(step(&with, Some(&made)), NamespaceStep::Establish(&made));
        assert_eq!(step(&without, Some(&made)), NamespaceStep::Delete(&made));
        assert_eq!(step(&without, None), NamespaceStep::Leave);
        assert_eq!(step(&namespace(Some("false"), None), None), NamespaceStep::Leave);
        assert_eq!(step(&namespace(Some("true"), LEAVES), None), NamespaceStep::Leave);
    }

    #[test]
    fn what_a_user_made_stays_without_the_label() {
        let users = offloading(None, None);
        assert_eq!(step(&namespace(None, None), Some(&users)), NamespaceStep::Establish(&users));
        assert_eq!(step(&namespace(None, LEAVES), Some(&users)), NamespaceStep::Report(&users));
    }

    #[test]
    fn it_goes_when_nothing_is_left_in_other_clusters() {
        let map: NamespaceMap = serde_json::from_value(json!({
            "metadata": { "name": "rome" },
            "spec": { "desiredMapping": {} },
            "status": { "currentMapping": {
                "shop": { "remoteNamespace": "shop-rome", "phase": "Terminating" },
            } },
        }))
        .unwrap();
        let left = [PeerMap { cluster: "milan-id".parse().unwrap(), map: &map }];
        for namespace in [namespace(None, None), namespace(Some("true"), LEAVES)] {
            let leaves = offloading(Some(ENABLED_LABEL), LEAVES);
            let drains = namespace_step(&namespace, Some(&leaves), &left);
            assert_eq!(drains, NamespaceStep::Drain(&leaves));
            assert_eq!(step(&namespace, Some(&leaves)), NamespaceStep::Release(&leaves));
        }
    }
}
