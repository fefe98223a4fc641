//! How many watches an API server serves, as it says itself.

use std::collections::BTreeMap;

use tombolo_testing::Side;

/// Those of all objects of one namespace, by resource.
pub async fn of_namespaces(side: &Side) -> BTreeMap<String, u32> {
    side.watches(|labels| labels.contains("scope=\"namespace\"")).await
}

/// Those of our own kinds in all namespaces, by resource.
pub async fn of_peerings(side: &Side) -> BTreeMap<String, u32> {
    let is_ours = |labels: &str| labels.contains(".liqo.io\"") && labels.contains("cluster");
    side.watches(is_ours).await
}
