//! The Node object of a virtual node: kept as `core` wants it, and recreated if it is deleted.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use tokio::{sync::watch, time::timeout};
use tombolo_core::{
    node::{self, Facts},
    offer_stage::OfferStage,
    view::Offer,
};
use tombolo_runtime::{
    chain::Chain,
    observe::{Watched, named},
    shutdown::Shutdown,
    writer,
};
use tracing::{info, warn};

use crate::{MANAGER, lease, peer::Peer, virtual_node::Inputs};

const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("read Node {0}")]
    Get(String, #[source] kube::Error),
    #[error("apply Node {0}")]
    Apply(String, #[source] kube::Error),
    #[error("apply the status of Node {0}")]
    ApplyStatus(String, #[source] kube::Error),
    #[error("delete Node {0}")]
    Delete(String, #[source] kube::Error),
}

/// Maintains the Node and its Lease until shutdown.
pub(crate) async fn keep(
    peer: Arc<Peer>,
    port: u16,
    mut inputs: watch::Receiver<Inputs>,
    shutdown: Shutdown,
) {
    let api: Api<Node> = Api::all(peer.home.clone());
    let (uid, uids) = watch::channel(None);
    let watched = Watched::new(api.clone(), named(&peer.node));
    let mut changes = watched.changes();
    let keeping = async {
        watched.synced().await;
        loop {
            changes.borrow_and_update();
            let seen = watched.only();
            uid.send_if_modified(|uid| {
                let new = seen.as_ref().and_then(|node| node.uid());
                std::mem::replace(uid, new.clone()) != new
            });
            let given = inputs.borrow_and_update().clone();
            let result = write(&api, &peer, port, &given, seen.as_deref()).await;
            let changed = async {
                tokio::select! {
                    changed = changes.changed() => changed.is_ok(),
                    changed = inputs.changed() => changed.is_ok(),
                }
            };
            let go_on = match result {
                Ok(()) => changed.await,
                Err(error) => {
                    warn!(node = peer.node, retry_in = ?RETRY, "failed: {}", Chain(&error));
                    timeout(RETRY, changed).await.unwrap_or(true)
                }
            };
            if !go_on {
                return;
            }
        }
    };
    let lease = lease::keep(peer.home.clone(), &peer.node, uids, &shutdown);
    tokio::join!(shutdown.or(keeping), lease);
}

/// Deletes the Node.
pub(crate) async fn remove(peer: &Peer) -> Result<(), NodeError> {
    let api: Api<Node> = Api::all(peer.home.clone());
    let node = api.get_opt(&peer.node).await;
    let node = node.map_err(|source| NodeError::Get(peer.node.clone(), source))?;
    match node.filter(|node| !node::is_taken(node, &peer.cluster.cluster_id)) {
        None => Ok(()),
        Some(node) => writer::delete_if_same(&api, &peer.node, node.uid().as_deref())
            .await
            .map_err(|source| NodeError::Delete(peer.node.clone(), source)),
    }
}

async fn write(
    api: &Api<Node>,
    peer: &Peer,
    port: u16,
    inputs: &Inputs,
    seen: Option<&Node>,
) -> Result<(), NodeError> {
    let facts = Facts {
        name: &peer.node,
        cluster: &peer.cluster.cluster_id,
        offer: Offer::from_resource(&inputs.offer),
        address: peer.settings.pod_ip,
        port,
        not_ready: inputs.not_ready.as_ref(),
        draining: inputs.stage != OfferStage::Serving,
        manager: MANAGER,
    };
    // The index has no managedFields, which tell who has cordoned the node.
    let whole = match seen.is_some_and(node::is_cordoned) && !facts.draining {
        true => api.get_opt(&peer.node).await,
        false => Ok(None),
    };
    let whole = whole.map_err(|source| NodeError::Get(peer.node.clone(), source))?;
    if let Some(node) = node::wanted(&facts, whole.as_ref().or(seen)) {
        writer::apply(api, MANAGER, &node)
            .await
            .map_err(|source| NodeError::Apply(peer.node.clone(), source))?;
    }
    let status = seen.and_then(|node| node.status.as_ref());
    if let Some(status) = node::wanted_status(&facts, status, Timestamp::now()) {
        writer::apply_status(api, MANAGER, &peer.node, &status)
            .await
            .map_err(|source| NodeError::ApplyStatus(peer.node.clone(), source))?;
        match &inputs.not_ready {
            None => info!(node = peer.node, "node is ready"),
            Some(why) => info!(node = peer.node, reason = why.reason, "node is not ready"),
        }
    }
    Ok(())
}
