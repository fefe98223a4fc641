//! Offloading of namespaces: creates the NamespaceOffloading of a labelled namespace, the
//! scheduling label and the RoleBinding of an offloaded namespace, and writes the status.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tombolo_api::names::{
    ENABLED_LABEL, FINALIZER, KUBELET_ACCOUNT, KUBELET_NAMESPACE_ROLE, KUBELET_ROLE_BINDING,
    MADE_FOR_ANNOTATION, NAMESPACE, NAMESPACE_OFFLOADING, SCHEDULING, SCHEDULING_LABEL,
};
use tombolo_api::{
    ClusterName,
    offloading::{NamespaceOffloading, NamespaceOffloadingSpec},
    virtualkubelet::NamespaceMap,
};
use tombolo_core::offloading::{
    NamespaceStep, PeerMap, changed_namespaces, namespace_step, reported_namespaces, status,
};
use tombolo_runtime::{
    finalizer,
    observe::{IndexBy, Watched, named},
    queue::{self, Queue, queue},
    writer,
};

use crate::{
    binding::{Rights, binding},
    context::Context,
};

/// Runs until shutdown.
pub async fn run(ctx: Arc<Context>) {
    let (queue, receiver) = queue();
    let state = State::new(&ctx);
    state.enqueue(&queue);
    let work = queue::run("namespace_offloading", receiver, async |name: String| {
        state.synced().await;
        match state.namespaces.get("", &name) {
            Some(namespace) => state.reconcile(&namespace).await,
            None => Ok(()),
        }
    });
    ctx.shutdown.or(work).await;
}

/// A namespace could not be reconciled.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("create the NamespaceOffloading of namespace {0}, which has the label {ENABLED_LABEL}")]
    Create(String, #[source] kube::Error),
    #[error("delete the NamespaceOffloading of namespace {0}, which has no label {ENABLED_LABEL}")]
    Delete(String, #[source] kube::Error),
    #[error("set or remove the label {SCHEDULING_LABEL} of namespace {0}")]
    Label(String, #[source] kube::Error),
    #[error("apply or delete RoleBinding {KUBELET_ROLE_BINDING} in namespace {0}")]
    Bind(String, #[source] kube::Error),
    #[error("add or remove the finalizer of the NamespaceOffloading in namespace {0}")]
    Finalize(String, #[source] kube::Error),
    #[error("write the status of the NamespaceOffloading in namespace {0}")]
    Status(String, #[source] kube::Error),
}

const MANAGER: &str = "liqo-control/offloading";

struct State {
    client: Client,
    namespaces: Arc<Watched<Namespace>>,
    offloadings: Arc<Watched<NamespaceOffloading>>,
    bindings: Watched<RoleBinding>,
    maps: Arc<Watched<NamespaceMap>>,
    us: ClusterName,
    /// The maps of this cluster by the local namespaces in them.
    maps_of: IndexBy<String, NamespaceMap>,
}

impl State {
    fn new(ctx: &Context) -> Self {
        let maps = ctx.watches.of();
        let (us, home) = (ctx.settings.cluster_name.clone(), ctx.settings.cluster_name.clone());
        Self {
            us,
            client: ctx.client.clone(),
            namespaces: ctx.watches.of(),
            offloadings: ctx.watches.of(),
            bindings: Watched::new(Api::all(ctx.client.clone()), named(KUBELET_ROLE_BINDING)),
            maps_of: maps.index_by(move |map| reported_namespaces(map, &home)),
            maps,
        }
    }

    /// Enqueues names of namespaces.
    fn enqueue(&self, queue: &Queue<String>) {
        self.namespaces.enqueue(queue, |namespace| [namespace.name_any()]);
        self.offloadings.enqueue(queue, ResourceExt::namespace);
        self.bindings.enqueue(queue, ResourceExt::namespace);
        let us = self.us.clone();
        self.maps.enqueue_changes(queue, move |change| {
            changed_namespaces(change.before, change.after, &us)
        });
    }

    async fn synced(&self) {
        tokio::join!(
            self.namespaces.synced(),
            self.offloadings.synced(),
            self.bindings.synced(),
            self.maps_of.synced(),
        );
    }

    async fn reconcile(&self, namespace: &Namespace) -> Result<(), Error> {
        let name = namespace.name_any();
        let offloading = self.offloadings.get(&name, NAMESPACE_OFFLOADING);
        let maps = self.maps_of.get(&name);
        let maps: Vec<_> = maps.iter().filter_map(|map| PeerMap::of(map, &self.us)).collect();
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), &name);
        match namespace_step(namespace, offloading.as_deref(), &maps) {
            NamespaceStep::Create => create(&api, name).await,
            NamespaceStep::Delete(offloading) => {
                let uid = offloading.uid();
                let deleted =
                    writer::delete_if_same(&api, NAMESPACE_OFFLOADING, uid.as_deref()).await;
                deleted.map_err(|error| Error::Delete(name, error))
            }
            NamespaceStep::Offload(offloading) => {
                let added = finalizer::add(&api, offloading, FINALIZER).await;
                added.map_err(|error| Error::Finalize(name.clone(), error))?;
                self.label(namespace, true).await?;
                self.bind(&name, offloading).await?;
                report(&api, offloading, &maps).await
            }
            NamespaceStep::Report(offloading) => report(&api, offloading, &maps).await,
            NamespaceStep::Drain(offloading) => {
                self.label(namespace, false).await?;
                report(&api, offloading, &maps).await
            }
            NamespaceStep::Release(offloading) => {
                self.label(namespace, false).await?;
                self.unbind(&name).await?;
                let removed = finalizer::remove(&api, offloading, FINALIZER).await;
                removed.map_err(|error| Error::Finalize(name, error))
            }
            NamespaceStep::NotOffloaded => self.label(namespace, false).await,
        }
    }

    async fn label(&self, namespace: &Namespace, wanted: bool) -> Result<(), Error> {
        let name = namespace.name_any();
        let have = namespace.labels().get(SCHEDULING_LABEL).map(String::as_str);
        let want = wanted.then_some(SCHEDULING);
        if have == want {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "uid": namespace.uid(), "labels": { SCHEDULING_LABEL: want },
        } });
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..Default::default() };
        let api: Api<Namespace> = Api::all(self.client.clone());
        let patched = api.patch(&name, &params, &Patch::Merge(patch)).await;
        writer::absent_is_fine(patched.map(drop)).map_err(|error| Error::Label(name, error))
    }

    async fn bind(&self, namespace: &str, owner: &NamespaceOffloading) -> Result<(), Error> {
        let wanted = role_binding(owner);
        let is_there = self.bindings.get(namespace, KUBELET_ROLE_BINDING).is_some_and(|have| {
            have.role_ref == wanted.role_ref
                && have.subjects == wanted.subjects
                && have.owner_references() == wanted.owner_references()
        });
        if is_there {
            return Ok(());
        }
        let api = Api::namespaced(self.client.clone(), namespace);
        let applied = writer::apply(&api, MANAGER, &wanted).await;
        applied.map(drop).map_err(|error| Error::Bind(namespace.to_owned(), error))
    }

    async fn unbind(&self, namespace: &str) -> Result<(), Error> {
        let binding = self.bindings.get(namespace, KUBELET_ROLE_BINDING);
        let Some(binding) = binding.filter(|binding| is_ours(binding)) else {
            return Ok(());
        };
        let (api, uid) = (Api::namespaced(self.client.clone(), namespace), binding.uid());
        let deleted =
            writer::delete_if_same::<RoleBinding>(&api, KUBELET_ROLE_BINDING, uid.as_deref()).await;
        deleted.map_err(|error| Error::Bind(namespace.to_owned(), error))
    }
}

