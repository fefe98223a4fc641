//! The next step for a namespace of the home cluster: offloading by its label, and the lifecycle of
//! its NamespaceOffloading.

use k8s_openapi::api::core::v1::Namespace;
use tombolo_api::names::{ENABLED, ENABLED_LABEL, MADE_FOR_ANNOTATION};
use tombolo_api::offloading::NamespaceOffloading;

use super::{PeerMap, is_gone_everywhere};

/// The next step for a namespace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NamespaceStep<'a> {
    /// Create the NamespaceOffloading for the label.
    Create,
    /// Delete the NamespaceOffloading: it was created for the label, which is gone.
    Delete(&'a NamespaceOffloading),
    /// Give virtual nodes access to the namespace, allow its pods on them, and update the status.
    Offload(&'a NamespaceOffloading),
    /// Only update the status: the namespace is being deleted.
    Report(&'a NamespaceOffloading),
    /// Keep new pods off virtual nodes, and update the status. Virtual nodes need their access
    /// until all twins of the namespace are gone.
    Drain(&'a NamespaceOffloading),
    /// Remove the access of virtual nodes and the finalizer of the NamespaceOffloading.
    Release(&'a NamespaceOffloading),
    /// The namespace is not offloaded: keep its pods off virtual nodes.
    NotOffloaded,
}

/// Decides by the namespace, its NamespaceOffloading and all maps that report the namespace.
pub fn namespace_step<'a>(
    namespace: &Namespace,
    offloading: Option<&'a NamespaceOffloading>,
    maps: &[PeerMap<'_>],
) -> NamespaceStep<'a> {
    let meta = &namespace.metadata;
    let label = meta.labels.as_ref().and_then(|labels| labels.get(ENABLED_LABEL));
    let is_enabled = label.is_some_and(|value| value == ENABLED);
    let terminating = meta.deletion_timestamp.is_some();
    let name = meta.name.as_deref().unwrap_or_default();
    match offloading {
        None if is_enabled && !terminating => NamespaceStep::Create,
        None => NamespaceStep::NotOffloaded,
        Some(it) if it.metadata.deletion_timestamp.is_some() => {
            match is_gone_everywhere(name, maps) {
                true => NamespaceStep::Release(it),
                false => NamespaceStep::Drain(it),
            }
        }
        Some(it) if !is_enabled && is_made_for_label(it) => NamespaceStep::Delete(it),
        Some(it) if terminating => NamespaceStep::Report(it),
        Some(it) => NamespaceStep::Offload(it),
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
    use crate::view::Map;

    const DELETED: Option<&str> = Some("2026-01-01T00:00:00Z");

    fn namespace(label: Option<&str>, terminating: Option<&str>) -> Namespace {
        let labels = label.map(|value| json!({ ENABLED_LABEL: value }));
        serde_json::from_value(json!({
            "metadata": { "name": "shop", "labels": labels, "deletionTimestamp": terminating },
        }))
        .unwrap()
    }

    fn offloading(made_for: Option<&str>, terminating: Option<&str>) -> NamespaceOffloading {
        let annotations = made_for.map(|label| json!({ MADE_FOR_ANNOTATION: label }));
        serde_json::from_value(json!({
            "metadata": {
                "name": "offloading", "namespace": "shop",
                "annotations": annotations, "deletionTimestamp": terminating,
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
    fn the_label_creates_and_deletes_a_namespace_offloading() {
        let (with, without) = (namespace(Some("true"), None), namespace(None, None));
        let made = offloading(Some(ENABLED_LABEL), None);
        assert_eq!(step(&with, None), NamespaceStep::Create);
        assert_eq!(step(&with, Some(&made)), NamespaceStep::Offload(&made));
        assert_eq!(step(&without, Some(&made)), NamespaceStep::Delete(&made));
        assert_eq!(step(&without, None), NamespaceStep::NotOffloaded);
        assert_eq!(step(&namespace(Some("false"), None), None), NamespaceStep::NotOffloaded);
        assert_eq!(step(&namespace(Some("true"), DELETED), None), NamespaceStep::NotOffloaded);
    }

    #[test]
    fn a_namespace_offloading_of_the_user_stays_without_the_label() {
        let by_user = offloading(None, None);
        assert_eq!(step(&namespace(None, None), Some(&by_user)), NamespaceStep::Offload(&by_user));
        assert_eq!(
            step(&namespace(None, DELETED), Some(&by_user)),
            NamespaceStep::Report(&by_user)
        );
    }

    #[test]
    fn it_is_released_when_all_twins_are_gone() {
        let map: NamespaceMap = serde_json::from_value(json!({
            "metadata": { "name": "rome" },
            "spec": { "desiredMapping": {} },
            "status": { "currentMapping": {
                "shop": { "remoteNamespace": "shop-rome", "phase": "Terminating" },
            } },
        }))
        .unwrap();
        let left =
            [PeerMap { cluster: "milan-id".parse().unwrap(), map: Map::from_resource(&map) }];
        for namespace in [namespace(None, None), namespace(Some("true"), DELETED)] {
            let terminating = offloading(Some(ENABLED_LABEL), DELETED);
            let drains = namespace_step(&namespace, Some(&terminating), &left);
            assert_eq!(drains, NamespaceStep::Drain(&terminating));
            assert_eq!(step(&namespace, Some(&terminating)), NamespaceStep::Release(&terminating));
        }
    }
}
