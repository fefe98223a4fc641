//! The changes that the admission webhook makes to pods of an offloaded namespace, so that the
//! scheduler follows the namespace's strategy.

use k8s_openapi::api::core::v1::{
    NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Toleration,
};
use tombolo_api::names::{TYPE_LABEL, VIRTUAL_NODE, VIRTUAL_NODE_TAINT};
use tombolo_api::offloading::{NamespaceOffloadingSpec, PodOffloadingStrategy};

/// Changes of a pod. Fields that are not set stay as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Amendment {
    /// An additional toleration.
    pub toleration: Option<Toleration>,
    /// The new required node affinity.
    pub required: Option<NodeSelector>,
}

/// Decides the changes of a pod in a namespace with this NamespaceOffloading.
pub fn amend(pod: &Pod, offloading: &NamespaceOffloadingSpec) -> Amendment {
    if is_of_daemon_set(pod) || offloading.pod_offloading_strategy == PodOffloadingStrategy::Local {
        return Amendment::default();
    }
    let spec = pod.spec.as_ref();
    let tolerations = spec.and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let affinity = spec.and_then(|spec| spec.affinity.as_ref()?.node_affinity.as_ref());
    let required =
        affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    Amendment {
        toleration: (!tolerations.iter().any(tolerates_virtual_nodes)).then(toleration),
        required: allowed(offloading).and_then(|allowed| both(required, allowed)),
    }
}

/// The toleration of virtual nodes. Without `tolerationSeconds`: it controls where a pod may run,
/// not how long it stays after a failure.
pub fn toleration() -> Toleration {
    Toleration {
        key: Some(VIRTUAL_NODE_TAINT.into()),
        operator: Some("Exists".into()),
        effect: Some("NoExecute".into()),
        ..Toleration::default()
    }
}

/// The nodes that a strategy allows, as terms of a node selector. `None`: all.
fn allowed(offloading: &NamespaceOffloadingSpec) -> Option<Vec<NodeSelectorTerm>> {
    let selector = offloading.cluster_selector.as_ref();
    let remote = match selector {
        Some(selector) => {
            let terms = selector.node_selector_terms.iter().filter(|term| !is_empty(term));
            terms.map(|term| and(term, &only("In"))).collect()
        }
        None => vec![only("In")],
    };
    match offloading.pod_offloading_strategy {
        PodOffloadingStrategy::Local => None,
        PodOffloadingStrategy::LocalAndRemote if selector.is_none() => None,
        PodOffloadingStrategy::LocalAndRemote => {
            Some(remote.into_iter().chain([only("NotIn")]).collect())
        }
        // An empty term selects no node, like a selector without terms.
        PodOffloadingStrategy::Remote if remote.is_empty() => {
            Some(vec![NodeSelectorTerm::default()])
        }
        PodOffloadingStrategy::Remote => Some(remote),
    }
}

/// The conjunction of both selectors, or `None` if the existing one implies it. Terms are
/// alternatives, so it is the product of their terms.
fn both(there: Option<&NodeSelector>, allowed: Vec<NodeSelectorTerm>) -> Option<NodeSelector> {
    let Some(there) = there else {
        return Some(NodeSelector { node_selector_terms: allowed });
    };
    // Empty terms select nothing; combined with another term they would.
    let terms = there.node_selector_terms.iter().filter(|term| !is_empty(term));
    let terms: Vec<_> = terms.collect();
    if terms.iter().all(|term| allowed.iter().any(|allowed| implies(term, allowed))) {
        return None;
    }
    let allowed = allowed.iter().filter(|term| !is_empty(term));
    let mut product: Vec<_> =
        allowed.flat_map(|allowed| terms.iter().map(|term| and(term, allowed))).collect();
    if product.is_empty() {
        product.push(NodeSelectorTerm::default());
    }
    Some(NodeSelector { node_selector_terms: product })
}

