//! State shared by all controllers.

use kube::Client;
use tombolo_runtime::{
    events::Events, observe::Watches, remote::Remotes, settings::Settings, shutdown::Shutdown,
};

/// Shared by all controllers of this process.
#[derive(Clone)]
pub struct Context {
    /// Client of this cluster.
    pub client: Client,
    /// Watches of its objects.
    pub watches: Watches,
    /// Id, name and networks of this cluster.
    pub settings: Settings,
    /// Clients of other clusters.
    pub remotes: Remotes,
    /// Signals shutdown.
    pub shutdown: Shutdown,
    /// Writes Kubernetes events.
    pub events: Events,
}

impl Context {
    /// The context of the cluster that `client` is for, until shutdown.
    pub fn new(client: Client, settings: Settings, shutdown: Shutdown) -> Self {
        Self {
            watches: Watches::new(client.clone()),
            remotes: Remotes::new(client.clone()),
            events: Events::new(client.clone(), MANAGER),
            client,
            settings,
            shutdown,
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Field manager of the controllers.
pub const MANAGER: &str = "liqo-control";
