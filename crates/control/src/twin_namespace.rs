//! Creates and deletes the twins of other clusters' namespaces as their NamespaceMaps request.
//! After the end of the peering all twins are deleted, whatever the maps request.

mod concerned;
mod rights;

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt,
    api::{ObjectMeta, PostParams},
};
use tombolo_api::names::{FINALIZER, HOME_NAMESPACE_ANNOTATION, REMOTE_CLUSTER_ID_LABEL};
use tombolo_api::{
    ClusterId, ClusterIdentity, discovery::ResourceRequest, sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    identity::{Stage, stage},
    offloading::{
        ReceivedMapStep, Twin, TwinPlan, classify, deletion_due_in, home_cluster, received_map_step,
    },
    tenant::peer_of,
    view::{Map, Offer, Request},
};
use tombolo_runtime::{
    finalizer,
    observe::{IndexBy, Watched},
    queue::{self, Queue, Requeue, queue},
    writer,
};
use tracing::info;

use self::{
    concerned::{Concerned, is_received},
    rights::Bindings,
};
use crate::context::Context;

/// Runs until shutdown.
pub async fn run(ctx: Arc<Context>) {
    let (queue, receiver) = queue();
    let state = State::new(&ctx);
    state.enqueue(&queue);
    let work = queue::run("twin_namespace", receiver, async |tenant: String| {
        state.synced().await;
        state.reconcile(&tenant).await
    });
    ctx.shutdown.or(work).await;
}

