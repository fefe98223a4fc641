//! How many watches an API server serves, as it says itself.

use std::collections::BTreeMap;

use tombolo_testing::Side;

/// Those of all objects of one namespace, by resource.
pub async fn of_namespaces(side: &Side) -> BTreeMap<String, u32> {
    count(side, |labels| labels.contains("scope=\"namespace\"")).await
}

/// Those of our own kinds in all namespaces, by resource.
pub async fn of_peerings(side: &Side) -> BTreeMap<String, u32> {
    let is_ours = |labels: &str| labels.contains(".liqo.io\"") && labels.contains("cluster");
    count(side, is_ours).await
}

async fn count(side: &Side, is_meant: impl Fn(&str) -> bool) -> BTreeMap<String, u32> {
    let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
    let metrics = side.client.request_text(request).await.expect("metrics");
    let mut counts = BTreeMap::new();
    for line in metrics.lines() {
        let Some(labels) = line.strip_prefix("apiserver_longrunning_requests{") else { continue };
        let (labels, value) = labels.split_once("} ").expect("labels and a value");
        if labels.contains("verb=\"WATCH\"") && is_meant(labels) {
            let (_, resource) = labels.split_once("resource=\"").expect("a resource");
            let (resource, _) = resource.split_once('"').expect("a resource");
            *counts.entry(resource.to_owned()).or_default() +=
                value.parse::<u32>().expect("a number");
        }
    }
    counts.retain(|_, count| *count > 0);
    counts
}
