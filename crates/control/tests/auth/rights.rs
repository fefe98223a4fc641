//! What an identity is tried for, and what comes of it.

use http::Request;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    client::Body,
};
use serde_json::{Value, json};
use tombolo_api::{discovery::ResourceRequest, net::NetworkConfig};
use tombolo_testbed::eventually;
use tombolo_testing::put;

use crate::side::Side;

const TENANT: &str = "/namespaces/liqo-tenant-rome";
const REQUESTS: &str =
    "/apis/discovery.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/resourcerequests";
const CONFIGS: &str = "/apis/net.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/networkconfigs";
const OFFERS: &str = "/apis/sharing.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/resourceoffers";
const MAPS: &str =
    "/apis/virtualkubelet.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/namespacemaps";

/// Rome's identity at milan.
pub async fn an_identity_can_do_what_it_should_and_nothing_else(rome: &Side, milan: &Side) {
    let identity = rome.identity_at(milan).await;
    let there = &identity.client;
    assert_eq!(identity.namespace, "liqo-tenant-rome");

    for (method, path) in refused() {
        let status = attempt(there, method, &path).await;
        assert_eq!(status, 403, "{method} {path}");
    }
    for (method, path) in [
        ("GET", "/readyz".to_owned()),
        ("GET", REQUESTS.to_owned()),
        ("GET", CONFIGS.to_owned()),
        ("APPLY", format!("{REQUESTS}/rome")),
        ("POST", format!("/api/v1{TENANT}/serviceaccounts/liqo-cluster/token")),
    ] {
        let status = attempt(there, method, &path).await;
        assert!((200..300).contains(&status), "{method} {path}: {status}");
    }

    // It asks, milan accepts: now it can bring the rest, under its own name.
    let requests = Api::<ResourceRequest>::namespaced(there.clone(), "liqo-tenant-rome");
    put(&requests, "rome", request("rome")).await;
    let here = Api::<ResourceRequest>::namespaced(milan.client.clone(), "liqo-tenant-rome");
    let accepted = Patch::Merge(json!({ "status": { "state": "Accepted" } }));
    here.patch_status("rome", &PatchParams::default(), &accepted).await.expect("accepted");
    can_write(there, &format!("{CONFIGS}/rome"), true).await;
    for kind in [CONFIGS, OFFERS, MAPS] {
        assert_ne!(attempt(there, "APPLY", &format!("{kind}/rome")).await, 403, "{kind}");
        for (method, path) in [
            ("APPLY", format!("{kind}/milan")),
            ("DELETE", format!("{kind}/milan")),
            ("APPLY", format!("{kind}/rome/status")),
            ("POST", kind.to_owned()),
            ("DELETE", kind.to_owned()),
        ] {
            assert_eq!(attempt(there, method, &path).await, 403, "{method} {path}");
        }
    }
    for (method, path) in refused().into_iter().filter(|(_, path)| !path.ends_with("/rome")) {
        assert_eq!(attempt(there, method, &path).await, 403, "{method} {path}");
    }

    // The peering ends: it can still take down its own things, and make no new ones.
    let configs = Api::<NetworkConfig>::namespaced(there.clone(), "liqo-tenant-rome");
    put(&configs, "rome", body(CONFIGS, "rome")).await;
    requests.delete("rome", &Default::default()).await.expect("its own request");
    can_write(there, &format!("{CONFIGS}/rome"), false).await;
    configs.delete("rome", &Default::default()).await.expect("its own");
    let gone = configs.get_opt("rome").await.expect("it may look");
    assert!(gone.is_none());
}

