//! How much of what is free is offered: a share of what the nodes have and nobody asked for.

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

/// A change smaller than this part of what is offered is not worth an update.
const WORTH: f64 = 0.05;

/// Time in which changes of what is free are collected.
const REFRESH: Duration = Duration::from_secs(10);

/// Amounts by the name of the resource, in its base unit (cores, bytes, pieces).
pub type Amounts = BTreeMap<String, f64>;

/// When to look at what is free after a change: the first time at once, then after a while, however
/// much changes.
pub fn look_after(is_first: bool) -> Duration {
    if is_first { Duration::ZERO } else { REFRESH }
}

/// What to answer a request with, if there is something to say: until somebody decides, that it is
/// pending.
pub fn answer(request: &Request<'_>, sharing: &SharingConfig) -> Option<RequestState> {
    match (request.state, sharing.auto_accept) {
        (RequestState::Pending, true) => Some(RequestState::Accepted),
        (RequestState::Pending, false) if !request.has_status => Some(RequestState::Pending),
        _ => None,
    }
}

/// Whether this is what the cluster called `us` offers to another cluster than the one whose tenant
/// namespace is given. An object is called after the cluster that made it; whatever else a peer puts
/// into its tenant namespace takes nothing away from others.
pub fn is_offered_elsewhere(offer: &Offer<'_>, us: &str, namespace: &str) -> bool {
    offer.name == us && offer.namespace != namespace && offer.sent_to.is_some()
}

/// What to offer of what is free; `others` is offered to other clusters already, which counts
/// unless the same may be offered twice.
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

/// Whether this has to be offered: nothing is yet, or something else. One that is on its way out is
/// let go first.
pub fn is_due(offer: Option<&Offer<'_>>, quota: &BTreeMap<String, Quantity>) -> bool {
    offer.is_none_or(|offer| offer.deleted.is_none() && is_news(offer.quota, quota))
}

/// What is free in this cluster: what its ready nodes have, less what pods ask for. Pods that run
/// for other clusters use what was offered, so they do not count.
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
        for (name, asked) in requests(pod) {
            if let Some(left) = free.get_mut(&name) {
                *left -= asked;
            }
        }
        if let Some(left) = free.get_mut("pods") {
            *left -= 1.0;
        }
    }
    free
}

/// The offer: `percent` of what is free, in whole thousandths of a core, bytes and pieces.
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

/// Whether the offer has changed enough to say so.
fn is_news(before: &BTreeMap<String, Quantity>, now: &BTreeMap<String, Quantity>) -> bool {
    let same_kinds = before.keys().eq(now.keys());
    !same_kinds
        || now.iter().any(|(name, quantity)| {
            let (was, is) = (before.get(name).and_then(amount), amount(quantity));
            match (was, is) {
                (Some(was), Some(is)) => (was - is).abs() > WORTH * was.max(is),
                _ => true,
            }
        })
}

fn can_run_pods(node: &Node) -> bool {
    let labels = node.metadata.labels.as_ref();
    let is_virtual = labels
        .is_some_and(|labels| labels.get(TYPE_LABEL).is_some_and(|value| value == VIRTUAL_NODE));
    let is_closed = node.spec.as_ref().is_some_and(|spec| spec.unschedulable.unwrap_or(false));
    is_ready(node) && !is_virtual && !is_closed
}

fn counts(pod: &Pod) -> bool {
    let is_hosted = pod.metadata.labels.as_ref().is_some_and(|labels| {
        labels.get(MANAGED_BY_LABEL).is_some_and(|value| value == SHADOW_POD)
    });
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
    is_placed && !is_hosted && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// What a pod asks for: the sum of its containers, or its largest init container.
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
    for (name, asked) in spec.containers.iter().flat_map(of) {
        *sum.entry(name).or_default() += asked;
    }
    for (name, asked) in spec.init_containers.iter().flatten().flat_map(of) {
        let so_far = sum.entry(name).or_default();
        *so_far = so_far.max(asked);
    }
    sum
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{
        discovery::ResourceRequest, names::REPLICATE_TO_LABEL, sharing::ResourceOffer,
    };

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
    fn free_is_what_real_ready_nodes_have_and_own_pods_do_not_ask_for() {
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
    fn a_little_more_or_less_is_no_news() {
        let offer = |cpu: &str| BTreeMap::from([("cpu".to_owned(), Quantity(cpu.into()))]);
        assert!(!is_news(&offer("1000m"), &offer("980m")));
        assert!(is_news(&offer("1000m"), &offer("900m")));
        assert!(is_news(&offer("1"), &BTreeMap::new()));
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
    fn the_first_change_counts_at_once_and_later_ones_together() {
        assert_eq!(look_after(true), Duration::ZERO);
        assert_eq!(look_after(false), REFRESH);
    }

    #[test]
    fn a_request_is_answered_once() {
        let (by_itself, by_hand) = (sharing(true, false), sharing(false, false));
        let new = request(&serde_json::Value::Null);
        assert_eq!(answer(&new, &by_itself), Some(RequestState::Accepted));
        assert_eq!(answer(&new, &by_hand), Some(RequestState::Pending));
        let pending = request(&json!({ "state": "Pending" }));
        assert_eq!(answer(&pending, &by_itself), Some(RequestState::Accepted));
        assert_eq!(answer(&pending, &by_hand), None);
        let accepted = request(&json!({ "state": "Accepted" }));
        assert_eq!(answer(&accepted, &by_itself), None);
    }

    #[test]
    fn what_others_were_offered_is_not_offered_again_unless_it_may_be() {
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
    fn an_offer_is_due_when_there_is_none_or_another() {
        let now = BTreeMap::from([("cpu".to_owned(), Quantity("2".into()))]);
        assert!(is_due(None, &now));
        assert!(!is_due(Some(&offer(&json!({ "cpu": "2" }), None)), &now));
        assert!(is_due(Some(&offer(&json!({ "cpu": "1" }), None)), &now));
        let leaving = offer(&json!({ "cpu": "1" }), Some("2026-01-01T00:00:00Z"));
        assert!(!is_due(Some(&leaving), &now));
    }

    #[test]
    fn only_what_this_cluster_offers_to_others_counts() {
        let offer = |name: &str, namespace: &str, label: &str| -> ResourceOffer {
            serde_json::from_value(json!({
                "metadata": { "name": name, "namespace": namespace, "labels": { label: "id" } },
                "spec": { "clusterID": "id", "resourceQuota": { "hard": {} } },
            }))
            .unwrap()
        };
        let counts = |offer: &ResourceOffer| {
            is_offered_elsewhere(&Offer::from_resource(offer), "milan", "tenant-rome")
        };
        assert!(counts(&offer("milan", "tenant-paris", REPLICATE_TO_LABEL)));
        assert!(!counts(&offer("milan", "tenant-rome", REPLICATE_TO_LABEL)), "the one in question");
        assert!(!counts(&offer("paris", "tenant-paris", REPLICATE_TO_LABEL)), "made by a peer");
        assert!(!counts(&offer("milan", "tenant-paris", "liqo.io/replicated-from")));
    }
}
