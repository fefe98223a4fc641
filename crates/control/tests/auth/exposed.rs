//! Permissions of the auth service's account. The service is exposed to all clients: an attacker
//! that takes it over must gain as little as possible.

use k8s_openapi::api::core::v1::Secret;
use serde_json::json;

use crate::{certificate::client, rights::Table, side::Side};

const MANIFEST: &str = include_str!("../../../tombolo/manifests/auth.yaml");

pub async fn the_auth_service_has_least_privilege(milan: &Side) {
    milan.cluster.apply(&manifest()).await.expect("the account and its rights");
    for name in ["liqo-ipam-ca", "somebody-elses"] {
        milan.put_in::<Secret>("liqo", name, json!({ "stringData": { "key": "k" } })).await;
    }
    let kubeconfig = milan.kubeconfig_of("liqo", "liqo-auth").await;
    let it = client(&serde_json::from_str(&kubeconfig).expect("JSON")).await;
    let mut table = Table::new("the auth service", "taken over");
    for (method, path) in ALLOWED {
        table.eventually_allowed(&it, method, path).await;
    }
    for (method, path) in REFUSED {
        table.assert_forbidden(&it, method, path).await;
    }
    table.print();
}

/// The objects of the manifest without template values: all but Service, Ingress and Deployment.
fn manifest() -> String {
    let (_import, text) = MANIFEST.split_once('\n').expect("a first line");
    let text = text.replace(r#"{{ c.labels("auth") }}"#, "{app.kubernetes.io/part-of: liqo}");
    let plain = |object: &&str| !object.contains("{{") && !object.contains("{%");
    let objects: Vec<&str> = text.split("\n---\n").filter(plain).collect();
    assert_eq!(objects.len(), 8, "{objects:?}");
    objects.join("\n---\n")
}

const ALLOWED: [(&str, &str); 8] = [
    ("GET", "/api/v1/namespaces/liqo-auth/secrets"),
    ("GET", "/api/v1/namespaces/liqo-auth/secrets/identity-id-of-rome"),
    ("APPLY", "/api/v1/namespaces/liqo-auth/secrets/identity-id-of-new"),
    ("GET", "/api/v1/namespaces/liqo/secrets/auth-token"),
    ("GET", "/api/v1/namespaces/liqo/secrets/liqo-auth-cert"),
    ("GET", "/api/v1/namespaces/liqo/secrets/liqo-generation"),
    ("GET", "/api/v1/namespaces/liqo/secrets?fieldSelector=metadata.name%3Dauth-token"),
    ("GET", "/apis/config.liqo.io/v1alpha1/clusterconfigs"),
];

const REFUSED: [(&str, &str); 52] = [
    // Its own objects: it can only read them or create records.
    ("DELETE", "/api/v1/namespaces/liqo-auth/secrets"),
    ("DELETE", "/api/v1/namespaces/liqo-auth/secrets/identity-id-of-rome"),
    ("PUT", "/api/v1/namespaces/liqo-auth/secrets/identity-id-of-rome"),
    ("APPLY", "/api/v1/namespaces/liqo/secrets/auth-token"),
    ("DELETE", "/api/v1/namespaces/liqo/secrets/auth-token"),
    ("APPLY", "/api/v1/namespaces/liqo/secrets/liqo-auth-cert"),
    ("APPLY", "/api/v1/namespaces/liqo/secrets/liqo-generation"),
    ("DELETE", "/api/v1/namespaces/liqo/secrets/liqo-generation"),
    ("APPLY", "/apis/config.liqo.io/v1alpha1/clusterconfigs/cluster"),
    ("DELETE", "/api/v1/namespaces/liqo-auth/resourcequotas/liqo-auth"),
    ("GET", "/api/v1/namespaces/liqo-auth/configmaps"),
    ("GET", "/api/v1/namespaces/liqo-auth/pods"),
    // Secrets of other components.
    ("GET", "/api/v1/namespaces/liqo/secrets"),
    ("GET", "/api/v1/namespaces/liqo/secrets/liqo-nonce-key"),
    ("GET", "/api/v1/namespaces/liqo/secrets/liqo-ipam-ca"),
    ("GET", "/api/v1/namespaces/liqo/secrets/somebody-elses"),
    ("POST", "/api/v1/namespaces/liqo/secrets"),
    ("GET", "/api/v1/secrets"),
    ("GET", "/api/v1/namespaces/kube-system/secrets"),
    ("GET", "/api/v1/namespaces/liqo-tenant-rome/secrets"),
    ("GET", "/api/v1/namespaces/liqo-tenant-rome/secrets/liqo-identity"),
    // Certificates.
    ("GET", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ("POST", "/apis/certificates.k8s.io/v1/certificatesigningrequests"),
    ("APPLY", "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/approval"),
    ("APPLY", "/apis/certificates.k8s.io/v1/certificatesigningrequests/x/status"),
    // RBAC and service accounts.
    ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/liqo-auth/rolebindings"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/liqo/rolebindings"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/liqo-tenant-rome/rolebindings"),
    ("APPLY", "/apis/rbac.authorization.k8s.io/v1/namespaces/liqo-tenant-rome/roles/liqo-cluster"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"),
    ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles"),
    ("POST", "/api/v1/namespaces/liqo/serviceaccounts/liqo-control/token"),
    ("POST", "/api/v1/namespaces/liqo/serviceaccounts/liqo-auth/token"),
    ("POST", "/api/v1/namespaces/liqo-tenant-rome/serviceaccounts/liqo-cluster/token"),
    ("POST", "/api/v1/namespaces/liqo-tenant-rome/serviceaccounts"),
    ("IMPERSONATE", "/api/v1/secrets"),
    ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"),
    ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews"),
    // Peerings.
    ("GET", "/apis/discovery.liqo.io/v1alpha1/foreignclusters"),
    ("APPLY", "/apis/discovery.liqo.io/v1alpha1/foreignclusters/rome"),
    ("GET", "/apis/discovery.liqo.io/v1alpha1/resourcerequests"),
    (
        "APPLY",
        "/apis/discovery.liqo.io/v1alpha1/namespaces/liqo-tenant-rome/resourcerequests/rome/status",
    ),
    ("GET", "/apis/net.liqo.io/v1alpha1/ipamstorages"),
    // The cluster.
    ("GET", "/api/v1/namespaces"),
    ("POST", "/api/v1/namespaces"),
    ("DELETE", "/api/v1/namespaces/liqo-tenant-naples"),
    ("GET", "/api/v1/nodes"),
    ("APPLY", "/api/v1/nodes/milan-1"),
    ("GET", "/api/v1/pods"),
    ("POST", "/api/v1/namespaces/liqo/pods"),
    ("POST", "/api/v1/namespaces/liqo/pods/liqo-control/exec"),
    ("POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"),
];
