//! Rights of other clusters in the twins of their namespaces, during the peering and after its end.

use http::Request;
use k8s_openapi::api::{
    core::v1::{Namespace, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;
use tombolo_api::{
    discovery::ResourceRequest, sharing::ResourceOffer, virtualkubelet::NamespaceMap,
};
use tombolo_testbed::{answer_to, eventually};

use crate::{
    RUNTIME,
    world::{World, world},
};

#[test]
fn a_refused_cluster_may_only_read_and_delete_until_its_twins_are_gone() {
    RUNTIME.block_on(async {
        let world = world().await;
        let pisa = Guest::arrives(world, "pisa").await;
        pisa.gets_an_offer().await;
        pisa.can(&WRITES, true).await;
        pisa.can(&READS_AND_DELETES, true).await;

        pisa.request_is("Refused").await;
        pisa.can(&WRITES, false).await;
        pisa.can(&READS_AND_DELETES, true).await;
        assert!(pisa.twin().await.is_some(), "it has time to delete its pods");

        // Accepted again.
        pisa.request_is("Accepted").await;
        pisa.can(&WRITES, true).await;
        pisa.request_is("Refused").await;
        pisa.can(&WRITES, false).await;

        // The offer is gone, but the guest keeps its NamespaceMap.
        world.delete_in::<ResourceOffer>(&pisa.tenant, "milan").await;
        world.until_gone::<Namespace>("shop-pisa").await;
        world.until_gone_in::<NamespaceMap>(&pisa.tenant, "pisa").await;
        pisa.can(&READS_AND_DELETES, false).await;
    });
}

#[test]
fn a_cluster_that_withdraws_its_request_loses_its_twins() {
    RUNTIME.block_on(async {
        let world = world().await;
        let siena = Guest::arrives(world, "siena").await;
        siena.can(&WRITES, true).await;
        world.delete_in::<ResourceRequest>(&siena.tenant, "siena").await;
        world.until_gone::<Namespace>("shop-siena").await;
        world.until_gone_in::<NamespaceMap>(&siena.tenant, "siena").await;
    });
}

#[test]
fn a_provider_gets_no_twins() {
    RUNTIME.block_on(async {
        let world = world().await;
        let tenant = "liqo-tenant-lucca";
        world.tenant(tenant, "id-of-lucca").await;
        // Milan's own request, accepted by lucca.
        world.put_in::<ResourceRequest>(tenant, "milan", request("milan")).await;
        let accepted = json!({ "state": "Accepted" });
        world.put_status_in::<ResourceRequest>(tenant, "milan", accepted).await;
        world.put_in::<NamespaceMap>(tenant, "lucca", map("lucca")).await;
        world.until_gone_in::<NamespaceMap>(tenant, "lucca").await;
        assert!(world.get::<Namespace>("shop-lucca").await.is_none());
    });
}

#[test]
fn a_cluster_without_an_identity_has_no_rights_in_twins() {
    RUNTIME.block_on(async {
        let world = world().await;
        let naples = Guest::arrives(world, "naples").await;
        naples.can(&WRITES, true).await;
        // As after the deletion of the record of its identity.
        world.delete_in::<RoleBinding>(&naples.tenant, "liqo-cluster").await;
        let nobody = |it: &RoleBinding| it.subjects.as_deref().unwrap_or_default().is_empty();
        world.until_in("shop-naples", "liqo-twin", nobody).await;
        naples.can(&WRITES, false).await;
        naples.can(&READS_AND_DELETES, false).await;
    });
}

#[test]
fn a_guest_has_no_rights_in_the_twins_of_another() {
    RUNTIME.block_on(async {
        let world = world().await;
        let bari = Guest::arrives(world, "bari").await;
        let genoa = Guest::arrives(world, "genoa").await;
        for guest in [&bari, &genoa] {
            guest.can(&WRITES, true).await;
        }
        for (method, path) in WRITES.into_iter().chain(READS_AND_DELETES) {
            let path = path.replace("TWIN", "shop-genoa");
            assert_eq!(bari.attempt(method, &path).await, 403, "{method} {path}");
        }
        for (method, path) in [
            ("GET", "/namespaces/shop-genoa"),
            ("DELETE", "/namespaces/shop-genoa"),
            ("GET", "/namespaces/shop-genoa/rolebindings"),
            ("APPLY", "/namespaces/shop-genoa/rolebindings/more"),
            ("APPLY", "/namespaces/shop-bari/rolebindings/liqo-twin"),
            ("GET", "/namespaces/liqo-tenant-genoa/namespacemaps"),
        ] {
            assert_eq!(bari.attempt(method, path).await, 403, "{method} {path}");
        }
    });
}

const WRITES: [(&str, &str); 6] = [
    ("POST", "/namespaces/TWIN/secrets"),
    ("APPLY", "/namespaces/TWIN/services/web"),
    ("APPLY", "/namespaces/TWIN/shadowpods/web"),
    ("APPLY", "/namespaces/TWIN/shadowendpointslices/web"),
    ("POST", "/namespaces/TWIN/pods/web/exec"),
    ("POST", "/namespaces/TWIN/pods/web/portforward"),
];

const READS_AND_DELETES: [(&str, &str); 5] = [
    ("GET", "/namespaces/TWIN/shadowpods"),
    ("GET", "/namespaces/TWIN/pods"),
    ("GET", "/namespaces/TWIN/secrets"),
    ("DELETE", "/namespaces/TWIN/shadowpods/web"),
    ("DELETE", "/namespaces/TWIN/configmaps/web"),
];

/// A cluster with an identity, an accepted request and a NamespaceMap.
struct Guest {
    world: &'static World,
    name: &'static str,
    tenant: String,
    client: Client,
}

impl Guest {
    async fn arrives(world: &'static World, name: &'static str) -> Self {
        let tenant = format!("liqo-tenant-{name}");
        world.tenant(&tenant, &format!("id-of-{name}")).await;
        world.identity_of(name).await;
        world.put_in::<ServiceAccount>(&tenant, "liqo-cluster", json!({})).await;
        let kubeconfig = world.kubeconfig_of(&tenant, "liqo-cluster").await;
        let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await.unwrap();
        let client = Client::try_from(config).unwrap();
        let guest = Self { world, name, tenant, client };
        world.put_in::<ResourceRequest>(&guest.tenant, name, request(name)).await;
        guest.request_is("Accepted").await;
        world.put_in::<NamespaceMap>(&guest.tenant, name, map(name)).await;
        answer_to("the twin exists", async || guest.twin().await).await;
        guest
    }

    async fn request_is(&self, state: &str) {
        let state = json!({ "state": state });
        self.world.put_status_in::<ResourceRequest>(&self.tenant, self.name, state).await;
    }

    /// Creates an offer. The replicator keeps it until the guest has deleted its pods.
    async fn gets_an_offer(&self) {
        let offer = json!({
            "metadata": { "labels": { "liqo.io/replicate-to": format!("id-of-{}", self.name) } },
            "spec": { "clusterID": "id-of-milan", "resourceQuota": { "hard": { "cpu": "4" } } },
        });
        self.world.put_in::<ResourceOffer>(&self.tenant, "milan", offer).await;
    }

    async fn twin(&self) -> Option<Namespace> {
        self.world.get(&format!("shop-{}", self.name)).await
    }

    /// Waits until the guest may, or may not, make all these requests in its twin.
    async fn can(&self, attempts: &[(&str, &str)], can: bool) {
        for (method, path) in attempts {
            let path = path.replace("TWIN", &format!("shop-{}", self.name));
            let what = format!("{} can {method} {path}: {can}", self.name);
            let status = async || self.attempt(method, &path).await;
            eventually(&what, status, |status| (*status != 403) == can).await;
        }
    }

    /// Sends a request as a dry run, and returns the status code.
    async fn attempt(&self, method: &str, path: &str) -> u16 {
        let mut parts = path.rsplit('/');
        let (name, kind) = (parts.next().unwrap(), parts.next().unwrap());
        let is_ours = |kind: &str| kind.starts_with("shadow") || kind == "namespacemaps";
        let group = if is_ours(kind) || is_ours(name) {
            "/apis/virtualkubelet.liqo.io/v1alpha1"
        } else if path.contains("/rolebindings") {
            "/apis/rbac.authorization.k8s.io/v1"
        } else {
            "/api/v1"
        };
        let (method, query, format) = match method {
            "APPLY" => ("PATCH", "?dryRun=All&fieldManager=guest&force=true", "apply-patch+yaml"),
            "GET" => ("GET", "", "json"),
            _ => (method, "?dryRun=All&command=true", "json"),
        };
        let body = match (method, name) {
            ("POST", "secrets") => {
                json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "web" } })
            }
            ("PATCH", _) => json!({ "metadata": { "name": name } }),
            _ => json!({}),
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("{group}{path}{query}"))
            .header("Content-Type", format!("application/{format}"))
            .body(Body::from(body.to_string().into_bytes()))
            .unwrap();
        self.client.send(request).await.expect("a response").status().as_u16()
    }
}

fn request(name: &str) -> serde_json::Value {
    let id = format!("id-of-{name}");
    let identity = json!({ "clusterID": id, "clusterName": name });
    json!({
        "metadata": { "labels": { "liqo.io/replicated-from": id } },
        "spec": { "clusterIdentity": identity, "authUrl": "https://192.0.2.1" },
    })
}

/// With a finalizer of its sender.
fn map(name: &str) -> serde_json::Value {
    json!({
        "metadata": {
            "labels": { "liqo.io/replicated-from": format!("id-of-{name}") },
            "finalizers": ["example.com/mine"],
        },
        "spec": { "desiredMapping": { "shop": format!("shop-{name}") } },
    })
}
