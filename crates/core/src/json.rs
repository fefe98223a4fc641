//! JSON values for the API server.

use serde_json::Value;

/// The value without null fields. The API server drops nulls, so they would always differ from the
/// stored object, and a server-side apply would own a field that does not exist.
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
    fn null_fields_are_removed_at_every_depth_and_list_items_stay() {
        let value = json!({ "a": null, "b": { "c": null, "d": 1 }, "e": [{ "f": null }, null] });
        assert_eq!(without_nulls(value), json!({ "b": { "d": 1 }, "e": [{}, null] }));
    }
}
