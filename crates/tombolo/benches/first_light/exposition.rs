//! From the creation of a Service in the home cluster to all its endpoints in the remote one.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::Result;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, from_value, json};
use tombolo_api::names::SERVICE_NAME_LABEL;
use tombolo_testbed::Cluster;

use crate::common::{SOON, within};
use crate::figures::{median, milliseconds, print, table, worst};
use crate::moments::{Moments, Step};
use crate::round_trip;

const RUNS: usize = 7;
const SIZES: [u8; 2] = [10, 100];
const NAMESPACE: &str = "shop";
const COMPLETE: Step = "all endpoints in milan";

pub async fn measure(rome: &Cluster, milan: &Cluster) -> Result<()> {
    let (home, remote) = (rome.client().await?, milan.client().await?);
    let mut rows = table(1, &["ENDPOINTS", "MEDIAN", "WORST", "WRITES"]);
    let mut writes = Vec::new();
    for size in SIZES {
        let write = round_trip::of_a_write(&home).await?;
        let mut all = Vec::new();
        for run in 0..RUNS {
            all.push(expose(&home, &remote, &format!("wide-{size}-{run}"), size).await?);
        }
        eprintln!("{size} endpoints: {all:.0?} ms");
        let (middle, worst) = (median(all.clone()), worst(&all));
        rows.add_row([
            size.to_string(),
            format!("{middle:.0} ms"),
            format!("{worst:.0} ms"),
            format!("{:.0} ×", middle / write),
        ]);
        writes.push(write);
    }
    rows.add_row(["one write", &format!("{:.1} ms", median(writes)), "", "1 ×"]);
    print(&format!("Service in rome → all its endpoints in milan, {RUNS} times"), &rows);
    Ok(())
}

async fn expose(home: &Client, remote: &Client, name: &str, size: u8) -> Result<f64> {
    let mut moments = Moments::new();
    let (of, mut there) = (name.to_owned(), BTreeSet::new());
    let slices: Api<EndpointSlice> = Api::namespaced(remote.clone(), NAMESPACE);
    moments.watch(slices.clone(), move |slice| {
        if slice.labels().get(SERVICE_NAME_LABEL) == Some(&of) {
            there.extend(ready_addresses(slice));
        }
        if there.len() == usize::from(size) { vec![COMPLETE] } else { Vec::new() }
    });
    moments.begun().await?;

    let at_home = (
        Api::<Service>::namespaced(home.clone(), NAMESPACE),
        Api::<EndpointSlice>::namespaced(home.clone(), NAMESPACE),
    );
    let service = from_value(service(name))?;
    let slice = from_value(slice(name, size))?;
    let create = PostParams::default();
    let start = Instant::now();
    at_home.0.create(&create, &service).await?;
    at_home.1.create(&create, &slice).await?;
    let seen = moments.of(&[COMPLETE]).await?;
    let took = milliseconds(seen[COMPLETE] - start);

    at_home.0.delete(name, &DeleteParams::default()).await?;
    at_home.1.delete(name, &DeleteParams::default()).await?;
    let left = async || slices.get_opt(name).await.ok().flatten().is_some();
    within(SOON, &format!("{name} is gone"), left, |left| !left).await;
    Ok(took)
}

fn ready_addresses(slice: &EndpointSlice) -> Vec<String> {
    let ready = slice.endpoints.iter().filter(|endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready) == Some(true)
    });
    ready.flat_map(|endpoint| endpoint.addresses.clone()).collect()
}

/// A Service without a selector, so that its endpoints are those of the test.
fn service(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": { "ports": [{ "name": "http", "port": 80 }] },
    })
}

/// Endpoints with possible pod addresses, without pods.
fn slice(name: &str, size: u8) -> Value {
    let endpoints = (1..=size).map(|host| {
        json!({
            "addresses": [Ipv4Addr::new(10, 244, 200, host)],
            "conditions": { "ready": true },
        })
    });
    json!({
        "metadata": { "name": name, "labels": { SERVICE_NAME_LABEL: name } },
        "addressType": "IPv4",
        "endpoints": endpoints.collect::<Vec<_>>(),
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
    })
}
