//! One cluster that is home and remote cluster at once.

use std::{ops::Deref, sync::Arc};

use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tombolo_api::{
    discovery::{ForeignCluster, ResourceRequest},
    offloading::NamespaceOffloading,
    sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_control::testing::{
    Context, namespace_map, namespace_offloading, shadow_endpoint_slice, twin_namespace,
};
use tombolo_runtime::{
    observe::{Observer, Watches},
    shutdown::Shutdown,
    writer,
};
use tombolo_testbed::{ClusterSpec, Testbed};
use tombolo_testing::{Side, condition, settings};

use crate::pods;

static BED: OnceCell<(Testbed, World)> = OnceCell::const_new();

/// The cluster with all controllers of both sides, and a task that replicates NamespaceMaps from
/// one tenant namespace to the other.
pub struct World(Side);

impl Deref for World {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.0
    }
}

pub async fn world() -> &'static World {
    &BED.get_or_init(start).await.1
}

async fn start() -> (Testbed, World) {
    let cluster = ClusterSpec::new("rome").control_plane_only();
    let bed = Testbed::builder("offloading").cluster(cluster).start().await;
    let bed = bed.expect("the control plane starts");
    let world = World(Side::new(bed.cluster("rome")).await);
    for peer in ["rome", "milan"] {
        world.tenant(&format!("liqo-tenant-{peer}"), &format!("id-of-{peer}")).await;
    }
    let roles = include_str!("../../../tombolo/manifests/roles.yaml");
    let (_comment, roles) = roles.split_once('\n').expect("a comment of the templates");
    world.cluster.apply(roles).await.expect("the roles are created");
    world.identity_of("rome").await;
    let identity = json!({ "clusterID": "id-of-rome", "clusterName": "rome" });
    let request = json!({ "clusterIdentity": identity, "authUrl": "https://192.0.2.1" });
    world.put_in::<ResourceRequest>("liqo-tenant-rome", "rome", json!({ "spec": request })).await;
    let accepted = json!({ "state": "Accepted" });
    world.put_status_in::<ResourceRequest>("liqo-tenant-rome", "rome", accepted).await;
    let tenant = json!({ "tenantNamespace": { "local": "liqo-tenant-milan" } });
    world.foreign_cluster("milan", tenant).await;
    let offer = json!({
        "metadata": { "labels": { "liqo.io/replicated-from": "id-of-milan" } },
        "spec": { "clusterID": "id-of-milan", "resourceQuota": { "hard": { "cpu": "4" } } },
    });
    world.put_in::<ResourceOffer>("liqo-tenant-milan", "milan", offer).await;
    let accepted = json!({ "phase": "Accepted" });
    world.put_status_in::<ResourceOffer>("liqo-tenant-milan", "milan", accepted).await;
    world.create_leftovers().await;

    let address = world.cluster.node(1).address();
    let context = |name: &str| {
        let settings = settings(name, address);
        Arc::new(Context::new(world.client.clone(), settings, Shutdown::new()))
    };
    let (rome, milan) = (context("rome"), context("milan"));
    tokio::spawn(namespace_offloading::run(rome.clone()));
    tokio::spawn(namespace_map::run(rome.clone()));
    tokio::spawn(twin_namespace::run(milan.clone()));
    tokio::spawn(shadow_endpoint_slice::run(milan));
    tokio::spawn(replicate(world.client.clone()));
    pods::serve_webhook(&world, rome, address).await;
    (bed, world)
}

/// A simple replicator.
async fn replicate(client: Client) {
    let here: Api<NamespaceMap> = Api::namespaced(client.clone(), "liqo-tenant-milan");
    let there: Api<NamespaceMap> = Api::namespaced(client.clone(), "liqo-tenant-rome");
    let mut maps = Observer::new();
    maps.share(Watches::new(client).of::<NamespaceMap>());
    let copy = async || {
        let Some(original) = here.get_opt("rome").await? else { return Ok(()) };
        let mut copy = NamespaceMap::new("rome", original.spec.clone());
        let label = ("liqo.io/replicated-from".to_owned(), "id-of-rome".to_owned());
        copy.metadata.labels = Some([label].into());
        let copy = writer::apply(&there, "test", &copy).await?;
        match &copy.status {
            Some(status) if original.status.as_ref() != Some(status) => {
                writer::apply_status(&here, "test", "rome", status).await.map(drop)
            }
            _ => Ok(()),
        }
    };
    maps.run("replicate", &Shutdown::new(), copy).await;
}

impl World {
    /// Objects that became obsolete while no controller ran.
    async fn create_leftovers(&self) {
        self.tenant("liqo-tenant-gone", "id-of-gone").await;
        let map = json!({
            "metadata": { "labels": { "liqo.io/replicate-to": "id-of-gone" } },
            "spec": { "desiredMapping": { "shop": "shop-rome" } },
        });
        self.put_in::<NamespaceMap>("liqo-tenant-gone", "rome", map).await;
        let label = json!({ "metadata": { "labels": { "liqo.io/scheduling": "enabled" } } });
        self.put::<Namespace>("once-offloaded", label).await;
        let twin = json!({ "metadata": {
            "labels": { "liqo.io/remote-cluster-id": "id-of-rome" },
            "annotations": { "liqo.io/home-namespace": "unwanted" },
        } });
        self.put::<Namespace>("unwanted-rome", twin).await;
    }

    /// Issues an identity to another cluster.
    pub async fn identity_of(&self, peer: &str) {
        let tenant = format!("liqo-tenant-{peer}");
        let role = json!({
            "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "liqo-cluster",
        });
        let account =
            json!({ "kind": "ServiceAccount", "name": "liqo-cluster", "namespace": tenant });
        let binding = json!({ "roleRef": role, "subjects": [account] });
        self.put_in::<RoleBinding>(&tenant, "liqo-cluster", binding).await;
    }

    /// Waits until the NamespaceOffloading of a namespace meets a condition.
    pub async fn offloading(
        &self,
        namespace: &str,
        is_as_wanted: impl Fn(&NamespaceOffloading) -> bool,
    ) -> NamespaceOffloading {
        self.until_in(namespace, "offloading", is_as_wanted).await
    }

    pub async fn foreign_cluster(&self, name: &str, status: Value) {
        let identity = json!({ "clusterID": format!("id-of-{name}"), "clusterName": name });
        let spec = json!({ "authUrl": "https://192.0.2.1", "clusterIdentity": identity });
        self.put::<ForeignCluster>(name, json!({ "spec": spec })).await;
        self.put_status::<ForeignCluster>(name, status).await;
    }

    pub async fn paris(&self, tunnel: &str, api_server: &str) {
        let conditions = [condition("TunnelEndpoint", tunnel), condition("APIServer", api_server)];
        self.put_status::<ForeignCluster>("paris", json!({ "conditions": conditions })).await;
    }
}
