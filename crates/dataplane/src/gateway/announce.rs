//! Tells the cluster where the active gateway is, in the annotations of its Lease.

use std::net::{IpAddr, SocketAddr};

use anyhow::Context as _;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::net::lookup_host;
use tombolo_api::names::{
    GATEWAY_ENDPOINT_ANNOTATION, GATEWAY_LEASE, GATEWAY_NODE_IP_ANNOTATION, GATEWAY_PORT,
    GATEWAY_PORT_ANNOTATION, GATEWAY_PUBLIC_KEY_ANNOTATION, NAMESPACE,
};
use tombolo_core::plan::gateway::PublicKey;

use super::session::MANAGER;

/// Says where the gateway is: on which node, and where other clusters reach it.
pub async fn announce(
    client: &Client,
    node: IpAddr,
    endpoint: SocketAddr,
    key: PublicKey,
) -> anyhow::Result<()> {
    let api = Api::<Lease>::namespaced(client.clone(), NAMESPACE);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": GATEWAY_LEASE,
            "annotations": {
                GATEWAY_ENDPOINT_ANNOTATION: endpoint.ip(),
                GATEWAY_NODE_IP_ANNOTATION: node,
                GATEWAY_PORT_ANNOTATION: endpoint.port().to_string(),
                GATEWAY_PUBLIC_KEY_ANNOTATION: BASE64_STANDARD.encode(key.0),
            },
        },
    });
    let params = PatchParams::apply(MANAGER).force();
    let patched = api.patch(GATEWAY_LEASE, &params, &Patch::Apply(&lease)).await;
    patched.with_context(|| format!("annotate Lease {NAMESPACE}/{GATEWAY_LEASE}"))?;
    Ok(())
}

/// Where other clusters reach the gateway: as configured, an address or a name with or without a
/// port; else its node.
pub async fn endpoint(configured: Option<&str>, node: IpAddr) -> anyhow::Result<SocketAddr> {
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
