//! Namespaces that reach into other clusters: the quick way by a label, what a NamespaceOffloading
//! puts into its namespace, and what it says of how far it has come.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{core::v1::Namespace, rbac::v1::RoleBinding};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::{ObjectRef, Store},
};
use serde_json::json;
use tombolo_api::names::{
    ENABLED, ENABLED_LABEL, FINALIZER, KUBELET_ACCOUNT, KUBELET_NAMESPACE_ROLE,
    KUBELET_ROLE_BINDING, MADE_FOR_ANNOTATION, NAMESPACE, NAMESPACE_OFFLOADING, REPLICATE_TO_LABEL,
    SCHEDULING, SCHEDULING_LABEL,
};
use tombolo_api::{
    ClusterId,
    offloading::{NamespaceOffloading, NamespaceOffloadingSpec},
    virtualkubelet::NamespaceMap,
};
use tombolo_core::offloading::{PeerMap, is_gone_everywhere, status};
use tombolo_runtime::{
    finalizer,
    observe::{Observer, named},
    writer,
};

use crate::{
    binding::{Rights, binding},
    context::Context,
};

/// Runs until the end is asked for.
pub async fn run(ctx: Arc<Context>) {
    let (mut observer, watches, client) = (Observer::new(), &ctx.watches, &ctx.client);
    let seen = Seen {
        client: client.clone(),
        namespaces: observer.share(watches.of()),
        offloadings: observer.share(watches.of()),
        maps: observer.share(watches.of()),
        bindings: observer.watch(Api::all(client.clone()), named(KUBELET_ROLE_BINDING)),
    };
    observer.run("namespace_offloading", &ctx.shutdown, || seen.reconcile()).await;
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("make the NamespaceOffloading of namespace {0}, which is labelled {ENABLED_LABEL}")]
    Make(String, #[source] kube::Error),
    #[error("delete the NamespaceOffloading of namespace {0}, which is labelled no more")]
    Delete(String, #[source] kube::Error),
    #[error("put the label {SCHEDULING_LABEL} on namespace {0}, or take it off")]
    Label(String, #[source] kube::Error),
    #[error("put the RoleBinding {KUBELET_ROLE_BINDING} into namespace {0}, or remove it")]
    Bind(String, #[source] kube::Error),
    #[error("set the finalizer of the NamespaceOffloading in namespace {0}")]
    Finalize(String, #[source] kube::Error),
    #[error("write the status of the NamespaceOffloading in namespace {0}")]
    Status(String, #[source] kube::Error),
}

const MANAGER: &str = "liqo-control/offloading";

struct Seen {
    client: Client,
    namespaces: Store<Namespace>,
    offloadings: Store<NamespaceOffloading>,
    maps: Store<NamespaceMap>,
    bindings: Store<RoleBinding>,
}

impl Seen {
    /// Goes through all namespaces; one that fails does not keep the others waiting.
    async fn reconcile(&self) -> Result<(), Error> {
        let by_namespace = |offloading: Arc<NamespaceOffloading>| {
            (offloading.namespace().unwrap_or_default(), offloading)
        };
        let offloadings: BTreeMap<_, _> =
            self.offloadings.state().into_iter().map(by_namespace).collect();
        let maps = self.maps.state();
        let maps: Vec<_> = maps.iter().filter_map(|map| Some((peer(map)?, map))).collect();
        let maps: Vec<_> = maps.iter().map(|(cluster, map)| PeerMap { cluster, map }).collect();
        let mut outcome = Ok(());
        for namespace in self.namespaces.state() {
            let offloading = offloadings.get(&namespace.name_any()).map(|o| &**o);
            outcome = outcome.and(self.quick_way(&namespace, offloading).await);
            outcome = outcome.and(match offloading {
                Some(offloading) if offloading.meta().deletion_timestamp.is_some() => {
                    self.end(&namespace, offloading, &maps).await
                }
                Some(offloading) => self.establish(&namespace, offloading, &maps).await,
                None => self.label(&namespace, false).await,
            });
        }
        outcome
    }

    /// The label makes a NamespaceOffloading; without the label, one that was so made goes.
    async fn quick_way(
        &self,
        namespace: &Namespace,
        offloading: Option<&NamespaceOffloading>,
    ) -> Result<(), Error> {
        let name = namespace.name_any();
        let leaves = namespace.meta().deletion_timestamp.is_some();
        let enabled = namespace.labels().get(ENABLED_LABEL).is_some_and(|value| value == ENABLED);
        let api = Api::namespaced(self.client.clone(), &name);
        match offloading {
            None if enabled && !leaves => {
                let mut offloading = NamespaceOffloading::new(
                    NAMESPACE_OFFLOADING,
                    NamespaceOffloadingSpec::default(),
                );
                let annotation = (MADE_FOR_ANNOTATION.to_owned(), ENABLED_LABEL.to_owned());
                offloading.metadata.annotations = Some([annotation].into());
                match api.create(&Default::default(), &offloading).await {
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                    other => other.map(drop).map_err(|error| Error::Make(name, error)),
                }
            }
            Some(offloading)
                if !enabled
                    && offloading.meta().deletion_timestamp.is_none()
                    && offloading.annotations().contains_key(MADE_FOR_ANNOTATION) =>
            {
                let uid = offloading.uid();
                let deleted =
                    writer::delete_if_same(&api, NAMESPACE_OFFLOADING, uid.as_deref()).await;
                deleted.map_err(|error| Error::Delete(name, error))
            }
            _ => Ok(()),
        }
    }

    async fn establish(
        &self,
        namespace: &Namespace,
        offloading: &NamespaceOffloading,
        maps: &[PeerMap<'_>],
    ) -> Result<(), Error> {
        let name = namespace.name_any();
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), &name);
        if namespace.meta().deletion_timestamp.is_none() {
            let added = finalizer::add(&api, offloading, FINALIZER).await;
            added.map_err(|error| Error::Finalize(name.clone(), error))?;
            self.label(namespace, true).await?;
            self.bind(&name, offloading).await?;
        }
        self.report(offloading, maps).await
    }

    async fn report(
        &self,
        offloading: &NamespaceOffloading,
        maps: &[PeerMap<'_>],
    ) -> Result<(), Error> {
        let status = status(offloading, maps, jiff::Timestamp::now());
        if offloading.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let namespace = offloading.namespace().unwrap_or_default();
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), &namespace);
        let written = writer::apply_status(&api, MANAGER, NAMESPACE_OFFLOADING, &status).await;
        writer::absent_is_fine(written.map(drop)).map_err(|error| Error::Status(namespace, error))
    }

    /// New pods stay here from the start; what virtual nodes need stays until nothing is left of
    /// the namespace in other clusters.
    async fn end(
        &self,
        namespace: &Namespace,
        offloading: &NamespaceOffloading,
        maps: &[PeerMap<'_>],
    ) -> Result<(), Error> {
        let name = namespace.name_any();
        self.label(namespace, false).await?;
        let api: Api<NamespaceOffloading> = Api::namespaced(self.client.clone(), &name);
        if !is_gone_everywhere(&name, maps) {
            return self.report(offloading, maps).await;
        }
        let bindings: Api<RoleBinding> = Api::namespaced(self.client.clone(), &name);
        if let Some(binding) = self.binding(&name)
            && is_ours(&binding)
        {
            let uid = binding.uid();
            let deleted =
                writer::delete_if_same(&bindings, KUBELET_ROLE_BINDING, uid.as_deref()).await;
            deleted.map_err(|error| Error::Bind(name.clone(), error))?;
        }
        let removed = finalizer::remove(&api, offloading, FINALIZER).await;
        removed.map_err(|error| Error::Finalize(name, error))
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
        let is_there = self.binding(namespace).is_some_and(|have| {
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

    fn binding(&self, namespace: &str) -> Option<Arc<RoleBinding>> {
        self.bindings.get(&ObjectRef::new(KUBELET_ROLE_BINDING).within(namespace))
    }
}

/// Lets virtual nodes read what they reflect from a namespace.
fn role_binding(owner: &NamespaceOffloading) -> RoleBinding {
    let rights = Rights::ClusterRole(KUBELET_NAMESPACE_ROLE);
    let mut binding = binding(KUBELET_ROLE_BINDING, rights, (KUBELET_ACCOUNT, NAMESPACE));
    binding.metadata.owner_references = owner.controller_owner_ref(&()).map(|owner| vec![owner]);
    binding
}

fn is_ours(binding: &RoleBinding) -> bool {
    binding.owner_references().iter().any(|owner| owner.kind == "NamespaceOffloading")
}

fn peer(map: &NamespaceMap) -> Option<ClusterId> {
    map.labels().get(REPLICATE_TO_LABEL)?.parse().ok()
}