/// A twin namespace or its NamespaceMap could not be reconciled.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("create namespace {0}, the twin of namespace {1} of another cluster")]
    Create(String, String, #[source] kube::Error),
    #[error("apply RoleBinding {1} in namespace {0}")]
    Bind(String, &'static str, #[source] kube::Error),
    #[error("delete namespace {0}, which the home cluster no longer requests")]
    Delete(String, #[source] kube::Error),
    #[error("delete the NamespaceMap in namespace {0}, whose peering has ended")]
    DeleteMap(String, #[source] kube::Error),
    #[error("add or remove the finalizer of the NamespaceMap in namespace {0}")]
    Finalize(String, #[source] kube::Error),
    #[error("write the status of the NamespaceMap in namespace {0}")]
    Status(String, #[source] kube::Error),
}

const MANAGER: &str = "liqo-control/twin-namespace";

/// Pods of other clusters may not be privileged or access the node. An administrator who trusts a
/// cluster more can change the label.
const POD_SECURITY_LABEL: &str = "pod-security.kubernetes.io/enforce";
const POD_SECURITY: &str = "baseline";

struct State {
    client: Client,
    us: ClusterIdentity,
    maps: Arc<Watched<NamespaceMap>>,
    namespaces: Arc<Watched<Namespace>>,
    offers: Arc<Watched<ResourceOffer>>,
    requests: Arc<Watched<ResourceRequest>>,
    bindings: Bindings,
    concerned: Concerned,
    /// NamespaceMaps from other clusters by tenant namespace.
    received: IndexBy<String, NamespaceMap>,
    requests_in: IndexBy<String, ResourceRequest>,
    /// By home cluster.
    twins: IndexBy<ClusterId, Namespace>,
}

impl State {
    fn new(ctx: &Context) -> Self {
        let watches = &ctx.watches;
        let (maps, namespaces) = (watches.of(), watches.of());
        let requests = watches.of::<ResourceRequest>();
        let us = ctx.settings.cluster();
        let name = us.cluster_name.clone();
        Self {
            client: ctx.client.clone(),
            bindings: Bindings::new(&ctx.client),
            concerned: Concerned::new(&namespaces, &maps, &name),
            received: maps.index_by(move |map| map.namespace().filter(|_| is_received(map, &name))),
            us,
            requests_in: requests.index_by(ResourceExt::namespace),
            twins: namespaces.index_by(home_cluster),
            offers: watches.of(),
            maps,
            namespaces,
            requests,
        }
    }

    /// Enqueues tenant namespaces.
    fn enqueue(&self, queue: &Queue<String>) {
        self.maps.enqueue(queue, ResourceExt::namespace);
        self.requests.enqueue(queue, ResourceExt::namespace);
        self.offers.enqueue(queue, ResourceExt::namespace);
        let concerned = self.concerned.clone();
        self.namespaces.enqueue_changes(queue, move |change| concerned.by_change(&change));
        self.bindings.enqueue(queue, &self.concerned);
    }

    async fn synced(&self) {
        tokio::join!(
            self.bindings.synced(),
            self.offers.synced(),
            self.received.synced(),
            self.requests_in.synced(),
            self.twins.synced(),
        );
    }

    /// Reconciles the maps from the cluster of a tenant namespace. The namespace tells which
    /// cluster that is: the labels of a map are written by its sender.
    async fn reconcile(&self, tenant: &str) -> Result<Requeue, Error> {
        let namespace = self.namespaces.get("", tenant);
        let home = namespace.and_then(|namespace| peer_of(&namespace));
        let Some(home) = home.filter(|home| *home != self.us.cluster_id) else {
            return Ok(Requeue::OnChange);
        };
        let maps = self.received.get(tenant);
        let requests = self.requests_in.get(tenant);
        let us = &self.us.cluster_name;
        let stage = stage(us, requests.iter().map(|request| Request::from_resource(request)));
        let offer = self.offers.get(tenant, us.as_str());
        let offer = offer.as_deref().map(Offer::from_resource);
        let now = Timestamp::now();
        let mut outcome = Ok(());
        for map in &maps {
            let namespaces = self.namespaces_for(map, &home);
            let existing = namespaces.iter().map(|(name, it)| (name.clone(), classify(it, &home)));
            let view = Map::from_resource(map);
            let next = received_map_step(&view, stage, offer.as_ref(), &existing.collect(), now);
            let guest = Guest { home: &home, tenant, stage, namespaces };
            outcome = outcome.and(self.follow(map, next, &guest).await);
        }
        outcome?;
        let left = deletion_due_in(stage, offer.as_ref(), now).filter(|_| !maps.is_empty());
        Ok(left.map_or(Requeue::OnChange, Requeue::After))
    }

    /// The twins of a cluster, and existing namespaces with a name that its map requests.
    fn namespaces_for(
        &self,
        map: &NamespaceMap,
        home: &ClusterId,
    ) -> BTreeMap<String, Arc<Namespace>> {
        let requested = map.spec.desired_mapping.values();
        let requested = requested.filter_map(|name| self.namespaces.get("", name));
        let all = self.twins.get(home).into_iter().chain(requested);
        all.map(|namespace| (namespace.name_any(), namespace)).collect()
    }

    async fn follow(
        &self,
        map: &NamespaceMap,
        next: ReceivedMapStep,
        guest: &Guest<'_>,
    ) -> Result<(), Error> {
        let tenant = guest.tenant.to_owned();
        let maps: Api<NamespaceMap> = Api::namespaced(self.client.clone(), &tenant);
        match next {
            // The change of the map enqueues it again.
            ReceivedMapStep::AddFinalizer => {
                let added = finalizer::add(&maps, map, FINALIZER).await;
                added.map_err(|error| Error::Finalize(tenant, error))
            }
            ReceivedMapStep::Delete => {
                info!(cluster = %guest.home, "the peering has ended: deleting the twin namespaces");
                let uid = map.uid();
                let gone = writer::delete_if_same(&maps, &map.name_any(), uid.as_deref()).await;
                gone.map_err(|error| Error::DeleteMap(tenant, error))
            }
            ReceivedMapStep::Reconcile(plan) => {
                self.carry_out(&plan, guest).await?;
                if plan.release {
                    // All other finalizers are from its sender.
                    let removed = finalizer::remove_all(&maps, map).await;
                    return removed.map_err(|error| Error::Finalize(tenant, error));
                }
                if map.status.clone().unwrap_or_default() == plan.status {
                    return Ok(());
                }
                let written =
                    writer::apply_status(&maps, MANAGER, &map.name_any(), &plan.status).await;
                writer::absent_is_fine(written.map(drop))
                    .map_err(|error| Error::Status(tenant, error))
            }
        }
    }

    async fn carry_out(&self, plan: &TwinPlan, guest: &Guest<'_>) -> Result<(), Error> {
        let all: Api<Namespace> = Api::all(self.client.clone());
        for twin in &plan.create {
            create(&all, twin, guest.home).await?;
        }
        for twin in &plan.keep {
            self.bindings.reconcile(&twin.name, guest.tenant, guest.stage).await?;
        }
        for name in &plan.delete {
            let uid = guest.namespaces.get(name).and_then(|namespace| namespace.uid());
            let deleted = writer::delete_if_same(&all, name, uid.as_deref()).await;
            deleted.map_err(|error| Error::Delete(name.clone(), error))?;
        }
        Ok(())
    }
}

/// A home cluster, and its namespaces in this cluster.
struct Guest<'a> {
    home: &'a ClusterId,
    tenant: &'a str,
    stage: Stage,
    namespaces: BTreeMap<String, Arc<Namespace>>,
}

/// Creates a twin, unless a namespace has its name. An existing one is checked at the next change.
async fn create(all: &Api<Namespace>, twin: &Twin, home: &ClusterId) -> Result<(), Error> {
    let labels = [
        (REMOTE_CLUSTER_ID_LABEL.to_owned(), home.to_string()),
        (POD_SECURITY_LABEL.to_owned(), POD_SECURITY.to_owned()),
    ];
    let annotations = [(HOME_NAMESPACE_ANNOTATION.to_owned(), twin.home.clone())];
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(twin.name.clone()),
            labels: Some(labels.into()),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let created = all.create(&params, &namespace).await;
    writer::absent_is_fine(created.map(drop))
        .map_err(|error| Error::Create(twin.name.clone(), twin.home.clone(), error))
}
