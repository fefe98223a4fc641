//! Accepts or refuses the ResourceRequests of other clusters, and offers them a share of the free
//! resources. The offer is updated with these, and deleted with the request.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::{
    api::core::v1::{Namespace, Node, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{Api, Resource, ResourceExt, api::ObjectMeta, runtime::reflector::Store};
use tokio::{sync::Mutex, time::timeout};
use tombolo_api::{
    ClusterId,
    config::{ClusterConfig, SharingConfig},
    discovery::{RequestState, ResourceRequest},
    names::{CLUSTER_CONFIG, REPLICATE_TO_LABEL},
    sharing::{ResourceOffer, ResourceOfferSpec, ResourceQuota},
};
use tombolo_core::{
    offer::{answer, free, is_due, is_offered_to_other_peer, quota, refresh_delay},
    owner::belongs_to,
    tenant::peer_of,
    view::{Offer, Request},
};
use tombolo_runtime::{
    observe::{Key, Observer, Watched, key},
    queue::{self, queue},
    writer,
};
use tracing::info;

use crate::{
    context::Context,
    object_error::{self, ObjectError},
};

const MANAGER: &str = "liqo-control/offer";

/// Time to wait until the watch has a written offer.
const WATCH_DELAY: Duration = Duration::from_secs(2);

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let (queue, receiver) = queue();
    let (watches, mut observer) = (&context.watches, Observer::new());
    let state = State {
        nodes: observer.share(watches.of()),
        pods: observer.share(watches.of()),
        requests: watches.of(),
        namespaces: watches.of(),
        offers: watches.of(),
        turn: Mutex::default(),
        configs: watches.of(),
        context: context.clone(),
    };
    state.requests.enqueue(&queue, |request| [key(request)]);
    let requests = state.requests.clone();
    state.offers.enqueue(&queue, move |offer| {
        let namespace = offer.namespace().unwrap_or_default();
        requests.within(&namespace).iter().map(|request| key(&**request)).collect::<Vec<_>>()
    });
    let requests = state.requests.clone();
    state.configs.enqueue(&queue, move |_| all_of(&requests));
    let requests = state.requests.clone();
    state.namespaces.enqueue(&queue, move |namespace| {
        let of_tenant = requests.within(&namespace.name_any());
        of_tenant.iter().map(|request| key(&**request)).collect::<Vec<_>>()
    });
    let follow_free_resources = async {
        let mut changes = std::pin::pin!(throttled(observer.changes()));
        while changes.next().await.is_some() {
            all_of(&state.requests).into_iter().for_each(|it| queue.enqueue(it));
        }
    };
    let work = queue::run("offer", receiver, async |(namespace, name)| {
        tokio::join!(
            observer.synced(),
            state.configs.synced(),
            state.namespaces.synced(),
            state.offers.synced(),
        );
        match state.requests.get(&namespace, &name) {
            Some(request) => reconcile(&request, &state).await,
            None => Ok(()),
        }
    });
    context.shutdown.or(async { tokio::join!(follow_free_resources, work) }).await;
}

struct State {
    context: Arc<Context>,
    nodes: Store<Node>,
    pods: Store<Pod>,
    requests: Arc<Watched<ResourceRequest>>,
    namespaces: Arc<Watched<Namespace>>,
    offers: Arc<Watched<ResourceOffer>>,
    turn: Mutex<()>,
    configs: Arc<Watched<ClusterConfig>>,
}

fn all_of(requests: &Watched<ResourceRequest>) -> Vec<Key> {
    requests.all().iter().map(|request| key(&**request)).collect()
}

