//! RoleBindings in a twin namespace, for the home cluster and for the controllers of this cluster.

use k8s_openapi::api::rbac::v1::{RoleBinding, Subject};
use kube::{Api, Client, ResourceExt};
use tombolo_api::names::{
    CONTROL_ACCOUNT, CONTROL_TWIN_ROLE, ENDING_TWIN_ROLE, NAMESPACE, TENANT_ACCOUNT, TWIN_ROLE,
};
use tombolo_core::identity::{Stage, twin_role};
use tombolo_runtime::{
    observe::{Watched, named},
    queue::Queue,
    writer,
};

use super::{Error, MANAGER, concerned::Concerned};
use crate::binding::{Rights, account_of, bind};

/// The RoleBindings in all twin namespaces.
pub(super) struct Bindings {
    client: Client,
    twins: [(Bound, Watched<RoleBinding>); 3],
    /// RoleBindings of the identities of other clusters, in their tenant namespaces.
    identities: Watched<RoleBinding>,
}

/// A holder of rights in a twin namespace.
#[derive(Clone, Copy)]
enum Bound {
    /// The home cluster, during the peering.
    Home,
    /// The home cluster, after the end of the peering.
    EndingHome,
    /// The controllers of this cluster.
    Control,
}

impl Bound {
    const ALL: [Self; 3] = [Self::Home, Self::EndingHome, Self::Control];

    /// Name of the ClusterRole and of the RoleBinding.
    fn role(self) -> &'static str {
        match self {
            Self::Home => TWIN_ROLE,
            Self::EndingHome => ENDING_TWIN_ROLE,
            Self::Control => CONTROL_TWIN_ROLE,
        }
    }
}

impl Bindings {
    pub fn new(client: &Client) -> Self {
        let watch = |name| Watched::new(Api::all(client.clone()), named(name));
        Self {
            client: client.clone(),
            twins: Bound::ALL.map(|bound| (bound, watch(bound.role()))),
            identities: watch(TENANT_ACCOUNT),
        }
    }

    /// Enqueues tenant namespaces.
    pub fn enqueue(&self, queue: &Queue<String>, concerned: &Concerned) {
        self.identities.enqueue(queue, ResourceExt::namespace);
        for (_, bindings) in &self.twins {
            let concerned = concerned.clone();
            bindings.enqueue(queue, move |binding| {
                binding.namespace().map(|twin| concerned.by_twin(&twin)).unwrap_or_default()
            });
        }
    }

    pub async fn synced(&self) {
        self.identities.synced().await;
        for (_, bindings) in &self.twins {
            bindings.synced().await;
        }
    }

    /// Grants the rights of this stage in a twin, and revokes others.
    pub async fn reconcile(&self, twin: &str, tenant: &str, stage: Stage) -> Result<(), Error> {
        let api = Api::namespaced(self.client.clone(), twin);
        for (bound, bindings) in &self.twins {
            let role = bound.role();
            let subjects = self.subjects(*bound, tenant, stage);
            let is_as_wanted = match bindings.get(twin, role) {
                Some(have) => have.subjects.as_deref().unwrap_or_default() == subjects,
                None => subjects.is_empty(),
            };
            if is_as_wanted {
                continue;
            }
            let wanted = bind(role, Rights::ClusterRole(role), subjects);
            let applied = writer::apply(&api, MANAGER, &wanted).await;
            applied.map_err(|error| Error::Bind(twin.to_owned(), role, error))?;
        }
        Ok(())
    }

    /// The subjects of a RoleBinding. Those of the home cluster are the subjects of its identity in
    /// its tenant namespace: none, once the identity is revoked.
    fn subjects(&self, bound: Bound, tenant: &str, stage: Stage) -> Vec<Subject> {
        match bound {
            Bound::Home | Bound::EndingHome if bound.role() != twin_role(stage) => Vec::new(),
            Bound::Home | Bound::EndingHome => {
                let identity = self.identities.get(tenant, TENANT_ACCOUNT);
                identity.and_then(|binding| binding.subjects.clone()).unwrap_or_default()
            }
            Bound::Control => vec![account_of((CONTROL_ACCOUNT, NAMESPACE))],
        }
    }
}
