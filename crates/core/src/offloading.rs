//! Which namespaces are offloaded to which clusters, and how they are called there.

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

pub use selector::selects;
pub use status::{PeerMap, is_gone_everywhere, status};
pub use twin::{Existing, Twin, TwinPlan, is_outstayed, is_twin, twins};

/// A cluster that namespaces can be offloaded to, as selectors see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of its virtual node.
    pub node: String,
    /// Labels of its virtual node.
    pub labels: BTreeMap<String, String>,
}

/// What to do with the NamespaceMap for a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapFate {
    /// It is to be there, with what is wanted now.
    Keep,
    /// It stays as it is: pods are leaving the cluster, and need their namespaces until they have.
    Drain,
    /// It is to go.
    Remove,
}

/// What to do with the NamespaceMap for a cluster, by what that cluster offers.
pub fn map_fate(offer: Option<&Offer<'_>>) -> MapFate {
    match offer.map(|offer| offer.stage) {
        Some(OfferStage::Serving) => MapFate::Keep,
        Some(OfferStage::Draining(_)) => MapFate::Drain,
        Some(OfferStage::Pending | OfferStage::Over(_)) | None => MapFate::Remove,
    }
}

/// How selectors see a cluster: as its virtual node or, before there is one, as its offer
/// announces it. `node` is the virtual node's labels.
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

/// Name of the twin, in other clusters, of a namespace that is offloaded like this.
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

/// Which namespace is to be which in a cluster. No two can have the same twin: the one that has it
/// (in `now`) keeps it, otherwise it goes to the first by name.
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

/// The longest name that a namespace can have.
const LONGEST: usize = 63;

fn shortened(name: String) -> String {
    if name.len() <= LONGEST {
        return name;
    }
    let hash = digest::short(&name, 4);
    let kept = name[..LONGEST - 1 - hash.len()].trim_end_matches('-');
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
    fn long_names_are_shortened_and_stay_apart() {
        let rome = "rome".parse().unwrap();
        let name = |namespace: &str| remote_namespace(namespace, &Default::default(), &rome);
        let (one, other) = (name(&"x".repeat(63)), name(&"x".repeat(62)));
        assert_eq!(one, format!("{}-e277244a", "x".repeat(54)));
        assert!(one.len() <= 63 && other.len() <= 63);
        assert_ne!(one, other);
        assert_eq!(name(&"x".repeat(58)).len(), 63);
    }

    #[test]
    fn only_selected_clusters_get_a_namespace() {
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
    fn no_two_namespaces_have_the_same_twin_and_who_has_it_keeps_it() {
        let rome = "rome".parse().unwrap();
        let selected =
            json!({ "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "x" });
        let all = [offloading("a", &selected), offloading("b", &selected)];
        let desired = |now| desired_mapping(&all, &milan(), &rome, &now);
        assert_eq!(desired(mapping(&[])), mapping(&[("a", "x")]));
        assert_eq!(desired(mapping(&[("b", "x")])), mapping(&[("b", "x")]));
    }

    #[test]
    fn a_map_goes_when_the_pods_are_gone() {
        let kubelet = ["liqo.io/kubelet"];
        let map_fate =
            |offer: Option<&ResourceOffer>| map_fate(offer.map(Offer::from_resource).as_ref());
        assert_eq!(map_fate(None), MapFate::Remove);
        assert_eq!(map_fate(Some(&offer("Pending", &[], false))), MapFate::Remove);
        assert_eq!(map_fate(Some(&offer("Accepted", &[], false))), MapFate::Keep);
        assert_eq!(map_fate(Some(&offer("Accepted", &kubelet, true))), MapFate::Drain);
        assert_eq!(map_fate(Some(&offer("Refused", &kubelet, false))), MapFate::Drain);
        assert_eq!(map_fate(Some(&offer("Refused", &[], false))), MapFate::Remove);
    }

    #[test]
    fn the_map_of_a_withdrawn_offer_is_drained_and_then_removed() {
        let fate = |finalizers: &[&str]| {
            let mut offer = offer("Accepted", finalizers, false);
            offer.spec.withdrawal_timestamp =
                Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
            map_fate(Some(&Offer::from_resource(&offer)))
        };
        assert_eq!(fate(&["liqo.io/kubelet"]), MapFate::Drain);
        assert_eq!(fate(&[]), MapFate::Remove);
    }

    #[test]
    fn before_there_is_a_node_the_offer_speaks_for_it() {
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
