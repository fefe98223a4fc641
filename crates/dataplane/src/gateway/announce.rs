//! Tells the cluster where the active gateway is, in the annotations of its Lease.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::reflector::Store,
};
use serde_json::{Value, json};
use tokio::{net::lookup_host, time};
use tombolo_api::{
    config::ClusterConfig,
    names::{
        CLUSTER_CONFIG, GATEWAY_ENDPOINT_ANNOTATION, GATEWAY_LEASE, GATEWAY_NODE_IP_ANNOTATION,
        GATEWAY_PORT, GATEWAY_PORT_ANNOTATION, GATEWAY_PUBLIC_KEY_ANNOTATION, NAMESPACE,
    },
};
use tombolo_core::plan::gateway::PublicKey;
use tombolo_runtime::{
    observe::{Observer, named},
    task::Task,
};
use tracing::warn;

use super::session::MANAGER;

/// Field manager of where other clusters reach the gateway. It is not the one of the rest, because
/// it may not be known yet while the rest is.
const ENDPOINT_MANAGER: &str = "liqo-gateway-endpoint";

/// Time after which something that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Time after which the name of the gateway is looked up again: it may lead elsewhere by then.
const REFRESH: Duration = Duration::from_secs(30);

/// Announces the gateway, once started, until dropped. Nothing waits for it: a name that can't be
/// looked up stops no traffic.
pub struct Announcer {
    gateway: Announced,
    task: Option<Task>,
}

impl Announcer {
    /// One that announces nothing yet.
    pub fn new(client: &Client, node: IpAddr, key: PublicKey) -> Self {
        let mut observer = Observer::new();
        let config = observer.watch(Api::all(client.clone()), named(CLUSTER_CONFIG));
        let leases = Api::namespaced(client.clone(), NAMESPACE);
        let gateway = Announced { leases, config, observer: Arc::new(observer), node, key };
        Self { gateway, task: None }
    }

    /// Starts, if it has not yet.
    pub fn start(&mut self) {
        let start = || Task::spawn("announcement of the gateway", self.gateway.clone().keep());
        self.task.get_or_insert_with(start);
    }
}

#[derive(Clone)]
struct Announced {
    leases: Api<Lease>,
    config: Store<ClusterConfig>,
    observer: Arc<Observer>,
    node: IpAddr,
    key: PublicKey,
}

impl Announced {
    async fn keep(self) {
        let (mut is_node_known, mut known) = (false, None);
        loop {
            let again = match self.announce(&mut is_node_known, &mut known).await {
                Ok(()) => REFRESH,
                Err(error) => {
                    warn!("can't announce the gateway: {error:#}");
                    RETRY
                }
            };
            let _ = time::timeout(again, self.observer.changed()).await;
        }
    }

    async fn announce(
        &self,
        is_node_known: &mut bool,
        known: &mut Option<SocketAddr>,
    ) -> anyhow::Result<()> {
        if !*is_node_known {
            let node = json!({ GATEWAY_NODE_IP_ANNOTATION: self.node });
            self.annotate(MANAGER, &node).await?;
            *is_node_known = true;
        }
        self.observer.synced().await;
        let config = self.config.state().into_iter().next();
        let configured = config.as_ref().and_then(|it| it.spec.network.endpoint.as_deref());
        let endpoint = endpoint(configured, self.node).await?;
        if *known != Some(endpoint) {
            let reached = json!({
                GATEWAY_ENDPOINT_ANNOTATION: endpoint.ip(),
                GATEWAY_PORT_ANNOTATION: endpoint.port().to_string(),
                GATEWAY_PUBLIC_KEY_ANNOTATION: BASE64_STANDARD.encode(self.key.0),
            });
            self.annotate(ENDPOINT_MANAGER, &reached).await?;
            *known = Some(endpoint);
        }
        Ok(())
    }

    async fn annotate(&self, manager: &str, annotations: &Value) -> anyhow::Result<()> {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": GATEWAY_LEASE, "annotations": annotations },
        });
        let params = PatchParams::apply(manager).force();
        let patched = self.leases.patch(GATEWAY_LEASE, &params, &Patch::Apply(&lease)).await;
        patched.with_context(|| format!("annotate Lease {NAMESPACE}/{GATEWAY_LEASE}"))?;
        Ok(())
    }
}

/// Where other clusters reach the gateway: as configured, an address or a name with or without a
/// port; else its node.
async fn endpoint(configured: Option<&str>, node: IpAddr) -> anyhow::Result<SocketAddr> {
    let Some(configured) = configured else { return Ok(SocketAddr::new(node, GATEWAY_PORT)) };
    if let Ok(ip) = configured.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, GATEWAY_PORT));
    }
    if let Ok(endpoint) = configured.parse::<SocketAddr>() {
        return Ok(endpoint);
    }
    let with_port = match configured.rsplit_once(':') {
        Some(_) => configured.to_owned(),
        None => format!("{configured}:{GATEWAY_PORT}"),
    };
    let failed =
        || format!("look up {configured}, which ClusterConfig has as spec.network.endpoint");
    let found: Vec<_> = lookup_host(&with_port).await.with_context(failed)?.collect();
    let v4 = found.iter().find(|endpoint| endpoint.is_ipv4());
    v4.or(found.first()).copied().with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_endpoint_may_have_a_port() {
        let node = IpAddr::from([172, 30, 0, 11]);
        for (configured, expected) in [
            (None, "172.30.0.11:51840"),
            (Some("203.0.113.7"), "203.0.113.7:51840"),
            (Some("203.0.113.7:1234"), "203.0.113.7:1234"),
            (Some("[2001:db8::7]:1234"), "[2001:db8::7]:1234"),
            (Some("2001:db8::7"), "[2001:db8::7]:51840"),
            (Some("localhost:1234"), "127.0.0.1:1234"),
        ] {
            assert_eq!(endpoint(configured, node).await.unwrap().to_string(), expected);
        }
    }
}
