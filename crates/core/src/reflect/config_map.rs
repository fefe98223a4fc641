//! Reflected ConfigMaps.

use k8s_openapi::api::core::v1::ConfigMap;

use super::metadata::{ReflectionRoute, reflected};

/// The ConfigMap that every cluster creates in each namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// The reflected ConfigMap. `None` if it is not reflected.
pub fn forge(home: &ConfigMap, route: &ReflectionRoute) -> Option<ConfigMap> {
    if home.metadata.name.as_deref() == Some(ROOT_CA) {
        return None;
    }
    Some(ConfigMap {
        metadata: reflected(&home.metadata, route),
        data: home.data.clone(),
        binary_data: home.binary_data.clone(),
        immutable: home.immutable,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::metadata::tests::to_milan;
    use super::*;

    #[test]
    fn the_contents_are_reflected() {
        let home: ConfigMap = serde_json::from_value(json!({
            "metadata": { "name": "settings", "namespace": "shop" },
            "data": { "a": "1" }, "binaryData": { "b": "AAE=" }, "immutable": true,
        }))
        .unwrap();
        insta::assert_yaml_snapshot!(forge(&home, &to_milan()));
    }

    #[test]
    fn root_certificates_are_not_reflected() {
        let home = serde_json::from_value(json!({ "metadata": { "name": "kube-root-ca.crt" } }));
        assert_eq!(forge(&home.unwrap(), &to_milan()), None);
    }
}
