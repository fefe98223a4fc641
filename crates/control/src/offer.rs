//! Answers other clusters' requests, and offers them a share of what is free. The offer follows
//! what is free, and goes with the request.

use std::{collections::BTreeMap, sync::Arc};

use futures::{FutureExt, Stream, StreamExt};
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{ListParams, ObjectMeta},
    runtime::{
        Controller,
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use tombolo_api::{
    config::{ClusterConfig, SharingConfig},
    discovery::{RequestState, ResourceRequest},
    names::{CLUSTER_CONFIG, REPLICATE_TO_LABEL, REPLICATED_FROM_LABEL},
    sharing::{ResourceOffer, ResourceOfferSpec, ResourceQuota},
};
use tombolo_core::{
    offer::{answer, free, is_due, look_after, quota},
    peering::request_state,
};
use tombolo_runtime::{controller, observe::Observer, writer};
use tracing::info;

use crate::context::Context;

const MANAGER: &str = "liqo-control/offer";

/// Runs until the end is asked for.
pub async fn run(context: Arc<Context>) {
    let client = context.client.clone();
    let mut observer = Observer::new();
    let state = Arc::new(State {
        nodes: observer.watch(Api::all(client.clone()), watcher::Config::default()),
        pods: observer.watch(Api::all(client.clone()), watcher::Config::default()),
        context: context.clone(),
    });
    if context.shutdown.or(observer.filled()).await.is_none() {
        return;
    }
    let copies = watcher::Config::default().labels(REPLICATED_FROM_LABEL);
    let originals = watcher::Config::default().labels(REPLICATE_TO_LABEL);
    let controller = Controller::new(Api::<ResourceRequest>::all(client.clone()), copies);
    let requests = controller.store();
    let configs = Api::<ClusterConfig>::all(client.clone());
    let controller = controller
        .watches(configs, watcher::Config::default(), move |_| {
            let all = requests.state();
            all.iter().map(|request| ObjectRef::from_obj(&**request)).collect::<Vec<_>>()
        })
        .owns(Api::<ResourceOffer>::all(client.clone()), originals)
        .reconcile_all_on(now_and_then(observer.changes()));
    controller::run("offer", controller, reconcile, state, &context.shutdown).await;
}

struct State {
    context: Arc<Context>,
    nodes: Store<Node>,
    pods: Store<Pod>,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{act} {namespace}/{name}")]
    Do { act: &'static str, namespace: String, name: String, source: Box<kube::Error> },
    #[error("read what is configured and offered")]
    Read(#[source] Box<kube::Error>),
}

async fn reconcile(request: Arc<ResourceRequest>, state: Arc<State>) -> Result<Action, Error> {
    if request.meta().deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let context = &state.context;
    let namespace = request.namespace().unwrap_or_default();
    let name = request.name_any();
    let failed = |act, name: &str| {
        let (namespace, name) = (namespace.clone(), name.to_owned());
        move |source| Error::Do { act, namespace, name, source: Box::new(source) }
    };
    let sharing = sharing(context).await?;
    if request_state(&request) == RequestState::Pending {
        if let Some(answer) = answer(&request, &sharing) {
            let requests = Api::<ResourceRequest>::namespaced(context.client.clone(), &namespace);
            let status = serde_json::json!({ "state": answer });
            writer::apply_status(&requests, MANAGER, &name, &status)
                .await
                .map_err(failed("answer the ResourceRequest", &name))?;
            info!(cluster = name, ?answer, "a cluster asks for resources");
        }
        return Ok(Action::await_change());
    }

    let offers = Api::<ResourceOffer>::namespaced(context.client.clone(), &namespace);
    let ours = context.settings.cluster_name.as_str();
    let offer = offers.get_opt(ours).await.map_err(failed("read the ResourceOffer", ours))?;
    if request_state(&request) == RequestState::Refused {
        if let Some(offer) = offer {
            writer::delete_if_same(&offers, ours, offer.uid().as_deref())
                .await
                .map_err(failed("withdraw the ResourceOffer", ours))?;
        }
        return Ok(Action::await_change());
    }
    let quota = state.quota(&sharing, &namespace).await?;
    if is_due(offer.as_ref(), &quota) {
        let offer = forge(context, &request, quota);
        writer::apply(&offers, MANAGER, &offer)
            .await
            .map_err(failed("make the ResourceOffer", ours))?;
    }
    Ok(Action::await_change())
}

impl State {
    async fn quota(
        &self,
        sharing: &SharingConfig,
        namespace: &str,
    ) -> Result<BTreeMap<String, Quantity>, Error> {
        let (nodes, pods) = (self.nodes.state(), self.pods.state());
        let left = free(nodes.iter().map(|node| &**node), pods.iter().map(|pod| &**pod));
        let ours = ListParams::default().labels(REPLICATE_TO_LABEL);
        let offers = Api::<ResourceOffer>::all(self.context.client.clone());
        let offers = offers.list(&ours).await.map_err(|error| Error::Read(Box::new(error)))?;
        let others = offers.iter().filter(|offer| offer.namespace().as_deref() != Some(namespace));
        Ok(quota(left, others, sharing))
    }
}

/// Owned by the request, so that it goes with it.
fn forge(
    context: &Context,
    request: &ResourceRequest,
    hard: BTreeMap<String, Quantity>,
) -> ResourceOffer {
    let asked_by = request.labels().get(REPLICATED_FROM_LABEL).cloned().unwrap_or_default();
    ResourceOffer {
        metadata: ObjectMeta {
            name: Some(context.settings.cluster_name.to_string()),
            labels: Some(BTreeMap::from([(REPLICATE_TO_LABEL.to_owned(), asked_by)])),
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

async fn sharing(context: &Context) -> Result<SharingConfig, Error> {
    let configs = Api::<ClusterConfig>::all(context.client.clone());
    let config = configs.get_opt(CLUSTER_CONFIG).await;
    let config = config.map_err(|error| Error::Read(Box::new(error)))?;
    Ok(config.map(|config| config.spec.sharing).unwrap_or_default())
}

/// A change is passed on at once, those that follow it after a while, together.
fn now_and_then(
    changes: impl Stream<Item = ()> + Send + 'static,
) -> impl Stream<Item = ()> + Send + 'static {
    futures::stream::unfold((changes.boxed(), true), async |(mut changes, is_first)| {
        changes.next().await?;
        tokio::time::sleep(look_after(is_first)).await;
        while let Some(Some(())) = changes.next().now_or_never() {}
        Some(((), (changes, false)))
    })
    .boxed()
}
