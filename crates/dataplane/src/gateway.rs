//! The gateway: tunnels to other clusters, and translation of addresses between them. One is active;
//! others wait for its Lease.

pub mod machine;
pub mod probe;

mod announce;
mod key;
mod session;

use std::{fmt, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::{sync::watch, time};
use tombolo_api::names::{GATEWAY_LEASE, NAMESPACE};
use tombolo_runtime::{
    client, health,
    lease::{self, Leading},
    observe::Observer,
    settings::Settings,
    shutdown::Shutdown,
};
use tracing::{info, warn};

use self::{machine::Place, session::Session};
use crate::uninstall::Uninstall;

const HEALTH_PORT: u16 = 10282;

/// Time after which something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until shutdown. What was made stays, so that connections outlive a restart: the
/// next one on this node goes on with it, and when another node has the next one, the agent removes it.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let (ready, is_ready) = watch::channel(false);
    let health = health::start(HEALTH_PORT, is_ready, shutdown.clone());
    let gateway = Gateway::new(client::local().await?, Place::here()?, settings, &shutdown);
    gateway.work(&ready).await;
    Ok(health.await??)
}

/// A gateway of a cluster, active or not.
pub struct Gateway {
    settings: Settings,
    client: Client,
    place: Place,
    observer: Observer,
    uninstall: Uninstall,
    shutdown: Shutdown,
}

impl fmt::Debug for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gateway").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Gateway {
    /// One that works at a place for the cluster of `client`, until shutdown.
    pub fn new(client: Client, place: Place, settings: Settings, shutdown: &Shutdown) -> Self {
        let mut observer = Observer::new();
        let uninstall = Uninstall::follow(&client, &mut observer, "gateway", &settings.node_name);
        Self { settings, client, place, observer, uninstall, shutdown: shutdown.clone() }
    }

    /// Works; says when it is ready.
    pub async fn work(&self, ready: &watch::Sender<bool>) {
        self.shutdown.or(self.observer.synced()).await;
        ready.send_replace(true);
        while !self.shutdown.is_triggered() {
            if let Err(error) = self.turn().await {
                warn!("gateway failed: {error:#}");
                self.shutdown.or(time::sleep(RETRY)).await;
            }
        }
    }

    /// One thing after the other: to be removed, to wait, to be active.
    async fn turn(&self) -> anyhow::Result<()> {
        if self.uninstall.is_requested() {
            if !self.uninstall.is_reported() {
                self.remove().await?;
                self.uninstall.report().await.context("report that the node is clean")?;
            }
            self.shutdown.or(self.observer.changed()).await;
            return Ok(());
        }
        let mut leading = tokio::select! {
            leading = self.lead() => leading,
            () = self.uninstalling() => return Ok(()),
        };
        let result = self.serve_as_leader(&mut leading).await;
        leading.end().await;
        result
    }

    /// Serves until another gateway is active, or none is to be.
    async fn serve_as_leader(&self, leading: &mut Leading) -> anyhow::Result<()> {
        if self.shutdown.is_triggered() {
            return Ok(());
        }
        let result = tokio::select! {
            result = self.serve() => result,
            () = self.uninstalling() => Ok(()),
            () = self.replaced(leading) => Ok(()),
            () = self.shutdown.triggered() => return Ok(()),
        };
        // Another node has the gateway, or none any more.
        if result.is_ok() {
            self.remove().await?;
        }
        result
    }

    async fn serve(&self) -> anyhow::Result<()> {
        let mut session = Session::start(&self.settings, &self.client, &self.place).await?;
        info!("this gateway is active");
        session.work().await
    }

    async fn lead(&self) -> Leading {
        let (client, name) = (self.client.clone(), &self.settings.pod_name);
        lease::lead(client, NAMESPACE, GATEWAY_LEASE, name, &self.shutdown).await
    }

    /// Waits until another gateway is active. As long as nobody can tell, for one because the API
    /// server is away, this one goes on: traffic does not depend on it.
    async fn replaced(&self, leading: &mut Leading) {
        let api = Api::<Lease>::namespaced(self.client.clone(), NAMESPACE);
        loop {
            leading.shutdown.triggered().await;
            self.shutdown.or(time::sleep(RETRY)).await;
            let Ok(lease) = api.get_opt(GATEWAY_LEASE).await else { continue };
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            if holder.is_some_and(|it| !it.is_empty() && it != self.settings.pod_name) {
                return;
            }
            if let Ok(again) = time::timeout(RETRY, self.lead()).await {
                *leading = again;
            }
        }
    }

    async fn uninstalling(&self) {
        while !self.uninstall.is_requested() {
            self.observer.changed().await;
        }
    }

    async fn remove(&self) -> anyhow::Result<()> {
        machine::remove(&self.place).await?;
        info!("removed the gateway's network from the node");
        Ok(())
    }
}
