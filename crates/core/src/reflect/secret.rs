//! Reflected Secrets.

use k8s_openapi::api::core::v1::Secret;

use super::metadata::{ReflectionRoute, reflected};

/// Type of ServiceAccount tokens. They are valid only in the home cluster, and the remote one would
/// delete them because their ServiceAccount is missing there.
const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

/// The reflected Secret. `None` if it is not reflected.
pub fn forge(home: &Secret, route: &ReflectionRoute) -> Option<Secret> {
    if home.type_.as_deref() == Some(SERVICE_ACCOUNT_TOKEN) {
        return None;
    }
    Some(Secret {
        metadata: reflected(&home.metadata, route),
        data: home.data.clone(),
        string_data: None,
        type_: home.type_.clone(),
        immutable: home.immutable,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::metadata::tests::to_milan;
    use super::*;

    #[test]
    fn the_contents_and_the_type_are_reflected() {
        let home: Secret = serde_json::from_value(json!({
            "metadata": { "name": "login", "namespace": "shop" },
            "data": { "user": "YQ==" }, "type": "Opaque",
        }))
        .unwrap();
        insta::assert_yaml_snapshot!(forge(&home, &to_milan()));
    }

    #[test]
    fn service_account_tokens_are_not_reflected() {
        let home = serde_json::from_value(json!({
            "metadata": { "name": "default-token-x" }, "type": "kubernetes.io/service-account-token",
        }));
        assert_eq!(forge(&home.unwrap(), &to_milan()), None);
    }
}
