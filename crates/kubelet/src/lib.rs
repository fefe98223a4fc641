//! Virtual nodes: Node objects, pod offloading, reflection, the kubelet API. One process serves all
//! virtual nodes of the cluster, each with tasks of its own.

mod api;
mod lease;
mod node;
mod pods;
mod supervisor;
mod virtual_node;

pub mod peer;
pub mod reflection;

use kube::Client;
use tokio::sync::watch;
use tombolo_api::names::NAMESPACE;
use tombolo_runtime::{
    client, health, lease as leadership, settings::Settings, shutdown::Shutdown,
};

/// Field manager of this component, and name of its Lease.
pub(crate) const MANAGER: &str = "liqo-kubelet";

const HEALTH_PORT: u16 = 8083;

/// Serves the virtual nodes of this cluster while this process leads, until shutdown.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (alive, ready) = watch::channel(false);
    let health = health::start(HEALTH_PORT, ready, shutdown.clone());
    alive.send_replace(true);
    while !shutdown.is_triggered() {
        let identity = &settings.pod_name;
        let leading =
            leadership::lead(client.clone(), NAMESPACE, MANAGER, identity, &shutdown).await;
        serve(client.clone(), settings.clone(), leading.shutdown.clone()).await?;
        leading.end().await;
    }
    health.await??;
    Ok(())
}

/// Serves the virtual nodes of this cluster until shutdown.
pub async fn serve(client: Client, settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let gate = api::Gate::open(client.clone(), &settings)?;
    supervisor::run(client, settings, gate, shutdown).await;
    Ok(())
}
