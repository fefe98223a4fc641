//! JSON values as the API server takes them.

use serde_json::Value;

/// The value without fields that are null. The API server forgets them, and to apply one is to ask
/// for a null: a field that is left out is not owned.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nulls_go_at_every_depth_and_items_of_lists_stay() {
        let value = json!({ "a": null, "b": { "c": null, "d": 1 }, "e": [{ "f": null }, null] });
        assert_eq!(without_nulls(value), json!({ "b": { "d": 1 }, "e": [{}, null] }));
    }
}
