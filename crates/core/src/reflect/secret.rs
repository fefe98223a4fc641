//! Secrets, as the remote cluster gets them.

use k8s_openapi::api::core::v1::Secret;

use super::metadata::{ReflectionRoute, reflected};

/// Type of the Secrets that the home cluster gives to service accounts: the remote one would take
/// them for tokens of its own, and delete them.
const SERVICE_ACCOUNT_TOKEN: &str = "kubernetes.io/service-account-token";

/// The Secret over there. `None`: it is not reflected.
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
    fn the_contents_and_the_type_go_along() {
        let home: Secret = serde_json::from_value(json!({
            "metadata": { "name": "login", "namespace": "shop" },
            "data": { "user": "YQ==" }, "type": "Opaque",
        }))
        .unwrap();
        insta::assert_yaml_snapshot!(forge(&home, &to_milan()));
    }

    #[test]
    fn tokens_of_service_accounts_stay_at_home() {
        let home = serde_json::from_value(json!({
            "metadata": { "name": "default-token-x" }, "type": "kubernetes.io/service-account-token",
        }));
        assert_eq!(forge(&home.unwrap(), &to_milan()), None);
    }
}
