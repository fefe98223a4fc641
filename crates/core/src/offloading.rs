//! Offloading of namespaces: the selected clusters and the names of the twin namespaces.

mod map;
mod namespace;
mod received;
mod selector;
mod status;
mod twin;

use std::collections::BTreeMap;

use tombolo_api::names::{TYPE_LABEL, VIRTUAL_NODE, default_remote_namespace};
use tombolo_api::offloading::{
    NamespaceMappingStrategy, NamespaceOffloading, NamespaceOffloadingSpec,
};
use tombolo_api::{ClusterIdentity, ClusterName};

use crate::{digest, node, offer_stage::OfferStage, view::Offer};

pub use map::{MapInput, map_to_apply, must_be_deleted};
pub use namespace::{NamespaceStep, namespace_step};
pub use received::{ReceivedMapStep, deletion_due_in, received_map_step};
pub use selector::selects;
pub use status::{PeerMap, changed_namespaces, is_gone_everywhere, reported_namespaces, status};
pub use twin::{Existing, Twin, TwinPlan, classify, home_cluster, twins};

/// A cluster for offloading, as cluster selectors see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of its virtual node.
    pub node: String,
    /// Labels of its virtual node.
    pub labels: BTreeMap<String, String>,
}

/// The next action for the NamespaceMap of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapAction {
    /// Apply the desired mapping.
    Keep,
    /// Leave it unchanged: the virtual node is being drained, and its pods need their namespaces.
    Drain,
    /// Delete it.
    Remove,
}

/// Decides on the NamespaceMap of a cluster by its offer.
pub fn map_action(offer: Option<&Offer<'_>>) -> MapAction {
    match offer.map(|offer| offer.stage) {
        Some(OfferStage::Serving) => MapAction::Keep,
        Some(OfferStage::Draining(_)) => MapAction::Drain,
        Some(OfferStage::Pending | OfferStage::Over(_)) | None => MapAction::Remove,
    }
}

/// A cluster as selectors see it: with the labels of its virtual node, `node`, or with those of
/// its offer while there is no node.
pub fn target(
    peer: &ClusterIdentity,
    offer: &Offer<'_>,
    node: Option<&BTreeMap<String, String>>,
) -> Target {
    let name = node::name(peer, Some(offer));
    let announced = || {
        let mut labels = offer.labels.clone();
        labels.insert(TYPE_LABEL.into(), VIRTUAL_NODE.into());
        labels.insert("kubernetes.io/hostname".into(), name.clone());
        labels
    };
    Target { labels: node.cloned().unwrap_or_else(announced), node: name }
}

/// Name of the twin namespace in remote clusters.
pub fn remote_namespace(
    namespace: &str,
    spec: &NamespaceOffloadingSpec,
    home: &ClusterName,
) -> String {
    match (spec.namespace_mapping_strategy, &spec.remote_namespace_name) {
        (NamespaceMappingStrategy::EnforceSameName, _) => namespace.to_owned(),
        (NamespaceMappingStrategy::SelectedName, Some(name)) => name.clone(),
        _ => shortened(default_remote_namespace(namespace, home)),
    }
}

/// The desired mapping for a cluster: twin namespaces by home namespace. A twin has one home
/// namespace: the current one in `now`, otherwise the first by name.
pub fn desired_mapping<'a>(
    offloadings: impl IntoIterator<Item = &'a NamespaceOffloading>,
    target: &Target,
    home: &ClusterName,
    now: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let wanted: BTreeMap<&str, String> = offloadings
        .into_iter()
        .filter(|offloading| offloading.metadata.deletion_timestamp.is_none())
        .filter(|offloading| selects(offloading.spec.cluster_selector.as_ref(), target))
        .filter_map(|offloading| {
            let namespace = offloading.metadata.namespace.as_deref()?;
            Some((namespace, remote_namespace(namespace, &offloading.spec, home)))
        })
        .collect();
    let keeps = |(namespace, remote): &(&&str, &String)| now.get(**namespace) == Some(*remote);
    let mut owner: BTreeMap<&str, &str> = BTreeMap::new();
    for (namespace, remote) in wanted.iter().filter(keeps).chain(&wanted) {
        owner.entry(remote).or_insert(namespace);
    }
    owner.into_iter().map(|(remote, home)| (home.to_owned(), remote.to_owned())).collect()
}

/// Maximum length of the name of a namespace.
const MAX_NAME_LENGTH: usize = 63;

