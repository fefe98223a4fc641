//! Permissions of an identity: allowed and forbidden API requests at each stage of a peering.

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

use crate::{certificate::client, service::call, side::Side};

const TENANT: &str = "/namespaces/liqo-tenant-rome";
const REQUESTS: &str =
    "/apis/discovery.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/resourcerequests";
const CONFIGS: &str = "/apis/net.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/networkconfigs";
const OFFERS: &str = "/apis/sharing.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/resourceoffers";
const MAPS: &str =
    "/apis/virtualkubelet.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/namespacemaps";

/// Rome's identity in milan, as a certificate and as a token.
pub async fn an_identity_has_least_privilege(rome: &Side, milan: &Side) {
    let identity = rome.identity_at(milan).await;
    assert_eq!(identity.namespace, "liqo-tenant-rome");
    let token = token_form(rome, milan).await;
    for (form, client) in [("certificate", &identity.client), ("token", &token)] {
        permissions_follow_the_peering(milan, form, client).await;
    }
}

/// The same identity in the form of a token.
pub async fn token_form(rome: &Side, milan: &Side) -> Client {
    let nonce = rome.secret("liqo-tenant-milan", "liqo-identity", "nonce").await;
    let request = json!({
        "clusterID": "id-of-rome", "clusterName": "rome", "nonce": nonce,
        "token": milan.token().await,
    });
    let (status, answer) = call(milan, "POST", "/identity", &request.to_string()).await;
    assert_eq!(status, 200);
    let text = answer["kubeconfig"].as_str().expect("a kubeconfig");
    client(&serde_json::from_str(text).expect("JSON")).await
}

/// Asserts that a revoked identity has lost all permissions.
pub async fn assert_no_permissions(form: &str, client: &Client) {
    let mut table = Table::new(form, "revoked");
    for (method, path) in refused().into_iter().chain(allowed()) {
        if path != "/readyz" {
            table.assert_forbidden(client, method, &path).await;
        }
    }
    table.print();
}

async fn permissions_follow_the_peering(milan: &Side, form: &str, there: &Client) {
    let mut table = Table::new(form, "before acceptance");
    for (method, path) in refused() {
        table.assert_forbidden(there, method, &path).await;
    }
    for (method, path) in allowed() {
        table.assert_allowed(there, method, &path).await;
    }
    table.print();

    // Milan accepts the ResourceRequest: rome can now write the other kinds, in objects of its
    // name.
    let requests = Api::<ResourceRequest>::namespaced(there.clone(), "liqo-tenant-rome");
    put(&requests, "rome", request("rome")).await;
    let here = Api::<ResourceRequest>::namespaced(milan.client.clone(), "liqo-tenant-rome");
    let accepted = Patch::Merge(json!({ "status": { "state": "Accepted" } }));
    here.patch_status("rome", &PatchParams::default(), &accepted).await.expect("accepted");
    can_write(there, &format!("{CONFIGS}/rome"), true).await;
    let mut table = Table::new(form, "accepted");
    for kind in [CONFIGS, OFFERS, MAPS] {
        assert_ne!(attempt(there, "APPLY", &format!("{kind}/rome")).await, 403, "{kind}");
        for (method, path) in [
            ("APPLY", format!("{kind}/milan")),
            ("DELETE", format!("{kind}/milan")),
            ("APPLY", format!("{kind}/rome/status")),
            ("POST", kind.to_owned()),
            ("DELETE", kind.to_owned()),
        ] {
            table.assert_forbidden(there, method, &path).await;
        }
    }
    let peered =
        |path: &str| [CONFIGS, OFFERS, MAPS].iter().any(|kind| path == format!("{kind}/rome"));
    for (method, path) in refused().into_iter().filter(|(_, path)| !peered(path)) {
        table.assert_forbidden(there, method, &path).await;
    }
    for (method, path) in allowed() {
        table.assert_allowed(there, method, &path).await;
    }
    table.print();

    // After the peering rome can still delete its own objects, but create no new ones.
    let configs = Api::<NetworkConfig>::namespaced(there.clone(), "liqo-tenant-rome");
    put(&configs, "rome", body(CONFIGS, "rome")).await;
    requests.delete("rome", &Default::default()).await.expect("its own request");
    can_write(there, &format!("{CONFIGS}/rome"), false).await;
    configs.delete("rome", &Default::default()).await.expect("its own");
    let gone = configs.get_opt("rome").await.expect("reads are allowed");
    assert!(gone.is_none());
    let mut table = Table::new(form, "after the end");
    for (method, path) in refused() {
        table.assert_forbidden(there, method, &path).await;
    }
    table.print();
}

