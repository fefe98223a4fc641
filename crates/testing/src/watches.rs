//! The number of watches of an API server, from its metrics.

use std::collections::BTreeMap;

use crate::Side;

impl Side {
    /// Number of watches by resource, of those whose labels match.
    pub async fn watches(&self, is_meant: impl Fn(&str) -> bool) -> BTreeMap<String, u32> {
        let request = http::Request::get("/metrics").body(Vec::new()).expect("a request");
        let metrics = self.client.request_text(request).await.expect("metrics");
        let mut counts = BTreeMap::new();
        for line in metrics.lines() {
            let Some(line) = line.strip_prefix("apiserver_longrunning_requests{") else { continue };
            let (labels, value) = line.split_once("} ").expect("labels and a value");
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
}