fn shortened(name: String) -> String {
    if name.len() <= MAX_NAME_LENGTH {
        return name;
    }
    let hash = digest::short(&name, 4);
    let kept = name[..MAX_NAME_LENGTH - 1 - hash.len()].trim_end_matches('-');
    format!("{kept}-{hash}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::sharing::ResourceOffer;

    use super::*;

    fn offloading(namespace: &str, spec: &serde_json::Value) -> NamespaceOffloading {
        serde_json::from_value(json!({
            "apiVersion": "offloading.liqo.io/v1alpha1", "kind": "NamespaceOffloading",
            "metadata": { "name": "offloading", "namespace": namespace }, "spec": spec,
        }))
        .unwrap()
    }

    fn milan() -> Target {
        let labels = [("liqo.io/type", "virtual-node"), ("region", "north")];
        Target {
            node: "liqo-milan".into(),
            labels: labels.map(|(key, value)| (key.into(), value.into())).into(),
        }
    }

    fn offer(phase: &str, finalizers: &[&str], leaves: bool) -> ResourceOffer {
        serde_json::from_value(json!({
            "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer",
            "metadata": {
                "name": "milan", "finalizers": finalizers,
                "deletionTimestamp": leaves.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": {
                "clusterID": "m", "resourceQuota": { "hard": { "cpu": "1" } },
                "labels": { "region": "north" },
            },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    fn mapping(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(home, remote)| ((*home).into(), (*remote).into())).collect()
    }

    #[test]
    fn the_strategy_names_the_twin() {
        let rome = "rome".parse().unwrap();
        let name = |spec| remote_namespace("shop", &serde_json::from_value(spec).unwrap(), &rome);
        assert_eq!(name(json!({})), "shop-rome");
        assert_eq!(name(json!({ "namespaceMappingStrategy": "EnforceSameName" })), "shop");
        assert_eq!(
            name(json!({
                "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "store",
            })),
            "store"
        );
    }

    #[test]
    fn long_names_are_shortened_and_stay_unique() {
        let rome = "rome".parse().unwrap();
        let name = |namespace: &str| remote_namespace(namespace, &Default::default(), &rome);
        let (one, other) = (name(&"x".repeat(63)), name(&"x".repeat(62)));
        assert_eq!(one, format!("{}-e277244a", "x".repeat(54)));
        assert!(one.len() <= 63 && other.len() <= 63);
        assert_ne!(one, other);
        assert_eq!(name(&"x".repeat(58)).len(), 63);
    }

    #[test]
    fn only_selected_clusters_get_a_twin() {
        let rome = "rome".parse().unwrap();
        let region = |value: &str| {
            json!({ "clusterSelector": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "region", "operator": "In", "values": [value] },
            ] }] } })
        };
        let mut leaving = offloading("leaving", &json!({}));
        leaving.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let all = [
            offloading("shop", &json!({})),
            offloading("north", &region("north")),
            offloading("south", &region("south")),
            leaving,
        ];
        assert_eq!(
            desired_mapping(&all, &milan(), &rome, &BTreeMap::new()),
            mapping(&[("north", "north-rome"), ("shop", "shop-rome")])
        );
    }

    #[test]
    fn a_twin_has_one_home_namespace_and_keeps_it() {
        let rome = "rome".parse().unwrap();
        let selected =
            json!({ "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "x" });
        let all = [offloading("a", &selected), offloading("b", &selected)];
        let desired = |now| desired_mapping(&all, &milan(), &rome, &now);
        assert_eq!(desired(mapping(&[])), mapping(&[("a", "x")]));
        assert_eq!(desired(mapping(&[("b", "x")])), mapping(&[("b", "x")]));
    }

    #[test]
    fn a_map_is_removed_after_the_node_is_drained() {
        let kubelet = ["liqo.io/kubelet"];
        let map_action =
            |offer: Option<&ResourceOffer>| map_action(offer.map(Offer::from_resource).as_ref());
        assert_eq!(map_action(None), MapAction::Remove);
        assert_eq!(map_action(Some(&offer("Pending", &[], false))), MapAction::Remove);
        assert_eq!(map_action(Some(&offer("Accepted", &[], false))), MapAction::Keep);
        assert_eq!(map_action(Some(&offer("Accepted", &kubelet, true))), MapAction::Drain);
        assert_eq!(map_action(Some(&offer("Refused", &kubelet, false))), MapAction::Drain);
        assert_eq!(map_action(Some(&offer("Refused", &[], false))), MapAction::Remove);
    }

    #[test]
    fn the_map_of_a_withdrawn_offer_is_drained_and_then_removed() {
        let action = |finalizers: &[&str]| {
            let mut offer = offer("Accepted", finalizers, false);
            offer.spec.withdrawal_timestamp =
                Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
            map_action(Some(&Offer::from_resource(&offer)))
        };
        assert_eq!(action(&["liqo.io/kubelet"]), MapAction::Drain);
        assert_eq!(action(&[]), MapAction::Remove);
    }

    #[test]
    fn without_a_node_the_labels_of_the_offer_count() {
        let peer = ClusterIdentity {
            cluster_id: "m".parse().unwrap(),
            cluster_name: "milan".parse().unwrap(),
        };
        let offer = offer("Accepted", &[], false);
        let offer = Offer::from_resource(&offer);
        let announced = target(&peer, &offer, None);
        assert_eq!(announced.node, "liqo-milan");
        assert_eq!(announced.labels["region"], "north");
        assert_eq!(announced.labels["liqo.io/type"], "virtual-node");
        let labels = mapping(&[("region", "south")]);
        assert_eq!(target(&peer, &offer, Some(&labels)).labels, labels);
    }
}
