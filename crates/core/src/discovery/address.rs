//! The node address at which other clusters reach services of this one.

use k8s_openapi::api::core::v1::Node;

use crate::node::is_ready;

/// The internal address of the best node: ready and schedulable nodes first, then by name.
pub fn address(nodes: &[Node]) -> Option<&str> {
    let rank = |node: &Node| {
        let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
        (!is_ready(node), unschedulable.unwrap_or(false), node.metadata.name.clone())
    };
    let addressed = nodes.iter().filter_map(|node| Some((node, internal_address(node)?)));
    addressed.min_by_key(|(node, _)| rank(node)).map(|(_, address)| address)
}

fn internal_address(node: &Node) -> Option<&str> {
    let addresses = node.status.as_ref()?.addresses.as_ref()?;
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP")?;
    Some(&internal.address)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, ready: &str, unschedulable: bool, address: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "unschedulable": unschedulable },
            "status": {
                "conditions": [{ "type": "Ready", "status": ready }],
                "addresses": [{ "type": "InternalIP", "address": address }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_ready_and_schedulable_node_comes_first() {
        let dead = node("rome-1", "Unknown", false, "10.0.0.1");
        let leaving = node("rome-2", "True", true, "10.0.0.2");
        let (third, fourth) =
            (node("rome-3", "True", false, "10.0.0.3"), node("rome-4", "True", false, "10.0.0.4"));
        let nodes = [dead.clone(), leaving.clone(), fourth, third];
        assert_eq!(address(&nodes), Some("10.0.0.3"));
        assert_eq!(address(&[dead.clone(), leaving]), Some("10.0.0.2"));
        assert_eq!(address(&[dead, Node::default()]), Some("10.0.0.1"));
        assert_eq!(address(&[Node::default()]), None);
    }
}
