//! One virtual node, and what it takes to serve it.

use std::{collections::BTreeMap, sync::Arc};

use kube::Client;
use tokio::sync::watch;
use tombolo_api::ClusterIdentity;
use tombolo_core::translate::Networks;
use tombolo_runtime::{remote::Remote, settings::Settings, shutdown::Shutdown};

/// One virtual node and what it takes to serve it.
#[derive(Clone)]
pub struct Peer {
    /// This cluster.
    pub home: Client,
    /// Which cluster this is.
    pub settings: Arc<Settings>,
    /// The cluster behind the virtual node, as we are known there.
    pub remote: Remote,
    /// Who that is.
    pub cluster: ClusterIdentity,
    /// Name of the virtual node.
    pub node: String,
    /// Namespace, in this cluster, with what the peering needs.
    pub tenant_namespace: String,
    /// Twin namespaces that are there, by the namespace of this cluster.
    pub namespaces: watch::Receiver<BTreeMap<String, String>>,
    /// What the two clusters call each other's networks, once that is known.
    pub networks: watch::Receiver<Option<Networks>>,
    /// When to end.
    pub shutdown: Shutdown,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer").field("node", &self.node).field("cluster", &self.cluster).finish()
    }
}
