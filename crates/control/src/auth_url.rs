//! Where other clusters reach this one's auth service.

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, Client, api::ListParams};
use tombolo_api::names::{AUTH_SERVICE, NAMESPACE, TYPE_LABEL, VIRTUAL_NODE};
use tombolo_core::discovery::address;

/// The URL is not known.
#[derive(Debug, thiserror::Error)]
pub enum UnknownUrl {
    /// The API server does not say.
    #[error("find the auth service's URL")]
    Ask(#[from] kube::Error),
    /// There is no port.
    #[error("the Service {NAMESPACE}/{AUTH_SERVICE} has no node port")]
    NoPort,
    /// There is no node.
    #[error("no node has an internal address")]
    NoNode,
}

/// By the node port of the auth service, on a node that is up.
pub async fn find(client: &Client) -> Result<String, UnknownUrl> {
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let service = services.get(AUTH_SERVICE).await?;
    let port = service
        .spec
        .and_then(|spec| spec.ports?.into_iter().find_map(|port| port.node_port))
        .ok_or(UnknownUrl::NoPort)?;
    let real = ListParams::default().labels(&format!("{TYPE_LABEL}!={VIRTUAL_NODE}"));
    let nodes = Api::<Node>::all(client.clone()).list(&real).await?;
    let address = address(&nodes.items).ok_or(UnknownUrl::NoNode)?;
    Ok(format!("https://{address}:{port}"))
}
