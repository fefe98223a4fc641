//! The yardstick: small objects that are written one by one, by as many clients.

use std::time::Instant;

use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

/// All clients together.
const WRITES: usize = 300;

/// How many writes the API server takes in a second from so many clients, each with one at a time.
pub async fn a_second(client: &Client, clients: usize) -> Result<f64> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let parameters = PatchParams::apply("bench").force();
    let write = async |who: usize, number: usize| {
        let name = format!("single-write-{who}");
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": name },
            "data": { "number": number.to_string() },
        });
        maps.patch(&name, &parameters, &Patch::Apply(map)).await.map(drop)
    };
    let each = WRITES / clients;
    try_join_all((0..clients).map(|who| write(who, each))).await?;
    let start = Instant::now();
    let all = (0..clients).map(async |who| {
        for number in 0..each {
            write(who, number).await?;
        }
        Ok::<_, kube::Error>(())
    });
    try_join_all(all).await?;
    Ok((clients * each) as f64 / start.elapsed().as_secs_f64())
}
