//! Clusters that are known only by their request for a peering: the entry is created with the
//! request and deleted with the last peering, unless another kind of discovery has taken it over.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tombolo_api::{
    discovery::{DiscoveryType, ForeignCluster, ResourceRequest},
    names::REQUEST_ANNOTATION,
};
use tombolo_core::{
    discovery::{self, incoming, replaced_request},
    owner::belongs_to,
    tenant::peer_of,
    view::{Entry, Request},
};
use tombolo_runtime::{
    observe::{Watched, key},
    queue::{self, queue},
    writer,
};
use tracing::info;

use super::{Error, MANAGER};
use crate::{
    context::Context,
    identity::{failed, tenant},
};

/// Runs until shutdown.
pub(super) async fn run(context: Arc<Context>) {
    let (queue, receiver) = queue();
    let requests = context.watches.of::<ResourceRequest>();
    let us = context.settings.cluster_name.clone();
    let from_elsewhere = move |request: &ResourceRequest| !belongs_to(&request.name_any(), &us);
    let is_received = from_elsewhere.clone();
    requests.enqueue(&queue, move |request| is_received(request).then(|| key(request)));
    let known = context.watches.of::<ForeignCluster>();
    let all = requests.clone();
    // Once the entry of an earlier request is gone, the next one can be created.
    known.enqueue(&queue, move |_| {
        let all = all.index().state_filter(&from_elsewhere);
        all.iter().map(|request| key(&**request)).collect::<Vec<_>>()
    });
    let work = queue::run("incoming-peering", receiver, async |(namespace, name)| {
        known.synced().await;
        match requests.get(&namespace, &name) {
            Some(request) => reconcile(&request, &context, &known).await,
            None => Ok(()),
        }
    });
    context.shutdown.or(work).await;
}

async fn reconcile(
    request: &ResourceRequest,
    context: &Context,
    known: &Watched<ForeignCluster>,
) -> Result<(), Error> {
    let client = &context.client;
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespace = namespaces.get_opt(&request.namespace().unwrap_or_default()).await;
    let namespace = namespace.map_err(failed("read the Namespace of a ResourceRequest"))?;
    let from = namespace.as_ref().and_then(peer_of);
    let Some(from) = from else { return Ok(()) };
    let known = known.all();
    let known: Vec<_> = known.iter().map(|entry| Entry::from_resource(entry)).collect();
    let clusters = Api::<ForeignCluster>::all(client.clone());
    let view = Request::from_resource(request);
    if let Some(entry) = replaced_request(&view, &from, &known) {
        return record_request(&clusters, entry, request).await;
    }
    let Some(entry) = incoming(&view, &from, &known) else { return Ok(()) };
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match clusters.create(&params, &entry).await {
        Ok(_) => info!(
            cluster = entry.name_any(),
            url = entry.spec.auth_url,
            "created a ForeignCluster for a peering request"
        ),
        // Discovered in another way at the same moment.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => {
            return Err(failed(format!("create ForeignCluster {}", entry.name_any()))(error).into());
        }
    }
    Ok(())
}

/// Records the UID of the request that the entry belongs to.
async fn record_request(
    clusters: &Api<ForeignCluster>,
    entry: &Entry<'_>,
    request: &ResourceRequest,
) -> Result<(), Error> {
    let annotations = json!({ REQUEST_ANNOTATION: request.uid() });
    let patch = json!({ "metadata": { "uid": entry.uid, "annotations": annotations } });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let recorded = clusters.patch(entry.name, &params, &Patch::Merge(patch)).await;
    let recorded = writer::absent_is_fine(recorded.map(drop));
    let what = format!("annotate ForeignCluster {} with its request", entry.name);
    Ok(recorded.map_err(failed(what))?)
}

/// Whether the entry existed only for a peering that is over.
pub(super) async fn is_over(context: &Context, entry: &ForeignCluster) -> Result<bool, Error> {
    let entry = Entry::from_resource(entry);
    let (DiscoveryType::IncomingPeering, Some(peer)) = (entry.kind, entry.peer.identity) else {
        return Ok(false);
    };
    let has_request = match tenant::find(&context.client, &peer.cluster_id).await? {
        Some(namespace) => {
            let requests =
                Api::<ResourceRequest>::namespaced(context.client.clone(), &namespace.name_any());
            let request = requests.get_metadata_opt(peer.cluster_name.as_str()).await;
            request
                .map_err(failed(format!("read ResourceRequest {}", peer.cluster_name)))?
                .is_some()
        }
        None => false,
    };
    Ok(discovery::is_over(&entry, has_request))
}