async fn create(api: &Api<NamespaceOffloading>, namespace: String) -> Result<(), Error> {
    let spec = NamespaceOffloadingSpec::default();
    let mut offloading = NamespaceOffloading::new(NAMESPACE_OFFLOADING, spec);
    let annotation = (MADE_FOR_ANNOTATION.to_owned(), ENABLED_LABEL.to_owned());
    offloading.metadata.annotations = Some([annotation].into());
    match api.create(&Default::default(), &offloading).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        other => other.map(drop).map_err(|error| Error::Create(namespace, error)),
    }
}

async fn report(
    api: &Api<NamespaceOffloading>,
    offloading: &NamespaceOffloading,
    maps: &[PeerMap<'_>],
) -> Result<(), Error> {
    let status = status(offloading, maps, Timestamp::now());
    if offloading.status.as_ref() == Some(&status) {
        return Ok(());
    }
    let written = writer::apply_status(api, MANAGER, NAMESPACE_OFFLOADING, &status).await;
    let failed = |error| Error::Status(offloading.namespace().unwrap_or_default(), error);
    writer::absent_is_fine(written.map(drop)).map_err(failed)
}

/// Lets virtual nodes read the objects that they reflect from a namespace.
fn role_binding(owner: &NamespaceOffloading) -> RoleBinding {
    let rights = Rights::ClusterRole(KUBELET_NAMESPACE_ROLE);
    let mut binding = binding(KUBELET_ROLE_BINDING, rights, (KUBELET_ACCOUNT, NAMESPACE));
    binding.metadata.owner_references = owner.controller_owner_ref(&()).map(|owner| vec![owner]);
    binding
}

fn is_ours(binding: &RoleBinding) -> bool {
    binding.owner_references().iter().any(|owner| owner.kind == "NamespaceOffloading")
}
