//! The quota of an offer: a share of the allocatable resources that no pod requests.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use tombolo_api::{
    config::SharingConfig,
    discovery::RequestState,
    names::{MANAGED_BY_LABEL, SHADOW_POD, TYPE_LABEL, VIRTUAL_NODE},
};

use crate::{
    node::is_ready,
    quantity::{MEBI, amount},
    view::{Offer, Request},
};

/// Smaller changes of the quota, as a fraction, are not worth an update.
const MIN_CHANGE: f64 = 0.05;

/// Time in which changes of the free resources are collected.
const REFRESH: Duration = Duration::from_secs(10);

/// Amounts by resource name, in the base unit of each resource (cores, bytes, pieces).
pub type Amounts = BTreeMap<String, f64>;

/// Delay between a change and the next computation of the free resources: none for the first one.
pub fn refresh_delay(is_first: bool) -> Duration {
    if is_first { Duration::ZERO } else { REFRESH }
}

/// The state to write to a request, if it changes. Without `autoAccept` a request is Pending until
/// somebody decides.
pub fn answer(request: &Request<'_>, sharing: &SharingConfig) -> Option<RequestState> {
    match (request.state, sharing.auto_accept) {
        (RequestState::Pending, true) => Some(RequestState::Accepted),
        (RequestState::Pending, false) if !request.has_status => Some(RequestState::Pending),
        _ => None,
    }
}

/// Whether this is an offer of this cluster, `us`, to a peer with another tenant namespace than
/// `namespace`. An offer has the name of the cluster that created it, so objects that a peer puts
/// into its tenant namespace don't reduce the quota of others.
pub fn is_offered_to_other_peer(offer: &Offer<'_>, us: &str, namespace: &str) -> bool {
    offer.name == us && offer.namespace != namespace
}

/// The quota to offer of the free resources. The quotas of `others`, the offers to other peers, are
/// subtracted, except with `overcommit`.
pub fn quota<'a>(
    mut free: Amounts,
    others: impl IntoIterator<Item = Offer<'a>>,
    sharing: &SharingConfig,
) -> BTreeMap<String, Quantity> {
    if !sharing.overcommit {
        let others = others.into_iter().flat_map(|offer| offer.quota);
        for (name, quantity) in others {
            if let Some(left) = free.get_mut(name) {
                *left -= amount(quantity).unwrap_or_default();
            }
        }
    }
    share(&free, sharing.share_percentage)
}

/// Whether to write an offer with this quota: there is none yet, or its quota differs. An offer
/// that is being deleted is not updated.
pub fn is_due(offer: Option<&Offer<'_>>, quota: &BTreeMap<String, Quantity>) -> bool {
    offer.is_none_or(|offer| offer.deleted.is_none() && is_significant(offer.quota, quota))
}

/// The free resources of this cluster: the allocatable resources of its ready nodes, less the
/// requests of pods. Pods offloaded by peers use the offered quota, so they don't count.
pub fn free<'a>(
    nodes: impl IntoIterator<Item = &'a Node>,
    pods: impl IntoIterator<Item = &'a Pod>,
) -> Amounts {
    let mut free = Amounts::new();
    for node in nodes.into_iter().filter(|node| can_run_pods(node)) {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        for (name, quantity) in allocatable.into_iter().flatten() {
            *free.entry(name.clone()).or_default() += amount(quantity).unwrap_or_default();
        }
    }
    for pod in pods.into_iter().filter(|pod| counts(pod)) {
        for (name, requested) in requests(pod) {
            if let Some(left) = free.get_mut(&name) {
                *left -= requested;
            }
        }
        if let Some(left) = free.get_mut("pods") {
            *left -= 1.0;
        }
    }
    free
}

/// The quota: `percent` of the free resources, in whole millicores, mebibytes or pieces.
fn share(free: &Amounts, percent: u32) -> BTreeMap<String, Quantity> {
    free.iter()
        .map(|(name, amount)| (name.clone(), amount.max(0.0) * f64::from(percent) / 100.0))
        .map(|(name, amount)| {
            let text = match name.as_str() {
                "cpu" => format!("{}m", (amount * 1000.0).floor()),
                "memory" | "ephemeral-storage" => format!("{}Mi", (amount / MEBI).floor()),
                _ => format!("{}", amount.floor()),
            };
            (name, Quantity(text))
        })
        .collect()
}

