//! The baseline for everything that goes through an API server: the duration of one write.

use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

use crate::figures::{median, milliseconds};

const WRITES: usize = 21;

/// Milliseconds from request to response, median of several writes.
pub async fn of_a_write(client: &Client) -> Result<f64> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let parameters = PatchParams::apply("bench").force();
    let mut all = Vec::new();
    for number in 0..WRITES {
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": "round-trip" },
            "data": { "number": number.to_string() },
        });
        let start = Instant::now();
        maps.patch("round-trip", &parameters, &Patch::Apply(map)).await?;
        all.push(milliseconds(start.elapsed()));
    }
    Ok(median(all))
}