async fn reconcile(request: &ResourceRequest, state: &State) -> Result<(), ObjectError> {
    let view = Request::from_resource(request);
    let Some(requester) = state.requester(&view) else { return Ok(()) };
    if view.is_deleted && view.state != RequestState::Refused {
        return Ok(());
    }
    let context = &state.context;
    let namespace = request.namespace().unwrap_or_default();
    let name = request.name_any();
    let failed = |act, name: &str| object_error::failed(act, &namespace, name);
    let sharing = state.sharing();
    if view.state == RequestState::Pending {
        if let Some(answer) = answer(&view, &sharing) {
            let requests = Api::<ResourceRequest>::namespaced(context.client.clone(), &namespace);
            let status = serde_json::json!({ "state": answer });
            writer::apply_status(&requests, MANAGER, &name, &status)
                .await
                .map_err(failed("write the status of ResourceRequest", &name))?;
            info!(cluster = name, ?answer, "decided on the ResourceRequest");
        }
        return Ok(());
    }

    let offers = Api::<ResourceOffer>::namespaced(context.client.clone(), &namespace);
    let ours = context.settings.cluster_name.as_str();
    let offer = offers.get_opt(ours).await.map_err(failed("read ResourceOffer", ours))?;
    if view.state == RequestState::Refused {
        if let Some(offer) = offer {
            writer::delete_if_same(&offers, ours, offer.uid().as_deref())
                .await
                .map_err(failed("delete ResourceOffer", ours))?;
        }
        return Ok(());
    }
    // One at a time, so that each offer accounts for the others.
    let _turn = state.turn.lock().await;
    let quota = state.quota(&sharing, &namespace);
    if is_due(offer.as_ref().map(Offer::from_resource).as_ref(), &quota) {
        let offer = forge(context, request, &requester, quota);
        writer::apply(&offers, MANAGER, &offer)
            .await
            .map_err(failed("apply ResourceOffer", ours))?;
        state.wait_for(&namespace, &offer).await;
    }
    Ok(())
}

impl State {
    /// The cluster that has sent a request: the peer of the tenant namespace.
    fn requester(&self, request: &Request<'_>) -> Option<ClusterId> {
        let namespace = self.namespaces.get("", request.namespace)?;
        let ours = belongs_to(request.name, &self.context.settings.cluster_name);
        peer_of(&namespace).filter(|_| !ours)
    }

    fn sharing(&self) -> SharingConfig {
        let config = self.configs.get("", CLUSTER_CONFIG);
        config.map(|config| config.spec.sharing.clone()).unwrap_or_default()
    }

    fn quota(&self, sharing: &SharingConfig, namespace: &str) -> BTreeMap<String, Quantity> {
        let (nodes, pods) = (self.nodes.state(), self.pods.state());
        let left = free(nodes.iter().map(|node| &**node), pods.iter().map(|pod| &**pod));
        let us = self.context.settings.cluster_name.as_str();
        let others = self.offers.index();
        let is_other = |offer: &ResourceOffer| {
            is_offered_to_other_peer(&Offer::from_resource(offer), us, namespace)
        };
        let others = others.state_filter(is_other);
        quota(left, others.iter().map(|offer| Offer::from_resource(offer)), sharing)
    }

    /// Waits for a limited time until the index has the written offer. One that is deleted at once
    /// may never appear.
    async fn wait_for(&self, namespace: &str, written: &ResourceOffer) {
        let mut changes = self.offers.changes();
        let is_seen = || {
            let seen = self.offers.get(namespace, &written.name_any());
            seen.is_some_and(|seen| seen.spec.resource_quota == written.spec.resource_quota)
        };
        let seen = async { while !is_seen() && changes.changed().await.is_ok() {} };
        // After a timeout, the offer is enqueued again once the watch has it.
        let _ = timeout(WATCH_DELAY, seen).await;
    }
}

/// The offer. Its owner is the request, so that it is deleted with it.
fn forge(
    context: &Context,
    request: &ResourceRequest,
    requester: &ClusterId,
    hard: BTreeMap<String, Quantity>,
) -> ResourceOffer {
    let labels = BTreeMap::from([(REPLICATE_TO_LABEL.to_owned(), requester.to_string())]);
    ResourceOffer {
        metadata: ObjectMeta {
            name: Some(context.settings.cluster_name.to_string()),
            labels: Some(labels),
            owner_references: request.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceOfferSpec {
            cluster_id: context.settings.cluster_id.clone(),
            resource_quota: ResourceQuota { hard },
            labels: BTreeMap::new(),
            storage_classes: Vec::new(),
            withdrawal_timestamp: None,
        },
        status: None,
    }
}

/// The first change is passed on quickly, later ones together after a pause.
fn throttled(
    changes: impl Stream<Item = ()> + Send + 'static,
) -> impl Stream<Item = ()> + Send + 'static {
    futures::stream::unfold((changes.boxed(), true), async |(mut changes, is_first)| {
        changes.next().await?;
        tokio::time::sleep(refresh_delay(is_first)).await;
        while let Some(Some(())) = changes.next().now_or_never() {}
        Some(((), (changes, false)))
    })
    .boxed()
}
