//! Cluster selectors, evaluated as the scheduler does for the virtual node.

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement};

use super::Target;

/// Whether a cluster is selected. Without a selector, all clusters are.
pub fn selects(selector: Option<&NodeSelector>, target: &Target) -> bool {
    let Some(selector) = selector else {
        return true;
    };
    selector.node_selector_terms.iter().any(|term| {
        let expressions = term.match_expressions.iter().flatten();
        let fields = term.match_fields.iter().flatten();
        let mut all = expressions
            .map(|r| holds(r, target.labels.get(&r.key).map(String::as_str)))
            .chain(fields.map(|r| r.key == "metadata.name" && holds(r, Some(&target.node))))
            .peekable();
        // A term without requirements selects nothing.
        all.peek().is_some() && all.all(|holds| holds)
    })
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = || value.is_some_and(|value| values.iter().any(|v| v == value));
    let compared = |wanted: std::cmp::Ordering| {
        let number = |text: &str| text.parse::<i64>().ok();
        let (value, bound) = (value.and_then(number), values.first().and_then(|v| number(v)));
        value.zip(bound).is_some_and(|(value, bound)| value.cmp(&bound) == wanted)
    };
    match requirement.operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared(std::cmp::Ordering::Greater),
        "Lt" => compared(std::cmp::Ordering::Less),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn selected(terms: &Value) -> bool {
        let selector = serde_json::from_value(json!({ "nodeSelectorTerms": terms })).unwrap();
        let labels = [("region", "north"), ("cpus", "16")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        selects(Some(&selector), &Target { node: "liqo-milan".into(), labels })
    }

    fn by(key: &str, operator: &str, values: &[&str]) -> bool {
        let requirement = json!({ "key": key, "operator": operator, "values": values });
        selected(&json!([{ "matchExpressions": [requirement] }]))
    }

    #[test]
    fn operators_compare_as_the_scheduler_does() {
        assert!(by("region", "In", &["south", "north"]));
        assert!(!by("region", "In", &["south"]));
        assert!(!by("zone", "In", &["north"]));
        assert!(by("zone", "NotIn", &["north"]));
        assert!(!by("region", "NotIn", &["north"]));
        assert!(by("region", "Exists", &[]));
        assert!(by("zone", "DoesNotExist", &[]));
        assert!(by("cpus", "Gt", &["8"]));
        assert!(!by("cpus", "Gt", &["16"]));
        assert!(by("cpus", "Lt", &["17"]));
        assert!(!by("region", "Gt", &["1"]));
    }

    #[test]
    fn terms_are_ored_and_requirements_anded() {
        let north = json!({ "key": "region", "operator": "In", "values": ["north"] });
        let zone = json!({ "key": "zone", "operator": "Exists" });
        assert!(!selected(&json!([{ "matchExpressions": [north, zone] }])));
        assert!(selected(&json!([
            { "matchExpressions": [zone] }, { "matchExpressions": [north] },
        ])));
        assert!(!selected(&json!([{}])));
    }

    #[test]
    fn a_node_can_be_selected_by_name() {
        let named = |name: &str| {
            let field = json!({ "key": "metadata.name", "operator": "In", "values": [name] });
            selected(&json!([{ "matchFields": [field] }]))
        };
        assert!(named("liqo-milan"));
        assert!(!named("liqo-paris"));
    }
}
