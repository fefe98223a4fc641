//! The peer of a virtual node.

use std::{collections::BTreeMap, sync::Arc};

use kube::Client;
use tokio::sync::watch;
use tombolo_api::ClusterIdentity;
use tombolo_core::translate::Networks;
use tombolo_runtime::{remote::Remote, settings::Settings, shutdown::Shutdown};

/// The cluster behind a virtual node, and the inputs and clients to serve the node.
#[derive(Clone)]
pub struct Peer {
    /// A client of this cluster.
    pub home: Client,
    /// Settings of this cluster.
    pub settings: Arc<Settings>,
    /// A client of the cluster behind the virtual node, with the identity it has issued.
    pub remote: Remote,
    /// Id and name of that cluster.
    pub cluster: ClusterIdentity,
    /// Name of the virtual node.
    pub node: String,
    /// The tenant namespace of the peering in this cluster.
    pub tenant_namespace: String,
    /// Existing twin namespaces by local namespace.
    pub namespaces: watch::Receiver<BTreeMap<String, String>>,
    /// The translated CIDRs between the two clusters, once they are known.
    pub networks: watch::Receiver<Option<Networks>>,
    /// Ends the virtual node.
    pub shutdown: Shutdown,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("node", &self.node).field("cluster", &self.cluster).finish()
    }
}
