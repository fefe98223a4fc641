//! The namespaces that stand for those of other clusters: made, kept and removed as the
//! NamespaceMaps say that they have sent.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{RoleBinding, RoleRef, Subject},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, PostParams},
    runtime::{
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use tombolo_api::names::{
    CLUSTER_ID_LABEL, FINALIZER, HOME_NAMESPACE_ANNOTATION, REMOTE_CLUSTER_ID_LABEL,
    REPLICATED_FROM_LABEL, TENANT_ACCOUNT, TENANT_LABEL, TWIN_ROLE,
};
use tombolo_api::{ClusterId, virtualkubelet::NamespaceMap};
use tombolo_core::offloading::{Existing, Twin, is_twin, twins};
use tombolo_runtime::{finalizer, observe::Observer, writer};

use crate::context::Context;

/// Runs until the end is asked for.
pub async fn run(ctx: Arc<Context>) {
    let mut observer = Observer::new();
    let client = &ctx.client;
    let copies = watcher::Config::default().labels(REPLICATED_FROM_LABEL);
    let binding = watcher::Config::default().fields(&format!("metadata.name={TWIN_ROLE}"));
    let seen = Seen {
        client: client.clone(),
        namespaces: observer.watch(Api::all(client.clone()), watcher::Config::default()),
        maps: observer.watch(Api::all(client.clone()), copies),
        bindings: observer.watch(Api::all(client.clone()), binding),
    };
    observer.run("twin_namespace", &ctx.shutdown, || seen.reconcile()).await;
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("make namespace {0}, the twin of {1} in another cluster")]
    Make(String, String, #[source] kube::Error),
    #[error("let the home cluster into namespace {0}, by RoleBinding {TWIN_ROLE}")]
    Bind(String, #[source] kube::Error),
    #[error("delete namespace {0}, which the home cluster wants no more")]
    Delete(String, #[source] kube::Error),
    #[error("set the finalizer of the NamespaceMap in {0}")]
    Finalize(String, #[source] kube::Error),
    #[error("write the status of the NamespaceMap in {0}")]
    Status(String, #[source] kube::Error),
}

const MANAGER: &str = "liqo-control/twin-namespace";

struct Seen {
    client: Client,
    namespaces: Store<Namespace>,
    maps: Store<NamespaceMap>,
    bindings: Store<RoleBinding>,
}

impl Seen {
    /// Goes through all maps; one that fails does not keep the others waiting.
    async fn reconcile(&self) -> Result<(), Error> {
        let namespaces = self.namespaces.state();
        let namespaces: BTreeMap<_, _> =
            namespaces.into_iter().map(|namespace| (namespace.name_any(), namespace)).collect();
        let mut outcome = Ok(());
        for map in self.maps.state() {
            if let Some(home) = sender(&map, &namespaces) {
                outcome = outcome.and(self.follow(&map, &home, &namespaces).await);
            }
        }
        outcome
    }

    async fn follow(
        &self,
        map: &NamespaceMap,
        home: &ClusterId,
        namespaces: &BTreeMap<String, Arc<Namespace>>,
    ) -> Result<(), Error> {
        let tenant = map.namespace().unwrap_or_default();
        let maps: Api<NamespaceMap> = Api::namespaced(self.client.clone(), &tenant);
        let leaves = map.meta().deletion_timestamp.is_some();
        if !leaves && !finalizer::has(map, FINALIZER) {
            let added = finalizer::add(&maps, map, FINALIZER).await;
            // The change of the map is what goes on from here.
            return added.map_err(|error| Error::Finalize(tenant, error));
        }
        let wanted = |name: &String| map.spec.desired_mapping.values().any(|want| want == name);
        let existing: BTreeMap<_, _> = namespaces
            .iter()
            .map(|(name, namespace)| (name.clone(), is_twin(namespace, home)))
            .filter(|(name, existing)| *existing != Existing::Foreign || wanted(name))
            .collect();
        let plan = twins(map, &existing);
        for twin in &plan.make {
            self.make(twin, home).await?;
        }
        for twin in &plan.keep {
            self.bind(twin, &tenant).await?;
        }
        let all: Api<Namespace> = Api::all(self.client.clone());
        for name in &plan.delete {
            let uid = namespaces.get(name).and_then(|namespace| namespace.uid());
            let deleted = writer::delete_if_same(&all, name, uid.as_deref()).await;
            deleted.map_err(|error| Error::Delete(name.clone(), error))?;
        }
        if leaves && plan.status.current_mapping.is_empty() {
            let removed = finalizer::remove(&maps, map, FINALIZER).await;
            return removed.map_err(|error| Error::Finalize(tenant, error));
        }
        if map.status.clone().unwrap_or_default() != plan.status {
            let written = writer::apply_status(&maps, MANAGER, &map.name_any(), &plan.status).await;
            writer::absent_is_fine(written.map(drop))
                .map_err(|error| Error::Status(tenant, error))?;
        }
        Ok(())
    }

    /// Makes it only if there is none of that name: whatever is there is looked at first.
    async fn make(&self, twin: &Twin, home: &ClusterId) -> Result<(), Error> {
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(twin.name.clone()),
                labels: Some([(REMOTE_CLUSTER_ID_LABEL.to_owned(), home.to_string())].into()),
                annotations: Some(
                    [(HOME_NAMESPACE_ANNOTATION.to_owned(), twin.home.clone())].into(),
                ),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let made = Api::all(self.client.clone()).create(&params, &namespace).await;
        writer::absent_is_fine(made.map(drop))
            .map_err(|error| Error::Make(twin.name.clone(), twin.home.clone(), error))
    }

    async fn bind(&self, twin: &Twin, tenant: &str) -> Result<(), Error> {
        let wanted = role_binding(&twin.name, tenant);
        let have = self.bindings.get(&ObjectRef::new(TWIN_ROLE).within(&twin.name));
        if have.is_some_and(|b| b.role_ref == wanted.role_ref && b.subjects == wanted.subjects) {
            return Ok(());
        }
        let api = Api::namespaced(self.client.clone(), &twin.name);
        let applied = writer::apply(&api, MANAGER, &wanted).await;
        applied.map(drop).map_err(|error| Error::Bind(twin.name.clone(), error))
    }
}

/// Who has sent a map: whose tenant namespace it is in. What the map itself says counts for
/// nothing, for its sender writes it.
fn sender(map: &NamespaceMap, namespaces: &BTreeMap<String, Arc<Namespace>>) -> Option<ClusterId> {
    let labels = namespaces.get(&map.namespace()?)?.labels();
    let is_tenant = labels.get(TENANT_LABEL).is_some_and(|value| value == "true");
    labels.get(CLUSTER_ID_LABEL).filter(|_| is_tenant)?.parse().ok()
}

fn role_binding(namespace: &str, tenant: &str) -> RoleBinding {
    RoleBinding {
        metadata: ObjectMeta {
            name: Some(TWIN_ROLE.into()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".into(),
            kind: "ClusterRole".into(),
            name: TWIN_ROLE.into(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".into(),
            name: TENANT_ACCOUNT.into(),
            namespace: Some(tenant.into()),
            api_group: None,
        }]),
    }
}
