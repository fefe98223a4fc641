//! Exposure of the auth service other than a node port, each with a real proxy: an Ingress, which
//! terminates TLS, and a load balancer, which forwards TCP.

#[path = "../common/mod.rs"]
mod common;

mod balancer;
mod ingress;
mod nginx;

use balancer::Balancer;
use common::{SOON, dns, get, list, refused, tombolo, within};
use ingress::{Controller, endpoints};
use serde_json::{Value, json};
use tombolo_testbed::{Cluster, ClusterSpec, Protocol, Testbed};

const HOST: &str = "auth.rome.example";
const OTHER_HOST: &str = "login.rome.example";

#[tokio::test]
async fn clusters_peer_through_an_ingress_and_a_load_balancer() {
    let specs = ["rome", "milan"].map(ClusterSpec::new);
    let bed = common::bed("ways-in", specs).start().await.expect("the clusters start");
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    // Without discovery.
    let _cut = bed.between(rome, milan).port(Protocol::Udp, 5353).cut().expect("the LAN is cut");
    let mut controller = Controller::start(rome, rome.node(2)).await;
    let hosts = format!("hosts {{\n {} {HOST} {OTHER_HOST}\n }}", rome.node(2).address());
    let ingress = format!("--auth-ingress={HOST}");
    let exposed = ["install", "--empty-token", "--auth-service-type=ClusterIP", &ingress];
    let (said, ..) = tokio::join!(
        tombolo(rome, &exposed),
        tombolo(milan, &["install", "--empty-token"]),
        dns::also_serve(milan, "rome.example", &hosts),
    );
    assert!(said.contains(&format!("for other clusters: https://{HOST}")), "{said}");
    assert!(!said.contains("does not name"), "its certificate is for that host: {said}");
    let service = auth_service(rome).await;
    assert_eq!(service["spec"]["ports"][0]["nodePort"], Value::Null, "no node port is left");

    plain_http_to_the_backend_is_reported(rome, milan, &mut controller).await;
    an_ingress_without_backend_is_reported(rome, milan, &mut controller).await;
    by_the_ingress(rome, milan, &mut controller).await;
    by_another_host(rome, milan, &mut controller).await;
    by_the_load_balancer(&bed).await;
}

/// Without pods of the auth service, the error is reported and the request is retried.
async fn an_ingress_without_backend_is_reported(
    rome: &Cluster,
    milan: &Cluster,
    controller: &mut Controller<'_>,
) {
    scale(rome, 0).await;
    controller.sync().await;
    knows_by_hand(milan, HOST, &fingerprint(rome).await).await;
    let told = refusal(milan, "AuthUnreachable", "503 Service Unavailable from a proxy").await;
    assert!(told.contains(&format!("GET https://{HOST}/info")), "{told}");
    scale(rome, 1).await;
    controller.nginx.logs(&["GET /info HTTP/1.1: 503"]).await;
}

async fn scale(rome: &Cluster, replicas: usize) {
    let wanted = format!("--replicas={replicas}");
    let scale = ["scale", "-n", "liqo", "deployment/liqo-auth", &wanted];
    rome.kubectl(&scale).await.expect("it is scaled");
    let behind = async || endpoints(rome, "liqo-auth", "https").await.len();
    within(SOON, "the Service knows its pods", behind, |count| *count == replicas).await;
}

/// As with an Ingress controller that needs another annotation.
async fn plain_http_to_the_backend_is_reported(
    rome: &Cluster,
    milan: &Cluster,
    controller: &mut Controller<'_>,
) {
    let protocol = "nginx.ingress.kubernetes.io/backend-protocol-";
    let plain = ["annotate", "ingress", "-n", "liqo", "liqo-auth", protocol];
    rome.kubectl(&plain).await.expect("the annotation goes");
    controller.sync().await;
    knows_by_hand(milan, HOST, &fingerprint(rome).await).await;
    // From a response that is not HTTP, nginx makes an invalid one too.
    refusal(milan, "AuthUnreachable", "invalid HTTP version").await;
    is_forgotten(milan).await;
    tombolo(rome, &["install"]).await;
}

async fn by_the_ingress(rome: &Cluster, milan: &Cluster, controller: &mut Controller<'_>) {
    controller.sync().await;
    has_an_identity(milan, "rome-by-hand").await;
    let entry = get(milan, &["foreigncluster", "rome-by-hand"]).await;
    assert_eq!(entry["spec"]["clusterIdentity"]["clusterName"], "rome", "{entry:#}");
    let asked = ["GET /info", "POST /identity/certificate"]
        .map(|request| format!("asked {HOST}: {request} HTTP/1.1: 200 from 10."));
    let log = controller.nginx.logs(&[&asked[0], &asked[1]]).await;
    assert!(log.lines().all(|line| from(milan, line)), "{log}");

    // The reason of a refusal passes the proxy.
    let address = rome.node(2).address();
    let huge = format!(
        "head -c 200000 /dev/zero | curl --silent --insecure --data-binary @- \
         --resolve {HOST}:443:{address} https://{HOST}/identity"
    );
    let said = milan.node(1).run(&["sh", "-c", &huge]).await.expect("an answer");
    assert!(said.contains("a request has at most 16384 bytes"), "{said}");
    controller.nginx.logs(&["POST /identity HTTP/2.0: 413 from 10."]).await;

    is_forgotten(milan).await;
    let given_back = format!("asked {HOST}: DELETE /identity HTTP/1.1: 204 from 10.");
    controller.nginx.logs(&[&given_back]).await;
}

