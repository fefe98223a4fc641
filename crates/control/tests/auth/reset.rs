//! Restores a cluster to its state before the installation.

use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    certificates::v1::CertificateSigningRequest,
    core::v1::{Namespace, ResourceQuota, Secret, Service, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tombolo_api::{
    config::ClusterConfig,
    discovery::{ForeignCluster, SearchDomain},
    names::{AUTH_NAMESPACE, NAMESPACE, TENANT_LABEL},
};
use tombolo_runtime::writer::absent_is_fine;
use tombolo_testbed::eventually;
use tombolo_testing::{Object, Side};

const ANY: &str = "";
/// Label of all objects in the manifests.
const PART_OF_LIQO: &str = "app.kubernetes.io/part-of=liqo";

/// Deletes all objects that stories have created. No component may run meanwhile. Events are kept:
/// later groups check them for secrets, too.
pub async fn reset(side: &Side) {
    tokio::join!(
        remove(side.all::<ForeignCluster>(), ANY),
        remove(side.all::<SearchDomain>(), ANY),
        remove(side.all::<ClusterConfig>(), ANY),
        remove(side.all::<CertificateSigningRequest>(), ANY),
        remove(side.all::<ValidatingAdmissionPolicy>(), PART_OF_LIQO),
        remove(side.all::<ValidatingAdmissionPolicyBinding>(), PART_OF_LIQO),
        remove(side.all::<ClusterRole>(), PART_OF_LIQO),
        remove(side.all::<ClusterRoleBinding>(), PART_OF_LIQO),
        empty(side, NAMESPACE),
        empty(side, AUTH_NAMESPACE),
        remove_tenants(side),
    );
}

async fn empty(side: &Side, namespace: &str) {
    tokio::join!(
        remove(side.within::<Secret>(namespace), ANY),
        remove(side.within::<Service>(namespace), ANY),
        remove(side.within::<ServiceAccount>(namespace), PART_OF_LIQO),
        remove(side.within::<Role>(namespace), PART_OF_LIQO),
        remove(side.within::<RoleBinding>(namespace), PART_OF_LIQO),
        remove(side.within::<ResourceQuota>(namespace), PART_OF_LIQO),
    );
}

async fn remove<K: Object>(api: Api<K>, labels: &str) {
    let which = ListParams::default().labels(labels);
    let found = api.list(&which).await.expect("a list");
    for object in &found {
        remove_finalizers(&api, object).await;
    }
    if found.items.is_empty() {
        return;
    }
    let deleted = api.delete_collection(&DeleteParams::default(), &which).await;
    deleted.expect("deleted");
}

async fn remove_tenants(side: &Side) {
    let namespaces = side.all::<Namespace>();
    let which = ListParams::default().labels(&format!("{TENANT_LABEL}=true"));
    for namespace in namespaces.list(&which).await.expect("a list") {
        remove_finalizers(&namespaces, &namespace).await;
        let deleted = namespaces.delete(&namespace.name_any(), &DeleteParams::default()).await;
        absent_is_fine(deleted.map(drop)).expect("deleted");
    }
    let left = async || {
        let left = namespaces.list_metadata(&which).await.expect("a list");
        left.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
    };
    eventually("no tenant namespace is left", left, Vec::is_empty).await;
}

/// Removes the finalizers, because the controller that handles them does not run.
async fn remove_finalizers<K: Object>(api: &Api<K>, object: &K) {
    if object.finalizers().is_empty() {
        return;
    }
    let none = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    let patched = api.patch(&object.name_any(), &PatchParams::default(), &none).await;
    absent_is_fine(patched.map(drop)).expect("patched");
}
