//! The address service: authentication, leadership, and fencing of a former leader.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tombolo_testbed::Cluster;
use tonic::Code;

use crate::common::{SOON, get, list, name, within};
use crate::grpc::{AddressClient, connect};
use crate::story::story;

const OUTSIDE: &str = "
apiVersion: v1
kind: Service
metadata: {name: outside, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: outside, namespace: shop, labels: {kubernetes.io/service-name: outside}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [192.0.2.50]}]
";

/// The virtual kubelet uses its client certificate.
#[tokio::test]
async fn a_non_pod_endpoint_is_reflected_with_a_translated_address() {
    let story = story().await;
    let (rome, milan) = (story.rome(), story.milan());
    rome.apply(OUTSIDE).await.unwrap();
    let slices = ["endpointslices", "-n", "shop", "-l", "kubernetes.io/service-name=outside"];
    let reflected = async || {
        let all = list(milan, &slices).await;
        let first = all.first().map(|slice| slice["endpoints"][0]["addresses"][0].clone());
        first.and_then(|address| address.as_str().map(str::to_owned))
    };
    let is_another =
        |address: &Option<String>| address.as_ref().is_some_and(|it| it != "192.0.2.50");
    within(SOON, "the endpoint is known in milan", reflected, is_another).await;
    let address = reflected().await.expect("it is known");
    assert!(written(rome).await.contains(&address), "the gateway has a mapping for {address}");
    for object in ["service/outside", "endpointslice/outside"] {
        rome.kubectl(&["delete", "-n", "shop", object, "--ignore-not-found"]).await.unwrap();
    }
    let mapped = async || get(rome, &["natmappings"]).await.to_string().contains("192.0.2.50");
    within(SOON, "the address is freed", mapped, |mapped| !mapped).await;
}

#[tokio::test]
async fn a_client_without_certificate_gets_no_answer() {
    let story = story().await;
    let to = SocketAddr::new(service(story.rome()).await, 6000);
    let mut stream = connect(story.rome().node(1), to).await.expect("it is reached");
    // The HTTP/2 preface, in plain text.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // Plain text gets a TLS alert or no response.
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer[0] == 21, "{answer:?}");
}

#[tokio::test]
async fn a_frozen_leader_is_replaced_and_fenced_off() {
    let story = story().await;
    let rome = story.rome();
    let milan = get(rome, &["foreigncluster", "milan"]).await;
    let milan = milan["spec"]["clusterIdentity"]["clusterID"].as_str().unwrap().to_owned();
    scale(rome, 2).await;
    let first = leader(rome).await.expect("one leads");
    let through_service = AddressClient::new(rome, service(rome).await, &milan).await;
    let mapped = through_service.map("192.0.2.60").await.unwrap();
    let direct = AddressClient::new(rome, address(&first["status"]["podIP"]), &milan).await;
    assert_eq!(direct.remote("192.0.2.60").await.unwrap(), mapped, "it is connected");

    signal(rome, &first, "STOP").await;
    let (writes, reads) = (direct.clone(), direct.clone());
    let write = tokio::spawn(async move { writes.map("192.0.2.61").await });
    let read = tokio::spawn(async move { reads.remote("192.0.2.60").await });
    let now = async || leader(rome).await.map(|pod| name(&pod).to_owned());
    let is_another = |now: &Option<String>| now.as_ref().is_some_and(|now| *now != name(&first));
    within(SOON, "another one leads", now, is_another).await;
    // Existing connections lead to the frozen pod.
    let answer = async || {
        let asker = AddressClient::new(rome, service(rome).await, &milan).await;
        asker.remote("192.0.2.60").await.ok()
    };
    within(SOON, "the new leader knows the mapping", answer, |now| *now == Some(mapped.clone()))
        .await;
    assert!(!write.is_finished() && !read.is_finished(), "the frozen pod has not answered");

    signal(rome, &first, "CONT").await;
    for said in [write.await.unwrap(), read.await.unwrap()] {
        let said = said.expect_err("it does not lead any more");
        assert_eq!(said.code(), Code::Unavailable, "{said}");
    }
    assert!(!written(rome).await.contains("192.0.2.61"), "its write was not stored");
    let asker = AddressClient::new(rome, service(rome).await, &milan).await;
    asker.unmap("192.0.2.60").await.unwrap();
    scale(rome, 1).await;
    let one = async || list(rome, &LEADERS).await.len();
    within(SOON, "one leads in the end", one, |count| *count == 1).await;
}

const LEADERS: [&str; 5] = ["pods", "-n", "liqo", "-l", "liqo.io/leader=true"];

/// The pod that the Service selects.
async fn leader(cluster: &Cluster) -> Option<Value> {
    let all = list(cluster, &LEADERS).await;
    let [one] = all.as_slice() else { return None };
    Some(one.clone())
}

async fn service(cluster: &Cluster) -> IpAddr {
    let service = get(cluster, &["service", "-n", "liqo", "liqo-network-manager"]).await;
    address(&service["spec"]["clusterIP"])
}

fn address(value: &Value) -> IpAddr {
    value.as_str().and_then(|text| text.parse().ok()).expect("an address")
}

/// All objects of the address service.
async fn written(cluster: &Cluster) -> String {
    let all = list(cluster, &["ipamstorages,natmappings", "-A"]).await;
    all.iter().map(|object| object["spec"].to_string()).collect()
}

async fn scale(cluster: &Cluster, replicas: usize) {
    let replicas = format!("--replicas={replicas}");
    let scale = ["scale", "-n", "liqo", "deployment/liqo-control", &replicas];
    cluster.kubectl(&scale).await.unwrap();
    cluster.deployed("liqo", "liqo-control").await.unwrap();
}

/// Sends a signal to the process of a controller pod.
async fn signal(cluster: &Cluster, pod: &Value, signal: &str) {
    let place = pod["spec"]["nodeName"].as_str().unwrap();
    let node = cluster.nodes().iter().find(|node| node.name() == place).unwrap();
    let script = format!(
        "for p in $(pgrep -f '^[^ ]*tombolo control'); do \
         tr '\\0' '\\n' </proc/$p/environ | grep -qx POD_NAME={} && kill -{signal} $p && exit; \
         done; exit 1",
        name(pod)
    );
    node.run(&["sh", "-c", &script]).await.expect("its process is there");
}