/// Results of all requests with one form of identity at one stage.
pub struct Table {
    form: String,
    stage: &'static str,
    rows: Vec<String>,
}

impl Table {
    pub fn new(form: &str, stage: &'static str) -> Self {
        Self { form: form.to_owned(), stage, rows: Vec::new() }
    }

    pub async fn assert_forbidden(&mut self, client: &Client, method: &str, path: &str) {
        let status = self.note(client, method, path).await;
        let what = format!("{method} {path} as {}, {}", self.form, self.stage);
        assert!([401, 403].contains(&status), "{what}: {status}");
    }

    async fn assert_allowed(&mut self, client: &Client, method: &str, path: &str) {
        let status = self.note(client, method, path).await;
        let what = format!("{method} {path} as {}, {}", self.form, self.stage);
        assert!((200..300).contains(&status), "{what}: {status}");
    }

    /// Like `assert_allowed`, but waits until new permissions take effect.
    pub async fn eventually_allowed(&mut self, client: &Client, method: &str, path: &str) {
        let ask = async || attempt(client, method, path).await;
        eventually(&format!("{method} {path}"), ask, |status| (200..300).contains(status)).await;
        self.assert_allowed(client, method, path).await;
    }

    async fn note(&mut self, client: &Client, method: &str, path: &str) -> u16 {
        let status = attempt(client, method, path).await;
        self.rows.push(format!("{status} {method:11} {path}"));
        status
    }

    pub fn print(&self) {
        println!("{}, {}: {} attempts", self.form, self.stage, self.rows.len());
        self.rows.iter().for_each(|row| println!("  {row}"));
    }
}

fn allowed() -> Vec<(&'static str, String)> {
    vec![
        ("GET", "/readyz".to_owned()),
        ("GET", REQUESTS.to_owned()),
        ("GET", CONFIGS.to_owned()),
        ("APPLY", format!("{REQUESTS}/rome")),
        ("POST", format!("/api/v1{TENANT}/serviceaccounts/liqo-cluster/token")),
    ]
}

