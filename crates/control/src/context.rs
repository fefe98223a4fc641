//! What every controller needs.

use kube::Client;
use tombolo_runtime::{
    events::Events, observe::Watches, remote::Remotes, settings::Settings, shutdown::Shutdown,
};

/// Shared by all controllers of this process.
#[derive(Clone)]
pub struct Context {
    /// This cluster.
    pub client: Client,
    /// What is in it.
    pub watches: Watches,
    /// Which cluster this is.
    pub settings: Settings,
    /// The other ones.
    pub remotes: Remotes,
    /// When to end.
    pub shutdown: Shutdown,
    /// What to say to people.
    pub events: Events,
}

impl Context {
    /// Of the cluster that `client` is for, until the end is asked for.
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

/// Name under which controllers apply.
pub const MANAGER: &str = "liqo-control";