/// Whether the quota has changed enough for an update.
fn is_significant(before: &BTreeMap<String, Quantity>, now: &BTreeMap<String, Quantity>) -> bool {
    let same_kinds = before.keys().eq(now.keys());
    !same_kinds
        || now.iter().any(|(name, quantity)| {
            let (was, is) = (before.get(name).and_then(amount), amount(quantity));
            match (was, is) {
                (Some(was), Some(is)) => (was - is).abs() > MIN_CHANGE * was.max(is),
                _ => true,
            }
        })
}

fn can_run_pods(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let is_virtual = labels
        .is_some_and(|labels| labels.get(TYPE_LABEL).is_some_and(|value| value == VIRTUAL_NODE));
    let is_cordoned = node.spec.as_ref().is_some_and(|spec| spec.unschedulable.unwrap_or(false));
    is_ready(node) && !is_virtual && !is_cordoned
}

fn counts(pod: &Pod) -> bool {
    let is_hosted = pod.metadata.labels.as_ref().is_some_and(|labels| {
        labels.get(MANAGED_BY_LABEL).is_some_and(|value| value == SHADOW_POD)
    });
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    is_placed && !is_hosted && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// The requests of a pod: the sum of its containers, or its largest init container.
fn requests(pod: &Pod) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let of = |container: &k8s_openapi::api::core::v1::Container| -> Amounts {
        let requests = container.resources.as_ref().and_then(|all| all.requests.clone());
        requests
            .into_iter()
            .flatten()
            .filter_map(|(name, quantity)| Some((name, amount(&quantity)?)))
            .collect()
    };
    let mut sum = Amounts::new();
    for (name, requested) in spec.containers.iter().flat_map(of) {
        *sum.entry(name).or_default() += requested;
    }
    for (name, requested) in spec.init_containers.iter().flatten().flat_map(of) {
        let so_far = sum.entry(name).or_default();
        *so_far = so_far.max(requested);
    }
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{discovery::ResourceRequest, sharing::ResourceOffer};

    use super::*;

    fn answer(request: &ResourceRequest, sharing: &SharingConfig) -> Option<RequestState> {
        super::answer(&Request::from_resource(request), sharing)
    }

    fn is_due(offer: Option<&ResourceOffer>, quota: &BTreeMap<String, Quantity>) -> bool {
        super::is_due(offer.map(Offer::from_resource).as_ref(), quota)
    }

    fn node(ready: &str, labels: &serde_json::Value) -> Node {
        serde_json::from_value(json!({
            "metadata": { "labels": labels },
            "status": {
                "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "110" },
                "conditions": [{ "type": "Ready", "status": ready }],
            },
        }))
        .unwrap()
    }

    fn pod(labels: &serde_json::Value, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "labels": labels },
            "spec": {
                "nodeName": "n",
                "containers": [
                    { "name": "a", "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } } },
                ],
            },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    #[test]
    fn free_resources_are_those_of_ready_real_nodes_less_the_requests_of_own_pods() {
        let nodes = [
            node("True", &json!({})),
            node("False", &json!({})),
            node("True", &json!({ "liqo.io/type": "virtual-node" })),
        ];
        let pods = [
            pod(&json!({}), "Running"),
            pod(&json!({}), "Succeeded"),
            pod(&json!({ "liqo.io/managed-by": "shadowpod" }), "Running"),
        ];
        let free = free(&nodes, &pods);
        assert_eq!(free["cpu"], 1.5);
        assert_eq!(free["memory"], 3.0 * 1024.0 * MEBI);
        assert_eq!(free["pods"], 109.0);
        let offer = share(&free, 30);
        assert_eq!(offer["cpu"].0, "450m");
        assert_eq!(offer["memory"].0, "921Mi");
        assert_eq!(offer["pods"].0, "32");
    }

    #[test]
    fn small_changes_are_not_significant() {
        let offer = |cpu: &str| BTreeMap::from([("cpu".to_owned(), Quantity(cpu.into()))]);
        assert!(!is_significant(&offer("1000m"), &offer("980m")));
        assert!(is_significant(&offer("1000m"), &offer("900m")));
        assert!(is_significant(&offer("1"), &BTreeMap::new()));
    }

    fn request(status: &serde_json::Value) -> ResourceRequest {
        serde_json::from_value(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1",
            "kind": "ResourceRequest",
            "metadata": { "name": "rome" },
            "spec": {
                "clusterIdentity": { "clusterID": "id-of-rome", "clusterName": "rome" },
                "authUrl": "https://192.0.2.1",
            },
            "status": status,
        }))
        .unwrap()
    }

    fn offer(hard: &serde_json::Value, deleted: Option<&str>) -> ResourceOffer {
        serde_json::from_value(json!({
            "apiVersion": "sharing.liqo.io/v1alpha1",
            "kind": "ResourceOffer",
            "metadata": { "name": "milan", "deletionTimestamp": deleted },
            "spec": { "clusterID": "id-of-milan", "resourceQuota": { "hard": hard } },
        }))
        .unwrap()
    }

    fn sharing(auto_accept: bool, overcommit: bool) -> SharingConfig {
        SharingConfig { auto_accept, overcommit, share_percentage: 50 }
    }

    #[test]
    fn the_first_change_is_handled_at_once_and_later_ones_together() {
        assert_eq!(refresh_delay(true), Duration::ZERO);
        assert_eq!(refresh_delay(false), REFRESH);
    }

    #[test]
    fn a_request_is_answered_once() {
        let (automatic, manual) = (sharing(true, false), sharing(false, false));
        let new = request(&serde_json::Value::Null);
        assert_eq!(answer(&new, &automatic), Some(RequestState::Accepted));
        assert_eq!(answer(&new, &manual), Some(RequestState::Pending));
        let pending = request(&json!({ "state": "Pending" }));
        assert_eq!(answer(&pending, &automatic), Some(RequestState::Accepted));
        assert_eq!(answer(&pending, &manual), None);
        let accepted = request(&json!({ "state": "Accepted" }));
        assert_eq!(answer(&accepted, &automatic), None);
    }

    #[test]
    fn offers_to_other_peers_reduce_the_quota_except_with_overcommit() {
        let free = Amounts::from([("cpu".to_owned(), 4.0)]);
        let others = [offer(&json!({ "cpu": "1", "unknown": "7" }), None)];
        let of = |overcommit| {
            let others = others.iter().map(Offer::from_resource);
            quota(free.clone(), others, &sharing(true, overcommit))
        };
        assert_eq!(of(false)["cpu"].0, "1500m");
        assert_eq!(of(true)["cpu"].0, "2000m");
    }

    #[test]
    fn an_offer_is_due_if_there_is_none_or_its_quota_differs() {
        let now = BTreeMap::from([("cpu".to_owned(), Quantity("2".into()))]);
        assert!(is_due(None, &now));
        assert!(!is_due(Some(&offer(&json!({ "cpu": "2" }), None)), &now));
        assert!(is_due(Some(&offer(&json!({ "cpu": "1" }), None)), &now));
        let terminating = offer(&json!({ "cpu": "1" }), Some("2026-01-01T00:00:00Z"));
        assert!(!is_due(Some(&terminating), &now));
    }

    #[test]
    fn only_own_offers_to_other_peers_count() {
        let offer = |name: &str, namespace: &str| -> ResourceOffer {
            serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": namespace },
                "spec": { "clusterID": "id", "resourceQuota": { "hard": {} } },
            }))
            .unwrap()
        };
        let counts = |offer: &ResourceOffer| {
            is_offered_to_other_peer(&Offer::from_resource(offer), "milan", "tenant-rome")
        };
        assert!(counts(&offer("milan", "tenant-paris")));
        assert!(!counts(&offer("milan", "tenant-rome")), "the offer itself");
        assert!(!counts(&offer("paris", "tenant-paris")), "created by a peer");
    }
}
