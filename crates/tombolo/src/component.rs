//! The components that run in a cluster, each a subcommand of this program.

use anyhow::{Context, Result};
use tombolo_runtime::{settings::Settings, shutdown::Shutdown, telemetry};

/// Hidden from the help: only the manifests use them.
#[derive(Debug, clap::Subcommand)]
pub enum Component {
    /// Run the controllers, the address service and the admission webhook
    #[command(hide = true)]
    Control(Settings),
    /// Run the auth service, which issues identities to other clusters
    #[command(hide = true)]
    Auth(Settings),
    /// Run discovery of other clusters, by mDNS and DNS
    #[command(hide = true)]
    Discovery(Settings),
    /// Run the virtual nodes
    #[command(hide = true)]
    Kubelet(Settings),
    /// Run the tunnels to other clusters and the address translation
    #[command(hide = true)]
    Gateway(Settings),
    /// Run the overlay, routes and rules of a node
    #[command(hide = true)]
    Agent(Settings),
}

pub fn run(component: Component) -> Result<()> {
    telemetry::init();
    tokio::runtime::Runtime::new()?.block_on(async {
        let (shutdown, _signals) = Shutdown::on_signals().context("listen for signals")?;
        match component {
            Component::Control(settings) => tombolo_control::control::run(settings, shutdown).await,
            Component::Auth(settings) => tombolo_control::auth::run(settings, shutdown).await,
            Component::Discovery(settings) => {
                tombolo_control::discovery::run(settings, shutdown).await
            }
            Component::Kubelet(settings) => tombolo_kubelet::run(settings, shutdown).await,
            Component::Gateway(settings) => {
                tombolo_dataplane::gateway::run(settings, shutdown).await
            }
            Component::Agent(settings) => tombolo_dataplane::agent::run(settings, shutdown).await,
        }
    })
}
