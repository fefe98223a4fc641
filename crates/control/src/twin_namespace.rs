//! The namespaces that stand for those of other clusters: made, kept and removed as the
//! NamespaceMaps say that they have sent. When the peering is over they go, whatever these say.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{RoleBinding, Subject},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, PostParams},
    runtime::reflector::{ObjectRef, Store},
};
use tombolo_api::names::{
    CONTROL_ACCOUNT, CONTROL_TWIN_ROLE, ENDING_TWIN_ROLE, FINALIZER, HOME_NAMESPACE_ANNOTATION,
    NAMESPACE, REMOTE_CLUSTER_ID_LABEL, REPLICATED_FROM_LABEL, TENANT_ACCOUNT, TWIN_ROLE,
};
use tombolo_api::{
    ClusterId, ClusterName, discovery::ResourceRequest, sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    identity::{Stage, stage, twin_role},
    offloading::{Existing, Twin, is_outstayed, is_twin, twins},
    tenant::peer_of,
    view::{Offer, Request},
};
use tombolo_runtime::{
    finalizer,
    observe::{Observer, Watched, named},
    writer,
};
use tracing::info;

use crate::{
    binding::{Rights, account_of, bind},
    context::Context,
};

/// Runs until the end is asked for.
pub async fn run(ctx: Arc<Context>) {
    let (mut observer, watches, client) = (Observer::new(), &ctx.watches, &ctx.client);
    observer.look_again_after(AGAIN);
    observer.share(watches.of::<ResourceRequest>());
    let seen = Seen {
        client: client.clone(),
        us: ctx.settings.cluster_name.clone(),
        requests: watches.of(),
        offers: observer.share(watches.of()),
        namespaces: observer.share(watches.of()),
        maps: observer.share(watches.of()),
        bindings: Bound::ALL
            .map(|bound| (bound, observer.watch(Api::all(client.clone()), named(bound.role())))),
        identities: observer.watch(Api::all(client.clone()), named(TENANT_ACCOUNT)),
    };
    observer.run("twin_namespace", &ctx.shutdown, || seen.reconcile()).await;
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("make namespace {0}, the twin of {1} in another cluster")]
    Make(String, String, #[source] kube::Error),
    #[error("give rights in namespace {0}, by RoleBinding {1}")]
    Bind(String, &'static str, #[source] kube::Error),
    #[error("delete namespace {0}, which the home cluster wants no more")]
    Delete(String, #[source] kube::Error),
    #[error("delete the NamespaceMap in {0}: its sender may have no pods here any more")]
    Outstayed(String, #[source] kube::Error),
    #[error("set the finalizer of the NamespaceMap in {0}")]
    Finalize(String, #[source] kube::Error),
    #[error("write the status of the NamespaceMap in {0}")]
    Status(String, #[source] kube::Error),
}

const MANAGER: &str = "liqo-control/twin-namespace";

/// Whether somebody has had enough time to leave is looked at this often.
const AGAIN: Duration = Duration::from_secs(60);

/// Whoever runs pods here from outside gets no more than that: no pod of theirs is privileged, or
/// sees the node. Who trusts them more changes the label.
const POD_SECURITY_LABEL: &str = "pod-security.kubernetes.io/enforce";
const POD_SECURITY: &str = "baseline";

struct Seen {
    client: Client,
    us: ClusterName,
    requests: Arc<Watched<ResourceRequest>>,
    offers: Store<ResourceOffer>,
    namespaces: Store<Namespace>,
    maps: Store<NamespaceMap>,
    bindings: [(Bound, Store<RoleBinding>); 3],
    /// The bindings of other clusters' identities, in their tenant namespaces.
    identities: Store<RoleBinding>,
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

impl Seen {
    /// Goes through all maps; one that fails does not keep the others waiting.
    async fn reconcile(&self) -> Result<(), Error> {
        let namespaces = self.namespaces.state();
        let namespaces: BTreeMap<_, _> =
            namespaces.into_iter().map(|namespace| (namespace.name_any(), namespace)).collect();
        let mut outcome = Ok(());
        let theirs = |map: &NamespaceMap| map.labels().contains_key(REPLICATED_FROM_LABEL);
        for map in self.maps.state_filter(theirs) {
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
        let requests = self.requests.within(&tenant);
        let stage = stage(&self.us, requests.iter().map(|request| Request::from_resource(request)));
        let offer = self.offers.get(&ObjectRef::new(self.us.as_str()).within(&tenant));
        let offer = offer.as_deref().map(Offer::from_resource);
        if !leaves && is_outstayed(stage, offer.as_ref(), Timestamp::now()) {
            info!(cluster = %home, "there is no peering any more: its namespaces go");
            let gone = writer::delete_if_same(&maps, &map.name_any(), map.uid().as_deref()).await;
            return gone.map_err(|error| Error::Outstayed(tenant, error));
        }
        let wanted = |name: &String| map.spec.desired_mapping.values().any(|want| want == name);
        let existing: BTreeMap<_, _> = namespaces
            .iter()
            .map(|(name, namespace)| (name.clone(), is_twin(namespace, home)))
            .filter(|(name, existing)| *existing != Existing::Foreign || wanted(name))
            .collect();
        let plan = twins(map, &existing);
        for twin in plan.make.iter().filter(|_| stage >= Stage::Hosted) {
            self.make(twin, home).await?;
        }
        for twin in &plan.keep {
            self.bind(twin, &tenant, stage).await?;
        }
        let all: Api<Namespace> = Api::all(self.client.clone());
        for name in &plan.delete {
            let uid = namespaces.get(name).and_then(|namespace| namespace.uid());
            let deleted = writer::delete_if_same(&all, name, uid.as_deref()).await;
            deleted.map_err(|error| Error::Delete(name.clone(), error))?;
        }
        if leaves && plan.status.current_mapping.is_empty() {
            // Whatever else holds it, its sender has put there.
            let removed = finalizer::remove_all(&maps, map).await;
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
                labels: Some(
                    [
                        (REMOTE_CLUSTER_ID_LABEL.to_owned(), home.to_string()),
                        (POD_SECURITY_LABEL.to_owned(), POD_SECURITY.to_owned()),
                    ]
                    .into(),
                ),
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

    /// The home cluster is whoever its identity says in its tenant namespace: nobody, once that has
    /// been taken away.
    fn who(&self, bound: Bound, tenant: &str, stage: Stage) -> Vec<Subject> {
        match bound {
            Bound::Home | Bound::EndingHome if bound.role() != twin_role(stage) => Vec::new(),
            Bound::Home | Bound::EndingHome => {
                let identity = self.identities.get(&ObjectRef::new(TENANT_ACCOUNT).within(tenant));
                identity.and_then(|binding| binding.subjects.clone()).unwrap_or_default()
            }
            Bound::Control => vec![account_of((CONTROL_ACCOUNT, NAMESPACE))],
        }
    }

    async fn bind(&self, twin: &Twin, tenant: &str, stage: Stage) -> Result<(), Error> {
        let api = Api::namespaced(self.client.clone(), &twin.name);
        for (bound, bindings) in &self.bindings {
            let role = bound.role();
            let who = self.who(*bound, tenant, stage);
            let have = bindings.get(&ObjectRef::new(role).within(&twin.name));
            let is_as_wanted = match have {
                Some(have) => have.subjects.as_deref().unwrap_or_default() == who,
                None => who.is_empty(),
            };
            if is_as_wanted {
                continue;
            }
            let wanted = bind(role, Rights::ClusterRole(role), who);
            let applied = writer::apply(&api, MANAGER, &wanted).await;
            applied.map_err(|error| Error::Bind(twin.name.clone(), role, error))?;
        }
        Ok(())
    }
}

/// Who has sent a map: whose tenant namespace it is in. What the map itself says counts for
/// nothing, for its sender writes it.
fn sender(map: &NamespaceMap, namespaces: &BTreeMap<String, Arc<Namespace>>) -> Option<ClusterId> {
    peer_of(namespaces.get(&map.namespace()?)?)
}
