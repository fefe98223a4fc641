//! Exposure of the auth service by `tombolo install` on a real API server, and the advertised URL.

mod common;

use common::{get, refused};
use serde_json::{Value, json};
use tombolo_control::auth_url;
use tombolo_testbed::{Cluster, ClusterSpec, Testbed};

const BALANCER: &str = "--auth-service-type=LoadBalancer";
const INTERNAL: &str = "--auth-service-type=ClusterIP";

#[tokio::test]
async fn the_advertised_url_follows_the_exposure() {
    let spec = ClusterSpec::new("rome").control_plane_only();
    let bed = Testbed::builder("exposure").cluster(spec).start().await.expect("a control plane");
    let rome = bed.cluster("rome");
    node(rome, "10.0.0.5").await;

    invalid_flags_are_refused(rome).await;
    assert!(get(rome, &["services", "-A"]).await.to_string().find("liqo-auth").is_none());

    install(rome, &[]).await;
    let port = service(rome).await["spec"]["ports"][0]["nodePort"].clone();
    assert_eq!(service(rome).await["spec"]["type"], "NodePort");
    assert_eq!(url(rome).await, format!("https://10.0.0.5:{port}"));

    // Without a load balancer, the node port is advertised.
    install(rome, &[BALANCER]).await;
    assert_eq!(service(rome).await["spec"]["type"], "LoadBalancer");
    assert_eq!(url(rome).await, format!("https://10.0.0.5:{port}"), "the port stays");
    for (ingress, expected) in [
        (json!([{ "ip": "192.0.2.7" }]), "https://192.0.2.7:443"),
        (json!([{ "hostname": "lb.example.com" }]), "https://lb.example.com:443"),
    ] {
        balancer(rome, &ingress).await;
        assert_eq!(url(rome).await, expected);
    }
    install(rome, &[]).await;
    assert_eq!(service(rome).await["spec"]["type"], "LoadBalancer", "the Service type stays");
    assert_eq!(url(rome).await, "https://lb.example.com:443");

    install(rome, &["--auth-url=https://rome.example.com:8443/"]).await;
    install(rome, &[]).await;
    assert_eq!(url(rome).await, "https://rome.example.com:8443");

    install(rome, &[INTERNAL, "--auth-ingress=auth.example.com"]).await;
    assert_eq!(url(rome).await, "https://rome.example.com:8443", "a configured URL stays");
    install(rome, &["--auth-url="]).await;
    assert_eq!(url(rome).await, "https://auth.example.com");
    install(rome, &[]).await;
    let service = service(rome).await;
    assert_eq!(service["spec"]["type"], "ClusterIP");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], Value::Null, "no node port is left");
    let ingress = get(rome, &["ingress", "-n", "liqo", "liqo-auth"]).await;
    assert_eq!(
        ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/backend-protocol"],
        "HTTPS"
    );
    let tls = json!([{ "hosts": ["auth.example.com"], "secretName": "liqo-auth-cert" }]);
    assert_eq!(ingress["spec"]["tls"], tls);
    let rule = &ingress["spec"]["rules"][0];
    assert_eq!(rule["host"], "auth.example.com");
    let backend = json!({ "service": { "name": "liqo-auth", "port": { "name": "https" } } });
    assert_eq!(rule["http"]["paths"][0]["backend"], backend);

    let complaint = refused(rome, &["install", "--auth-ingress="]).await;
    assert!(complaint.contains("--auth-service-type"), "{complaint}");
    install(rome, &["--auth-ingress=", "--auth-service-type=NodePort"]).await;
    let left = get(rome, &["ingress", "-n", "liqo"]).await;
    assert_eq!(left["items"], json!([]), "the Ingress is deleted");
    assert!(url(rome).await.starts_with("https://10.0.0.5:3"));
    bed.remove().expect("it is removed");
}

async fn invalid_flags_are_refused(rome: &Cluster) {
    for (flag, says) in [
        (INTERNAL, "set --auth-ingress or --auth-url"),
        ("--auth-service-type=ExternalName", "possible values: NodePort, LoadBalancer, ClusterIP"),
        ("--auth-ingress=192.0.2.1", "is not a host name"),
        ("--auth-ingress=https://rome", "is not a host name"),
        ("--auth-url=http://rome", "it does not start with https://"),
        ("--auth-url=https://127.0.0.1:443", "its host is a loopback or unspecified address"),
        ("--auth-url=https://rome:70000", "its port is not between 1 and 65535"),
    ] {
        let complaint = refused(rome, &["install", flag]).await;
        assert!(complaint.contains(says), "{flag}: {complaint}");
    }
}

/// Applies all objects. Without nodes no component becomes ready, so it does not wait.
async fn install(rome: &Cluster, flags: &[&str]) {
    let complaint = refused(rome, &[&["install", "--timeout=0"], flags].concat()).await;
    assert!(complaint.contains("not all components became ready"), "{complaint}");
}

async fn service(rome: &Cluster) -> Value {
    get(rome, &["service", "-n", "liqo", "liqo-auth"]).await
}

/// The URL that the controllers detect.
async fn url(rome: &Cluster) -> String {
    let client = rome.client().await.expect("a client");
    auth_url::find(&client).await.expect("a URL")
}

/// Creates a node with a status, as a kubelet would.
async fn node(rome: &Cluster, address: &str) {
    let node = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "rome-a" },
        "spec": { "podCIDR": "10.244.0.0/24" },
    });
    rome.apply(&node.to_string()).await.expect("a node");
    let status = json!({ "status": {
        "addresses": [{ "type": "InternalIP", "address": address }],
        "conditions": [{ "type": "Ready", "status": "True" }],
    } });
    patch_status(rome, &["node", "rome-a"], &status).await;
}

/// Sets the status of the Service, as a load balancer controller would.
async fn balancer(rome: &Cluster, ingress: &Value) {
    let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
    patch_status(rome, &["service", "-n", "liqo", "liqo-auth"], &status).await;
}

async fn patch_status(rome: &Cluster, what: &[&str], status: &Value) {
    let patch = status.to_string();
    let all = [&["patch"], what, &["--subresource=status", "--type=merge", "-p", &patch]].concat();
    rome.kubectl(&all).await.expect("a status");
}