/// The certificate does not name the host, so the controller presents its own, until a new one is
/// issued as `tombolo install` advises.
async fn by_another_host(rome: &Cluster, milan: &Cluster, controller: &mut Controller<'_>) {
    let said = tombolo(rome, &["install", &format!("--auth-ingress={OTHER_HOST}")]).await;
    let advice = format!("does not name {OTHER_HOST}");
    assert!(said.contains(&advice) && said.contains("delete secret liqo-auth-cert"), "{said}");
    controller.sync().await;
    let expected = fingerprint(rome).await;
    knows_by_hand(milan, OTHER_HOST, &expected).await;
    let told = refusal(milan, "OtherCertificate", &format!("expected {expected}")).await;
    let url = format!("https://{OTHER_HOST}");
    assert!(told.contains(&url), "{told}");
    is_forgotten(milan).await;
    let flags = ["peer", &url, "--fingerprint", &expected, "--timeout", "5"];
    let said = refused(milan, &flags).await;
    assert!(said.contains(&format!("expected {expected}")), "{said}");
    let log = controller.nginx.logs(&[]).await;
    assert!(!log.contains(OTHER_HOST), "no request is sent under another certificate: {log}");

    let delete = ["delete", "secret", "-n", "liqo", "liqo-auth-cert"];
    rome.kubectl(&delete).await.expect("it goes");
    let now = async || fingerprint(rome).await;
    within(SOON, "another certificate is issued", now, |now| *now != expected).await;
    let said = tombolo(rome, &["install"]).await;
    assert!(!said.contains("does not name"), "{said}");
    controller.sync().await;
    knows_by_hand(milan, OTHER_HOST, &fingerprint(rome).await).await;
    has_an_identity(milan, "rome-by-hand").await;
    is_forgotten(milan).await;
}

/// Rome requests a peering, and milan knows rome only from that request.
async fn by_the_load_balancer(bed: &Testbed) {
    let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
    tombolo(rome, &["install", "--auth-ingress=", "--auth-service-type=LoadBalancer"]).await;
    let balancer = Balancer::of(bed, rome).await;
    let url = format!("https://{}:443", balancer.address);
    let said = tombolo(rome, &["install"]).await;
    assert!(said.contains(&format!("for other clusters: {url}")), "{said}");

    let port = auth_service(milan).await["spec"]["ports"][0]["nodePort"].clone();
    let at = format!("https://{}:{port}", milan.node(1).address());
    tombolo(rome, &["peer", &at, "--name", "milan"]).await;
    has_an_identity(milan, "rome").await;
    let entry = get(milan, &["foreigncluster", "rome"]).await;
    assert_eq!(entry["spec"]["authUrl"], url, "{entry:#}");
    assert_eq!(entry["spec"]["fingerprint"], fingerprint(rome).await, "{entry:#}");
    let port = auth_service(rome).await["spec"]["ports"][0]["nodePort"].clone();
    let log = balancer.nginx.logs(&[&format!(":{port} sent ")]).await;
    assert!(log.lines().all(|line| from(milan, line)), "{log}");
}

/// Whether the request came from a node of this cluster.
fn from(cluster: &Cluster, line: &str) -> bool {
    let mut nodes = cluster.nodes().iter();
    nodes.any(|node| line.starts_with(&format!("{} ", node.address())))
}

async fn auth_service(cluster: &Cluster) -> Value {
    get(cluster, &["service", "-n", "liqo", "liqo-auth"]).await
}

/// The fingerprint that a cluster advertises.
async fn fingerprint(cluster: &Cluster) -> String {
    let service = auth_service(cluster).await;
    let said = service["metadata"]["annotations"]["discovery.liqo.io/fingerprint"].as_str();
    said.expect("it says its fingerprint").to_owned()
}

async fn knows_by_hand(milan: &Cluster, host: &str, fingerprint: &str) {
    let entry = json!({
        "apiVersion": "discovery.liqo.io/v1alpha1",
        "kind": "ForeignCluster",
        "metadata": { "name": "rome-by-hand" },
        "spec": { "authUrl": format!("https://{host}"), "fingerprint": fingerprint },
    });
    milan.apply(&entry.to_string()).await.expect("a ForeignCluster");
}

/// Waits until the identity is refused for this reason, and returns the message.
async fn refusal(milan: &Cluster, reason: &str, part: &str) -> String {
    let said = async || authenticated(milan, "rome-by-hand").await;
    let is = |said: &Value| {
        said["status"] == "False"
            && said["reason"] == reason
            && said["message"].to_string().contains(part)
    };
    within(SOON, &format!("{reason}: {part}"), said, is).await;
    said().await["message"].to_string()
}

async fn has_an_identity(milan: &Cluster, name: &str) {
    let said = async || authenticated(milan, name).await;
    let is = |said: &Value| said["status"] == "True";
    within(SOON, &format!("{} has an identity of {name}", milan.name()), said, is).await;
    let entry = get(milan, &["foreigncluster", name]).await;
    assert_eq!(entry["status"]["authStatus"], "Accepted", "{entry:#}");
}

async fn authenticated(cluster: &Cluster, name: &str) -> Value {
    let all = list(cluster, &["foreignclusters"]).await;
    let entry = all.into_iter().find(|entry| common::name(entry) == name).unwrap_or_default();
    let said = entry["status"]["conditions"].as_array().cloned().unwrap_or_default();
    said.into_iter().find(|said| said["type"] == "Authenticated").unwrap_or_default()
}

async fn is_forgotten(milan: &Cluster) {
    let delete = ["delete", "foreigncluster", "rome-by-hand", "--timeout=30s"];
    milan.kubectl(&delete).await.expect("it goes");
}