fn refused() -> Vec<(&'static str, String)> {
    let core = |path: &str| format!("/api/v1{TENANT}{path}");
    vec![
        // Its request, but not by that name, not as a whole, not our answer to it.
        ("APPLY", format!("{REQUESTS}/milan")),
        ("APPLY", format!("{REQUESTS}/naples")),
        ("GET", format!("{REQUESTS}/milan")),
        ("DELETE", format!("{REQUESTS}/milan")),
        ("DELETE", REQUESTS.to_owned()),
        ("POST", REQUESTS.to_owned()),
        ("APPLY", format!("{REQUESTS}/rome/status")),
        // Other kinds, before a peering.
        ("APPLY", format!("{CONFIGS}/rome")),
        ("APPLY", format!("{OFFERS}/rome")),
        ("APPLY", format!("{MAPS}/rome")),
        // Ours, beside its own.
        ("GET", core("/secrets/liqo-identity")),
        ("GET", core("/secrets")),
        ("POST", core("/secrets")),
        ("GET", core("/configmaps")),
        ("GET", core("/pods")),
        ("GET", core("/serviceaccounts")),
        ("POST", core("/serviceaccounts/default/token")),
        ("GET", "/apis/net.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/tunnelendpoints".into()),
        ("GET", format!("/apis/rbac.authorization.k8s.io/v1{TENANT}/roles")),
        ("APPLY", format!("/apis/rbac.authorization.k8s.io/v1{TENANT}/roles/liqo-cluster")),
        ("APPLY", format!("/apis/rbac.authorization.k8s.io/v1{TENANT}/rolebindings/more")),
        // Others'.
        ("GET", REQUESTS.replace("tenant-rome", "tenant-naples")),
        ("APPLY", format!("{}/rome", REQUESTS.replace("tenant-rome", "tenant-naples"))),
        ("GET", "/api/v1/namespaces/liqo/secrets/auth-token".into()),
        ("GET", "/api/v1/namespaces/liqo-auth/secrets".into()),
        ("GET", "/api/v1/namespaces/liqo-auth/secrets/identity-id-of-rome".into()),
        ("GET", "/api/v1/namespaces/default/pods".into()),
        // The cluster's.
        ("GET", "/api/v1/namespaces".into()),
        ("GET", "/api/v1/nodes".into()),
        ("GET", "/api/v1/secrets".into()),
        ("GET", "/apis/discovery.liqo.io/v1alpha1/resourcerequests".into()),
        ("GET", "/apis/discovery.liqo.io/v1alpha1/foreignclusters".into()),
        ("GET", "/apis/config.liqo.io/v1alpha1/clusterconfigs/cluster".into()),
        ("APPLY", "/apis/discovery.liqo.io/v1alpha1/foreignclusters/rome".into()),
        ("GET", "/metrics".into()),
    ]
}

/// Tries it for real, but without an effect, and returns the status.
async fn attempt(client: &Client, method: &str, path: &str) -> u16 {
    let name = path.trim_end_matches("/status").rsplit('/').next().unwrap_or_default();
    let (method, query, kind) = match method {
        "APPLY" => ("PATCH", "?dryRun=All&fieldManager=test&force=true", "apply-patch+yaml"),
        "POST" | "DELETE" => (method, "?dryRun=All", "json"),
        _ => (method, "", "json"),
    };
    let body = match method {
        "PATCH" => body(path, name).to_string(),
        "POST" if path.ends_with("/token") => {
            json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} })
                .to_string()
        }
        "POST" => body(path, "rome").to_string(),
        _ => String::new(),
    };
    // A token is made, or not: there is no trying.
    let query = if path.ends_with("/token") { "" } else { query };
    let request = Request::builder()
        .method(method)
        .uri(format!("{path}{query}"))
        .header("Content-Type", format!("application/{kind}"))
        .body(Body::from(body.into_bytes()))
        .expect("a request");
    client.send(request).await.expect("an answer").status().as_u16()
}

async fn can_write(client: &Client, path: &str, can: bool) {
    let ask = async || attempt(client, "APPLY", path).await;
    eventually(&format!("{path} can be written: {can}"), ask, |status| (*status != 403) == can)
        .await;
}

fn body(path: &str, name: &str) -> Value {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let version =
        if parts[0] == "api" { parts[1].to_owned() } else { format!("{}/{}", parts[1], parts[2]) };
    let (kind, spec) = if path.contains("/resourcerequests") {
        return with(request(name), &version, "ResourceRequest");
    } else if path.contains("/networkconfigs") {
        let spec = json!({
            "clusterID": "id-of-rome", "podCIDR": "10.1.0.0/16", "externalCIDR": "10.2.0.0/16",
            "endpointIP": "192.0.2.1", "backendType": "wireguard",
            "backend_config": { "port": "51840" },
        });
        ("NetworkConfig", spec)
    } else if path.contains("/resourceoffers") {
        ("ResourceOffer", json!({ "clusterID": "id-of-rome", "resourceQuota": { "hard": {} } }))
    } else if path.contains("/namespacemaps") {
        ("NamespaceMap", json!({}))
    } else if path.contains("/rolebindings") {
        ("RoleBinding", Value::Null)
    } else if path.contains("/roles") {
        ("Role", Value::Null)
    } else if path.contains("/secrets") {
        ("Secret", Value::Null)
    } else {
        ("ForeignCluster", json!({ "authUrl": "https://rome" }))
    };
    let mut object = json!({ "metadata": { "name": name } });
    if !spec.is_null() {
        object["spec"] = spec;
    }
    with(object, &version, kind)
}

fn with(mut object: Value, version: &str, kind: &str) -> Value {
    object["apiVersion"] = version.into();
    object["kind"] = kind.into();
    object
}

fn request(name: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "clusterIdentity": { "clusterID": "id-of-rome", "clusterName": "rome" },
            "authUrl": "https://192.0.2.1:443",
        },
    })
}