fn and(one: &NodeSelectorTerm, other: &NodeSelectorTerm) -> NodeSelectorTerm {
    let joined = |a: &Option<Vec<_>>, b: &Option<Vec<_>>| {
        let mut all: Vec<NodeSelectorRequirement> = a.clone().unwrap_or_default();
        for requirement in b.iter().flatten() {
            if !all.contains(requirement) {
                all.push(requirement.clone());
            }
        }
        (!all.is_empty()).then_some(all)
    };
    NodeSelectorTerm {
        match_expressions: joined(&one.match_expressions, &other.match_expressions),
        match_fields: joined(&one.match_fields, &other.match_fields),
    }
}

fn implies(term: &NodeSelectorTerm, other: &NodeSelectorTerm) -> bool {
    let has = |a: &Option<Vec<NodeSelectorRequirement>>, b: &Option<Vec<_>>| {
        b.iter().flatten().all(|requirement| a.iter().flatten().any(|have| have == requirement))
    };
    !is_empty(other)
        && has(&term.match_expressions, &other.match_expressions)
        && has(&term.match_fields, &other.match_fields)
}

fn is_empty(term: &NodeSelectorTerm) -> bool {
    let none = |list: &Option<Vec<_>>| list.as_ref().is_none_or(Vec::is_empty);
    none(&term.match_expressions) && none(&term.match_fields)
}

fn only(operator: &str) -> NodeSelectorTerm {
    NodeSelectorTerm {
        match_expressions: Some(vec![NodeSelectorRequirement {
            key: TYPE_LABEL.into(),
            operator: operator.into(),
            values: Some(vec![VIRTUAL_NODE.into()]),
        }]),
        match_fields: None,
    }
}

fn tolerates_virtual_nodes(toleration: &Toleration) -> bool {
    let exists = toleration.operator.as_deref() == Some("Exists");
    let key = match toleration.key.as_deref() {
        Some(VIRTUAL_NODE_TAINT) => exists || toleration.value.as_deref() == Some("true"),
        Some("") | None => exists,
        Some(_) => false,
    };
    let effect = matches!(toleration.effect.as_deref(), None | Some("" | "NoExecute"));
    key && effect && toleration.toleration_seconds.is_none()
}

