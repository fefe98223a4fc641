//! The EndpointSlices that other clusters have asked for, out of service while those can't be
//! reached.

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
use tombolo_core::shadow_endpoint_slice::{belongs_to, forge, is_reachable, is_up_to_date, origin};
use tombolo_runtime::{
    events::Events,
    observe::{Key, Watched, key},
    queue::{self, queue},
    writer,
};

use crate::context::{Context, MANAGER};

/// Runs until the end is asked for.
pub async fn run(ctx: Arc<Context>) {
    let client = &ctx.client;
    let (queue, asked) = queue();
    let shadows = ctx.watches.of::<ShadowEndpointSlice>();
    shadows.feed(&queue, |shadow| [key(shadow)]);
    let managed = format!("{ENDPOINT_SLICE_MANAGED_BY_LABEL}={ENDPOINT_SLICE_REFLECTION}");
    let slices = Watched::new(
        Api::<EndpointSlice>::all(client.clone()),
        watcher::Config::default().labels(&managed),
    );
    slices.feed(&queue, |slice| [key(slice)]);
    let clusters = ctx.watches.of::<ForeignCluster>();
    let (of_cluster, mut before) = (shadows.clone(), BTreeMap::new());
    clusters.tell(move |_, index| {
        let now = reachability(index);
        let changed: BTreeSet<_> = differences(&before, &now);
        before = now;
        let shadows = of_cluster.all().into_iter();
        for shadow in shadows.filter(|s| origin(s).is_some_and(|id| changed.contains(&id))) {
            queue.push(key(&*shadow));
        }
    });
    let seen =
        Seen { client: client.clone(), events: ctx.events.clone(), shadows, slices, clusters };
    ctx.shutdown.or(queue::run("shadow_endpoint_slice", asked, |key| seen.reconcile(key))).await;
}

/// What could not be done.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("look whether there is an EndpointSlice {1} in namespace {0}")]
    Read(String, String, #[source] kube::Error),
    #[error(
        "make EndpointSlice {1} in namespace {0}: there is one already, which was not made for \
         this; remove it, and it is made again"
    )]
    Taken(String, String),
    #[error("write EndpointSlice {1} in namespace {0}")]
    Write(String, String, #[source] kube::Error),
    #[error("delete EndpointSlice {1} in namespace {0}, which is reflected no more")]
    Delete(String, String, #[source] kube::Error),
}

struct Seen {
    client: Client,
    events: Events,
    shadows: Arc<Watched<ShadowEndpointSlice>>,
    slices: Watched<EndpointSlice>,
    clusters: Arc<Watched<ForeignCluster>>,
}

impl Seen {
    /// A ShadowEndpointSlice and its EndpointSlice have the same name.
    async fn reconcile(&self, (namespace, name): Key) -> Result<(), Error> {
        tokio::join!(self.shadows.filled(), self.slices.filled(), self.clusters.filled());
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
            // One that is not labelled as ours is not in the index.
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
            // That of an earlier one of the same name is on its way out, and then seen to.
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
            *reachable.entry(identity.cluster_id.clone()).or_default() |= is_reachable(&cluster);
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
