//! Maintains the EndpointSlice of each ShadowEndpointSlice. Its endpoints are not ready while their
//! cluster is unreachable.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client, Resource, ResourceExt,
    runtime::{reflector::Store, watcher},
};
use tombolo_api::names::{ENDPOINT_SLICE_MANAGED_BY_LABEL, ENDPOINT_SLICE_REFLECTION};
use tombolo_api::{ClusterId, discovery::ForeignCluster, virtualkubelet::ShadowEndpointSlice};
use tombolo_core::{
    shadow_endpoint_slice::{belongs_to, forge, is_reachable, is_up_to_date, origin},
    view::Peer,
};
use tombolo_runtime::{
    events::Events,
    observe::{Key, Watched, key},
    queue::{self, queue},
    writer,
};

use crate::context::{Context, MANAGER};

/// Runs until shutdown.
pub async fn run(ctx: Arc<Context>) {
    let client = &ctx.client;
    let (queue, receiver) = queue();
    let shadows = ctx.watches.of::<ShadowEndpointSlice>();
    shadows.enqueue(&queue, |shadow| [key(shadow)]);
    let managed = format!("{ENDPOINT_SLICE_MANAGED_BY_LABEL}={ENDPOINT_SLICE_REFLECTION}");
    let slices = Watched::new(
        Api::<EndpointSlice>::all(client.clone()),
        watcher::Config::default().labels(&managed),
    );
    slices.enqueue(&queue, |slice| [key(slice)]);
    let clusters = ctx.watches.of::<ForeignCluster>();
    let (of_cluster, mut before) = (shadows.clone(), BTreeMap::new());
    clusters.notify(move |_, index| {
        let now = reachability(index);
        let changed: BTreeSet<_> = differences(&before, &now);
        before = now;
        let shadows = of_cluster.all().into_iter();
        for shadow in shadows.filter(|s| origin(s).is_some_and(|id| changed.contains(&id))) {
            queue.enqueue(key(&*shadow));
        }
    });
    let state =
        State { client: client.clone(), events: ctx.events.clone(), shadows, slices, clusters };
    ctx.shutdown
        .or(queue::run("shadow_endpoint_slice", receiver, |key| state.reconcile(key)))
        .await;
}

/// An EndpointSlice could not be reconciled.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("read EndpointSlice {1} in namespace {0}")]
    Read(String, String, #[source] kube::Error),
    #[error(
        "create EndpointSlice {1} in namespace {0}: one with this name exists that is not \
         reflected; delete it"
    )]
    Taken(String, String),
    #[error("write EndpointSlice {1} in namespace {0}")]
    Write(String, String, #[source] kube::Error),
    #[error("delete EndpointSlice {1} in namespace {0}, which is no longer reflected")]
    Delete(String, String, #[source] kube::Error),
}

struct State {
    client: Client,
    events: Events,
    shadows: Arc<Watched<ShadowEndpointSlice>>,
    slices: Watched<EndpointSlice>,
    clusters: Arc<Watched<ForeignCluster>>,
}

impl State {
    /// A ShadowEndpointSlice and its EndpointSlice have the same name.
    async fn reconcile(&self, (namespace, name): Key) -> Result<(), Error> {
        tokio::join!(self.shadows.synced(), self.slices.synced(), self.clusters.synced());
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &namespace);
        let shadow = self.shadows.get(&namespace, &name);
        let shadow = shadow.filter(|shadow| shadow.meta().deletion_timestamp.is_none());
        let have = self.slices.get(&namespace, &name);
        let Some(shadow) = shadow else {
            return match have {
                Some(have) if is_of_a_shadow(&have) => {
                    let deleted = writer::delete_if_same(&api, &name, have.uid().as_deref()).await;
                    deleted.map_err(|error| Error::Delete(namespace, name, error))
                }
                _ => Ok(()),
            };
        };
        let wanted = forge(&shadow, self.is_reachable(&shadow));
        let have = match have {
            Some(have) => Some(have),
            // The index has only EndpointSlices with the label of reflection.
            None => api
                .get_opt(&name)
                .await
                .map(|have| have.map(Arc::new))
                .map_err(|error| Error::Read(namespace.clone(), name.clone(), error))?,
        };
        match have {
            Some(have) if !belongs_to(&have, &shadow) && !is_of_a_shadow(&have) => {
                let taken = Error::Taken(namespace, name);
                self.events.warning(&*shadow, "NameTaken", &taken.to_string()).await;
                Err(taken)
            }
            // It belongs to a deleted ShadowEndpointSlice of the same name. Its deletion enqueues
            // the key again.
            Some(have) if !belongs_to(&have, &shadow) => {
                let deleted = writer::delete_if_same(&api, &name, have.uid().as_deref()).await;
                deleted.map_err(|error| Error::Delete(namespace, name, error))
            }
            Some(have) if is_up_to_date(&have, &wanted) => Ok(()),
            Some(have) => {
                let uid = have.uid().unwrap_or_default();
                let written = writer::apply_to(&api, MANAGER, &uid, &wanted).await;
                written.map(drop).map_err(|error| Error::Write(namespace, name, error))
            }
            None => {
                let written = writer::apply(&api, MANAGER, &wanted).await;
                written.map(drop).map_err(|error| Error::Write(namespace, name, error))
            }
        }
    }

    fn is_reachable(&self, shadow: &ShadowEndpointSlice) -> bool {
        let reachable = reachability(self.clusters.index());
        origin(shadow).and_then(|origin| reachable.get(&origin).copied()).unwrap_or(false)
    }
}

fn reachability(clusters: &Store<ForeignCluster>) -> BTreeMap<ClusterId, bool> {
    let mut reachable = BTreeMap::new();
    for cluster in clusters.state() {
        if let Some(identity) = &cluster.spec.cluster_identity {
            *reachable.entry(identity.cluster_id.clone()).or_default() |=
                is_reachable(&Peer::from_resource(&cluster));
        }
    }
    reachable
}

fn differences(
    before: &BTreeMap<ClusterId, bool>,
    now: &BTreeMap<ClusterId, bool>,
) -> BTreeSet<ClusterId> {
    let all = before.keys().chain(now.keys());
    all.filter(|id| before.get(*id) != now.get(*id)).cloned().collect()
}

fn is_of_a_shadow(slice: &EndpointSlice) -> bool {
    slice.owner_references().iter().any(|owner| owner.kind == "ShadowEndpointSlice")
}
