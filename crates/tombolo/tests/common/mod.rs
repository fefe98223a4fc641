//! Helpers for tests of the whole product: clusters with its image, and the program as run by a
//! user.

#![allow(dead_code)] // Every test program uses a part of it.

pub mod control;
pub mod dns;
pub mod load;
pub mod look;
pub mod way_back;

use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use tombolo_testbed::{Cluster, ClusterSpec, Testbed, TestbedBuilder, images};

pub use tombolo_testbed::within;

/// The static program, which cargo does not build for tests and benchmarks. Any profile works.
pub fn static_program() -> PathBuf {
    std::env::var_os("TOMBOLO_STATIC")
        .map(PathBuf::from)
        .expect("TOMBOLO_STATIC names the static program: `make test-clusters`, `make bench`")
}

/// Clusters of two nodes, with the images of the product and of the toolbox.
pub fn bed(name: &str, clusters: impl IntoIterator<Item = ClusterSpec>) -> TestbedBuilder {
    tombolo_testbed::prepare(&tombolo_testbed::Progress::plain()).expect("all is there");
    let toolbox = images::toolbox().expect("the toolbox's programs are installed");
    let tombolo = images::tombolo(&static_program());
    clusters.into_iter().fold(Testbed::builder(name), |bed, spec| {
        bed.cluster(spec.nodes(2).image(toolbox.clone()).image(tombolo.clone()))
    })
}

/// Runs the program for a cluster and returns its result.
pub async fn try_tombolo(cluster: &Cluster, arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command.args(arguments).arg("--kubeconfig").arg(cluster.kubeconfig());
    command.output().await.expect("the program can be run")
}

/// Runs the program for a cluster and returns its output.
pub async fn tombolo(cluster: &Cluster, arguments: &[&str]) -> String {
    let start = Instant::now();
    let output = try_tombolo(cluster, arguments).await;
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tombolo {arguments:?} in {}: {error}", cluster.name());
    let seconds = start.elapsed().as_secs_f32();
    eprintln!("tombolo {} in {}: {seconds:.1} s", arguments.join(" "), cluster.name());
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs the program for a cluster, expects a failure, and returns the error.
pub async fn refused(cluster: &Cluster, arguments: &[&str]) -> String {
    let output = try_tombolo(cluster, arguments).await;
    assert!(!output.status.success(), "tombolo {arguments:?} should be refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The JSON output of kubectl.
pub async fn get(cluster: &Cluster, arguments: &[&str]) -> Value {
    let all = [&["get", "-o", "json"], arguments].concat();
    let text = cluster.kubectl(&all).await.expect("kubectl gets it");
    serde_json::from_str(&text).expect("kubectl prints JSON")
}

/// The items of a list from kubectl.
pub async fn list(cluster: &Cluster, arguments: &[&str]) -> Vec<Value> {
    get(cluster, arguments).await["items"].as_array().cloned().unwrap_or_default()
}

pub fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The status of a condition: True, False or Unknown; empty when there is none.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    let all = object["status"]["conditions"].as_array();
    let found = all.into_iter().flatten().find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or_default()
}

pub const SOON: Duration = Duration::from_secs(60);

/// Installs the product in all clusters at once.
pub async fn install(bed: &Testbed, flags: &[&str]) {
    let all = [&["install"], flags].concat();
    futures::future::join_all(bed.clusters().iter().map(|cluster| tombolo(cluster, &all))).await;
}
