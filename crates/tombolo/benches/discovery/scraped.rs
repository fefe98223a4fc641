//! Metrics of the components, as scraped by Prometheus.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tombolo_api::names::{COMPONENT_LABEL, NAMESPACE};

/// Sums and counts, by metric name with labels.
#[derive(Debug)]
pub struct Scraped(BTreeMap<String, f64>);

impl Scraped {
    /// Scrapes discovery and the controllers of a cluster.
    pub async fn of(client: &Client) -> Result<Self> {
        let mut all: BTreeMap<String, f64> = BTreeMap::new();
        for component in ["liqo-discovery", "liqo-control"] {
            // Each exports all steps, with zero for the steps of the other.
            for (name, value) in values(&scrape(client, component).await?) {
                *all.entry(name).or_default() += value;
            }
        }
        Ok(Self(all))
    }

    /// Number of clusters announced in its local networks.
    pub fn neighbours(&self) -> f64 {
        self.0["tombolo_discovery_announced_clusters"]
    }

    /// The mean of the measurements since `before` in milliseconds, if there are any.
    pub fn since(&self, before: &Self, name: &str, labels: &str) -> Option<f64> {
        let grown = |kind: &str| {
            let key = format!("{name}_{kind}{{{labels}}}");
            let of = |all: &Self| all.0.get(&key).copied().unwrap_or_default();
            of(self) - of(before)
        };
        let count = grown("count");
        (count > 0.0).then(|| grown("sum") / count * 1000.0)
    }
}

/// Scrapes the port in the pod's annotation, through the API server.
async fn scrape(client: &Client, component: &str) -> Result<String> {
    let pods = Api::<Pod>::namespaced(client.clone(), NAMESPACE);
    let only = ListParams::default().labels(&format!("{COMPONENT_LABEL}={component}"));
    let pod = pods.list(&only).await?.items.into_iter().next();
    let pod = pod.with_context(|| format!("no pod of {component}"))?;
    let port = &pod.annotations()["prometheus.io/port"];
    let path =
        format!("/api/v1/namespaces/{NAMESPACE}/pods/{}:{port}/proxy/metrics", pod.name_any());
    let request = http::Request::get(path).body(Vec::new())?;
    Ok(client.request_text(request).await?)
}

fn values(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let pairs = lines.filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    });
    pairs.collect()
}