fn is_of_daemon_set(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.kind == "DaemonSet" && owner.controller == Some(true))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value) -> Pod {
        serde_json::from_value(json!({ "spec": spec })).unwrap()
    }

    fn requiring(terms: &Value) -> Pod {
        pod(&json!({ "containers": [], "affinity": { "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms },
        } } }))
    }

    fn offloading(spec: Value) -> NamespaceOffloadingSpec {
        serde_json::from_value(spec).unwrap()
    }

    fn terms(amendment: &Amendment) -> Value {
        serde_json::to_value(&amendment.required.as_ref().unwrap().node_selector_terms).unwrap()
    }

    fn with(key: &str) -> Value {
        json!({ "key": key, "operator": "Exists" })
    }

    fn virtual_node(operator: &str) -> Value {
        json!({ "key": "liqo.io/type", "operator": operator, "values": ["virtual-node"] })
    }

    /// Applies the changes like the API server.
    fn amended(mut pod: Pod, amendment: Amendment) -> Pod {
        let spec = pod.spec.as_mut().unwrap();
        spec.tolerations.get_or_insert_default().extend(amendment.toleration);
        if amendment.required.is_some() {
            let affinity = spec.affinity.get_or_insert_default();
            let node = affinity.node_affinity.get_or_insert_default();
            node.required_during_scheduling_ignored_during_execution = amendment.required;
        }
        pod
    }

    #[test]
    fn pods_that_may_run_anywhere_only_get_the_toleration() {
        let amendment = amend(&pod(&json!({ "containers": [] })), &offloading(json!({})));
        assert_eq!(amendment.toleration, Some(toleration()));
        assert_eq!(amendment.required, None);
        assert_eq!(toleration().toleration_seconds, None);
    }

    #[test]
    fn local_pods_are_not_changed() {
        let local = offloading(json!({ "podOffloadingStrategy": "Local" }));
        assert_eq!(amend(&pod(&json!({ "containers": [] })), &local), Amendment::default());
    }

    #[test]
    fn pods_of_daemon_sets_are_not_changed() {
        let mut daemon = pod(&json!({ "containers": [] }));
        daemon.metadata.owner_references = Some(
            serde_json::from_value(json!([{
                "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u",
                "controller": true,
            }]))
            .unwrap(),
        );
        let remote = offloading(json!({ "podOffloadingStrategy": "Remote" }));
        assert_eq!(amend(&daemon, &remote), Amendment::default());
    }

    #[test]
    fn remote_pods_require_a_virtual_node() {
        let remote = offloading(json!({ "podOffloadingStrategy": "Remote" }));
        let amendment = amend(&pod(&json!({ "containers": [] })), &remote);
        assert_eq!(amendment.toleration, Some(toleration()));
        assert_eq!(terms(&amendment), json!([{ "matchExpressions": [virtual_node("In")] }]));
    }

    #[test]
    fn node_selectors_of_pod_and_namespace_are_combined() {
        let remote = offloading(json!({
            "podOffloadingStrategy": "Remote",
            "clusterSelector": { "nodeSelectorTerms": [
                { "matchExpressions": [with("a")] },
                { "matchExpressions": [with("b")] },
            ] },
        }));
        let pod = requiring(&json!([
            { "matchExpressions": [with("x")] },
            {},
            { "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["y"] }] },
        ]));
        let fields = json!([{ "key": "metadata.name", "operator": "In", "values": ["y"] }]);
        assert_eq!(
            terms(&amend(&pod, &remote)),
            json!([
                { "matchExpressions": [with("x"), with("a"), virtual_node("In")] },
                { "matchExpressions": [with("a"), virtual_node("In")], "matchFields": fields },
                { "matchExpressions": [with("x"), with("b"), virtual_node("In")] },
                { "matchExpressions": [with("b"), virtual_node("In")], "matchFields": fields },
            ])
        );
    }

    #[test]
    fn a_cluster_selector_still_allows_local_nodes() {
        let both = offloading(json!({
            "clusterSelector": { "nodeSelectorTerms": [{ "matchExpressions": [with("a")] }] },
        }));
        assert_eq!(
            terms(&amend(&pod(&json!({ "containers": [] })), &both)),
            json!([
                { "matchExpressions": [with("a"), virtual_node("In")] },
                { "matchExpressions": [virtual_node("NotIn")] },
            ])
        );
    }

    #[test]
    fn the_change_is_idempotent() {
        let selector = json!({ "nodeSelectorTerms": [{ "matchExpressions": [with("a")] }, {}] });
        for strategy in ["Local", "Remote", "LocalAndRemote"] {
            for selector in [&Value::Null, &selector] {
                let offloading = offloading(json!({
                    "podOffloadingStrategy": strategy, "clusterSelector": selector,
                }));
                for pod in [
                    pod(&json!({ "containers": [] })),
                    requiring(&json!([{ "matchExpressions": [with("x")] }, {}])),
                ] {
                    let once = amended(pod.clone(), amend(&pod, &offloading));
                    assert_eq!(amend(&once, &offloading), Amendment::default(), "{once:?}");
                }
            }
        }
    }

    #[test]
    fn empty_terms_still_select_nothing() {
        let remote = offloading(json!({ "podOffloadingStrategy": "Remote" }));
        assert_eq!(amend(&requiring(&json!([{}])), &remote).required, None);
        let nowhere = offloading(json!({
            "podOffloadingStrategy": "Remote", "clusterSelector": { "nodeSelectorTerms": [{}] },
        }));
        let pod = requiring(&json!([{ "matchExpressions": [with("x")] }]));
        assert_eq!(terms(&amend(&pod, &nowhere)), json!([{}]));
    }

    #[test]
    fn an_existing_toleration_is_enough() {
        let tolerates = |toleration: Value| {
            let pod = pod(&json!({ "containers": [], "tolerations": [toleration] }));
            amend(&pod, &offloading(json!({}))).toleration.is_none()
        };
        let key = VIRTUAL_NODE_TAINT;
        assert!(tolerates(json!({ "operator": "Exists" })));
        assert!(tolerates(json!({ "key": key, "operator": "Exists" })));
        assert!(tolerates(json!({ "key": key, "value": "true", "effect": "NoExecute" })));
        assert!(!tolerates(json!({ "key": key, "value": "no" })));
        assert!(!tolerates(json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" })));
        assert!(!tolerates(json!({ "operator": "Exists", "tolerationSeconds": 300 })));
    }
}
