//! The baseline: single writes of small objects, by the same number of clients.

use std::time::Instant;

use anyhow::Result;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client};

/// Writes of all clients together.
const WRITES: usize = 2000;
const LABEL: &str = "single-write";

/// Writes per second of this many clients, each with one at a time.
pub async fn a_second(client: &Client, clients: usize) -> Result<f64> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let write = async |name: String| {
        let metadata = ObjectMeta {
            name: Some(name),
            labels: Some([(LABEL.to_owned(), "true".to_owned())].into()),
            ..ObjectMeta::default()
        };
        let map = ConfigMap { metadata, ..ConfigMap::default() };
        maps.create(&PostParams::default(), &map).await.map(drop)
    };
    // Open the connections before the measurement.
    try_join_all((0..clients).map(|who| write(format!("first-{who}")))).await?;
    let each = WRITES / clients;
    let start = Instant::now();
    let all = (0..clients).map(async |who| {
        for number in 0..each {
            write(format!("single-{who}-{number}")).await?;
        }
        Ok::<_, kube::Error>(())
    });
    try_join_all(all).await?;
    let rate = (clients * each) as f64 / start.elapsed().as_secs_f64();
    let all = ListParams::default().labels(LABEL);
    maps.delete_collection(&DeleteParams::default(), &all).await?;
    Ok(rate)
}
