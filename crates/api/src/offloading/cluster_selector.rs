//! The schema of a cluster selector. It becomes the node selector in the affinity of pods, so an
//! invalid selector that is not refused here would make every pod of the namespace invalid.

use schemars::{Schema, SchemaGenerator, json_schema};

use crate::schema::{is_qualified_name, rule};

pub(super) fn schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "required": ["nodeSelectorTerms"],
        "properties": {
            "nodeSelectorTerms": {
                "description": "A cluster is selected if one of these terms selects it.",
                "type": "array",
                "minItems": 1,
                "maxItems": 16,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "description": "Selects a cluster if all its requirements are met.",
                    "type": "object",
                    "properties": {
                        "matchExpressions": requirements(
                            "Requirements for the labels of the virtual node.",
                            &[
                                rule(
                                    &format!("self.all(r, {})", is_qualified_name("r.key")),
                                    "every key must be that of a label",
                                ),
                                rule(
                                    "self.all(r, !(r.operator in ['In', 'NotIn']) \
                                     || (has(r.values) && r.values.size() > 0))",
                                    "values must not be empty with the operators In and NotIn",
                                ),
                                rule(
                                    "self.all(r, !(r.operator in ['Exists', 'DoesNotExist']) \
                                     || !has(r.values) || r.values.size() == 0)",
                                    "values must be empty with the operators Exists and \
                                     DoesNotExist",
                                ),
                                rule(
                                    "self.all(r, !(r.operator in ['Gt', 'Lt']) \
                                     || (has(r.values) && r.values.size() == 1 \
                                     && r.values[0].matches('^-?[0-9]{1,18}$')))",
                                    "values must be one integer with the operators Gt and Lt",
                                ),
                            ],
                        ),
                        "matchFields": requirements(
                            "Requirements for the fields of the virtual node.",
                            &[rule(
                                "self.all(r, r.key == 'metadata.name' \
                                 && r.operator in ['In', 'NotIn'] \
                                 && has(r.values) && r.values.size() == 1)",
                                "only metadata.name can be matched, with In or NotIn and one value",
                            )],
                        ),
                    },
                },
            },
        },
    })
}

fn requirements(description: &str, rules: &[serde_json::Value]) -> serde_json::Value {
    serde_json::json!({
        "description": description,
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "atomic",
        "x-kubernetes-validations": rules,
        "items": {
            "type": "object",
            "required": ["key", "operator"],
            "properties": {
                "key": {
                    "description": "Key of the label, or path of the field.",
                    "type": "string",
                    "maxLength": 317,
                },
                "operator": {
                    "description": "Comparison operator.",
                    "type": "string",
                    "enum": ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"],
                },
                "values": {
                    "description": "Values to compare with.",
                    "type": "array",
                    "maxItems": 64,
                    "x-kubernetes-list-type": "atomic",
                    "items": { "type": "string", "maxLength": 253 },
                },
            },
        },
    })
}
