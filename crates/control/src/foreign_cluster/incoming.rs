//! Clusters that are known only because they asked for a peering: an entry comes with the request
//! and goes with the last peering, unless another way of discovery has taken it over.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::PostParams,
    runtime::{Controller, controller::Action, watcher},
};
use tombolo_api::{
    ClusterId,
    discovery::{DiscoveryType, ForeignCluster, ResourceRequest},
    names::{CLUSTER_ID_LABEL, REPLICATED_FROM_LABEL, TENANT_LABEL},
};
use tombolo_core::discovery::{self, incoming, kind};
use tombolo_runtime::{controller, observe::Watched};
use tracing::info;

use super::{Error, MANAGER};
use crate::{
    context::Context,
    identity::{failed, tenant},
};

/// Runs until the end is asked for.
pub(super) async fn run(context: Arc<Context>) {
    let clusters = Api::all(context.client.clone());
    let known = Watched::new(clusters, watcher::Config::default());
    let shutdown = context.shutdown.clone();
    if shutdown.or(known.filled()).await.is_none() {
        return;
    }
    let requests = Api::<ResourceRequest>::all(context.client.clone());
    let copies = watcher::Config::default().labels(REPLICATED_FROM_LABEL);
    let controller = Controller::new(requests, copies);
    let state = Arc::new(Incoming { context, known });
    controller::run("incoming-peering", controller, reconcile, state, &shutdown).await;
}

struct Incoming {
    context: Arc<Context>,
    known: Watched<ForeignCluster>,
}

async fn reconcile(request: Arc<ResourceRequest>, state: Arc<Incoming>) -> Result<Action, Error> {
    let client = &state.context.client;
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespace = namespaces.get_metadata_opt(&request.namespace().unwrap_or_default()).await;
    let namespace = namespace.map_err(failed("read the namespace of a ResourceRequest"))?;
    let from: Option<ClusterId> = namespace
        .filter(|namespace| namespace.labels().contains_key(TENANT_LABEL))
        .and_then(|namespace| namespace.labels().get(CLUSTER_ID_LABEL)?.parse().ok());
    let known: Vec<_> = state.known.all().into_iter().map(Arc::unwrap_or_clone).collect();
    let Some(entry) = from.and_then(|from| incoming(&request, &from, &known)) else {
        return Ok(Action::await_change());
    };
    let clusters = Api::<ForeignCluster>::all(client.clone());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match clusters.create(&params, &entry).await {
        Ok(_) => info!(cluster = entry.name_any(), url = entry.spec.auth_url, "asks for a peering"),
        // Found at the same moment by somebody else.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => {
            return Err(failed(format!("make ForeignCluster {}", entry.name_any()))(error).into());
        }
    }
    Ok(Action::await_change())
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
