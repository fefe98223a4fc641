//! Number of watches on an API server, from its metrics.

use std::collections::BTreeMap;

use tombolo_testing::Side;

/// Watches of single namespaces, by resource.
pub async fn of_namespaces(side: &Side) -> BTreeMap<String, u32> {
    side.watches(|labels| labels.contains("scope=\"namespace\"")).await
}

/// Watches of Tombolo's kinds in all namespaces, by resource.
pub async fn of_peerings(side: &Side) -> BTreeMap<String, u32> {
    let is_ours = |labels: &str| labels.contains(".liqo.io\"") && labels.contains("cluster");
    side.watches(is_ours).await
}