fn refused() -> Vec<(&'static str, String)> {
    let core = |path: &str| format!("/api/v1{TENANT}{path}");
    vec![
        // ResourceRequests: other names, the collection, the status.
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
        // Other objects in its tenant namespace.
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
        // Objects of other clusters and components.
        ("GET", REQUESTS.replace("tenant-rome", "tenant-naples")),
        ("APPLY", format!("{}/rome", REQUESTS.replace("tenant-rome", "tenant-naples"))),
        ("GET", "/api/v1/namespaces/liqo/secrets/auth-token".into()),
        ("GET", "/api/v1/namespaces/liqo-auth/secrets".into()),
        ("GET", "/api/v1/namespaces/liqo-auth/secrets/identity-id-of-rome".into()),
        ("GET", "/api/v1/namespaces/default/pods".into()),
        ("GET", "/api/v1/namespaces/shop-naples/secrets".into()),
        ("POST", "/api/v1/namespaces/shop-naples/secrets".into()),
        ("POST", "/api/v1/namespaces/shop-naples/pods/web/exec".into()),
        ("GET", "/apis/virtualkubelet.liqo.io/v1alpha1/namespaces/shop-naples/shadowpods".into()),
        ("APPLY", "/apis/virtualkubelet.liqo.io/v1alpha1/namespaces/shop-naples/shadowpods/web".into()),
        ("DELETE", "/apis/virtualkubelet.liqo.io/v1alpha1/namespaces/shop-naples/shadowpods/web".into()),
        // Cluster-scoped objects.
        ("GET", "/api/v1/namespaces".into()),
        ("GET", "/api/v1/nodes".into()),
        ("GET", "/api/v1/secrets".into()),
        ("GET", "/apis/discovery.liqo.io/v1alpha1/resourcerequests".into()),
        ("GET", "/apis/discovery.liqo.io/v1alpha1/foreignclusters".into()),
        ("GET", "/apis/config.liqo.io/v1alpha1/clusterconfigs/cluster".into()),
        ("APPLY", "/apis/discovery.liqo.io/v1alpha1/foreignclusters/rome".into()),
        ("GET", "/metrics".into()),
        ("GET", "/debug/pprof/".into()),
        ("DELETE", "/apis/discovery.liqo.io/v1alpha1/foreignclusters/milan".into()),
        ("APPLY", "/apis/config.liqo.io/v1alpha1/clusterconfigs/cluster".into()),
        ("GET", "/apis/net.liqo.io/v1alpha1/ipamstorages".into()),
        ("GET", "/apis/net.liqo.io/v1alpha1/natmappings".into()),
        ("GET", format!("/api/v1{TENANT}")),
        ("DELETE", format!("/api/v1{TENANT}")),
        ("APPLY", format!("/api/v1{TENANT}")),
        ("POST", "/api/v1/namespaces".into()),
        ("DELETE", "/api/v1/namespaces/liqo-tenant-naples".into()),
        ("APPLY", "/api/v1/nodes/milan-1".into()),
        ("APPLY", "/api/v1/nodes/milan-1/status".into()),
        ("DELETE", "/api/v1/nodes/milan-1".into()),
        ("GET", "/api/v1/nodes/milan-1/proxy/pods".into()),
        ("GET", "/api/v1/persistentvolumes".into()),
        ("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/foreignclusters.discovery.liqo.io".into()),
        ("POST", "/apis/apiregistration.k8s.io/v1/apiservices".into()),
        // Workloads and access to pods.
        ("POST", core("/pods")),
        ("POST", core("/pods/web/exec")),
        ("POST", core("/pods/web/attach")),
        ("POST", core("/pods/web/portforward")),
        ("POST", core("/pods/web/eviction")),
        ("GET", core("/pods/web/log")),
        ("POST", core("/services")),
        ("POST", core("/events")),
        ("POST", format!("/apis/apps/v1{TENANT}/deployments")),
        ("POST", format!("/apis/apps/v1{TENANT}/daemonsets")),
        ("POST", format!("/apis/batch/v1{TENANT}/jobs")),
        ("POST", format!("/apis/discovery.k8s.io/v1{TENANT}/endpointslices")),
        ("POST", "/api/v1/namespaces/kube-system/pods".into()),
        ("GET", "/api/v1/namespaces/kube-system/secrets".into()),
        // Privilege escalation and impersonation.
        ("POST", core("/serviceaccounts")),
        ("POST", "/api/v1/namespaces/liqo/serviceaccounts/liqo-control/token".into()),
        ("POST", "/api/v1/namespaces/kube-system/serviceaccounts/default/token".into()),
        ("POST", "/api/v1/namespaces/liqo-tenant-id-of-naples/serviceaccounts/liqo-cluster/token".into()),
        ("POST", format!("/apis/rbac.authorization.k8s.io/v1{TENANT}/roles")),
        ("POST", format!("/apis/rbac.authorization.k8s.io/v1{TENANT}/rolebindings")),
        ("APPLY", format!("/apis/rbac.authorization.k8s.io/v1{TENANT}/rolebindings/liqo-cluster")),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles".into()),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings".into()),
        ("APPLY", "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin".into()),
        ("IMPERSONATE", REQUESTS.to_owned()),
        ("IMPERSONATE", "/api/v1/secrets".into()),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews".into()),
        ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews".into()),
        ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests".into()),
        ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests".into()),
        ("APPLY", "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval".into()),
        ("POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations".into()),
        ("POST", "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations".into()),
        ("POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies".into()),
    ]
}

/// Sends the request as a dry run, and returns the status code.
async fn attempt(client: &Client, method: &str, path: &str) -> u16 {
    let name = path.trim_end_matches("/status").rsplit('/').next().unwrap_or_default();
    let impersonated = (method == "IMPERSONATE").then_some("kubernetes-admin");
    let (method, query, kind) = match method {
        "IMPERSONATE" => ("GET", "", "json"),
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
    // TokenRequests are sent without `dryRun`.
    let query = if path.ends_with("/token") { "" } else { query };
    let mut request = Request::builder();
    if let Some(user) = impersonated {
        request = request.header("Impersonate-User", user);
    }
    let request = request
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
