//! Clusters that are known only because they asked for a peering: an entry comes with the request
//! and goes with the last peering, unless another way of discovery has taken it over.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tombolo_api::{
    discovery::{DiscoveryType, ForeignCluster, ResourceRequest},
    names::REQUEST_ANNOTATION,
};
use tombolo_core::{
    discovery::{self, asked_again, incoming, kind},
    replicate::received_from,
    tenant::peer_of,
    view::Request,
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

/// Runs until the end is asked for.
pub(super) async fn run(context: Arc<Context>) {
    let (queue, asked) = queue();
    let requests = context.watches.of::<ResourceRequest>();
    let from_elsewhere = |request: &ResourceRequest| received_from(request.meta()).is_some();
    requests.feed(&queue, move |request| from_elsewhere(request).then(|| key(request)));
    let known = context.watches.of::<ForeignCluster>();
    let all = requests.clone();
    // When the entry for an earlier request has gone, the next one can be made.
    known.feed(&queue, move |_| {
        let all = all.index().state_filter(from_elsewhere);
        all.iter().map(|request| key(&**request)).collect::<Vec<_>>()
    });
    let work = queue::run("incoming-peering", asked, async |(namespace, name)| {
        known.filled().await;
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
    let namespace = namespace.map_err(failed("read the namespace of a ResourceRequest"))?;
    let from = namespace.as_ref().and_then(peer_of);
    let known = known.all();
    let Some(from) = from else { return Ok(()) };
    let clusters = Api::<ForeignCluster>::all(client.clone());
    let view = Request::from_resource(request);
    if let Some(entry) = asked_again(&view, &from, &known) {
        return stands_for(&clusters, entry, request).await;
    }
    let Some(entry) = incoming(&view, &from, &known) else { return Ok(()) };
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match clusters.create(&params, &entry).await {
        Ok(_) => info!(cluster = entry.name_any(), url = entry.spec.auth_url, "asks for a peering"),
        // Found at the same moment by somebody else.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => {
            return Err(failed(format!("make ForeignCluster {}", entry.name_any()))(error).into());
        }
    }
    Ok(())
}

/// Notes which request it is that the entry is there for.
async fn stands_for(
    clusters: &Api<ForeignCluster>,
    entry: &ForeignCluster,
    request: &ResourceRequest,
) -> Result<(), Error> {
    let annotations = json!({ REQUEST_ANNOTATION: request.uid() });
    let patch = json!({ "metadata": { "uid": entry.uid(), "annotations": annotations } });
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    let noted = clusters.patch(&entry.name_any(), &params, &Patch::Merge(patch)).await;
    let noted = writer::absent_is_fine(noted.map(drop));
    Ok(noted.map_err(failed(format!("note on ForeignCluster {} who asks", entry.name_any())))?)
}

/// Whether the entry was there only for a peering, and that is over.
pub(super) async fn is_over(context: &Context, entry: &ForeignCluster) -> Result<bool, Error> {
    let (DiscoveryType::IncomingPeering, Some(peer)) = (kind(entry), &entry.spec.cluster_identity)
    else {
        return Ok(false);
    };
    let asked = match tenant::find(&context.client, &peer.cluster_id).await? {
        Some(namespace) => {
            let requests =
                Api::<ResourceRequest>::namespaced(context.client.clone(), &namespace.name_any());
            let request = requests.get_metadata_opt(peer.cluster_name.as_str()).await;
            request.map_err(failed("read the cluster's ResourceRequest"))?.is_some()
        }
        None => false,
    };
    Ok(discovery::is_over(entry, asked))
}
