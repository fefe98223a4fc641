//! Rights in a twin namespace: RoleBindings for the home cluster and for our own controllers.

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

/// The RoleBindings that rights are given by.
pub(super) struct Bindings {
    client: Client,
    twins: [(Bound, Watched<RoleBinding>); 3],
    /// Those of other clusters' identities, in their tenant namespaces.
    identities: Watched<RoleBinding>,
}

/// Who gets rights in a twin namespace.
#[derive(Clone, Copy)]
enum Bound {
    /// The home cluster, during the peering.
    Home,
    /// The home cluster, when the peering is over.
    EndingHome,
    /// The controllers of this one.
    Control,
}

impl Bound {
    const ALL: [Self; 3] = [Self::Home, Self::EndingHome, Self::Control];

    /// The ClusterRole, which the RoleBinding is called after.
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
        let called = |name| Watched::new(Api::all(client.clone()), named(name));
        Self {
            client: client.clone(),
            twins: Bound::ALL.map(|bound| (bound, called(bound.role()))),
            identities: called(TENANT_ACCOUNT),
        }
    }

    /// By tenant namespace.
    pub fn feed(&self, queue: &Queue<String>, concerned: &Concerned) {
        self.identities.feed(queue, ResourceExt::namespace);
        for (_, bindings) in &self.twins {
            let concerned = concerned.clone();
            bindings.feed(queue, move |binding| {
                binding.namespace().map(|twin| concerned.by_twin(&twin)).unwrap_or_default()
            });
        }
    }

    pub async fn filled(&self) {
        self.identities.filled().await;
        for (_, bindings) in &self.twins {
            bindings.filled().await;
        }
    }

    /// Gives the rights of this stage in a twin, and no others.
    pub async fn put_right(&self, twin: &str, tenant: &str, stage: Stage) -> Result<(), Error> {
        let api = Api::namespaced(self.client.clone(), twin);
        for (bound, bindings) in &self.twins {
            let role = bound.role();
            let who = self.who(*bound, tenant, stage);
            let is_as_wanted = match bindings.get(twin, role) {
                Some(have) => have.subjects.as_deref().unwrap_or_default() == who,
                None => who.is_empty(),
            };
            if is_as_wanted {
                continue;
            }
            let wanted = bind(role, Rights::ClusterRole(role), who);
            let applied = writer::apply(&api, MANAGER, &wanted).await;
            applied.map_err(|error| Error::Bind(twin.to_owned(), role, error))?;
        }
        Ok(())
    }

    /// The home cluster is whoever its identity says in its tenant namespace: nobody, once that has
    /// been taken away.
    fn who(&self, bound: Bound, tenant: &str, stage: Stage) -> Vec<Subject> {
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
