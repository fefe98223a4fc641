//! The URL at which other clusters reach this one's auth service.

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, Client, api::ListParams};
use tombolo_api::names::{AUTH_SERVICE, NAMESPACE, TYPE_LABEL, VIRTUAL_NODE};
use tombolo_core::discovery::{Exposure, Unexposed};

/// The URL is unknown.
#[derive(Debug, thiserror::Error)]
pub enum UnknownUrl {
    /// The Service or the nodes can't be read.
    #[error("read the Service and the nodes for the URL of the auth service")]
    Api(#[from] kube::Error),
    /// The auth service is not exposed.
    #[error(transparent)]
    Unexposed(#[from] Unexposed),
}

/// The configured URL, that of a load balancer, or the node port on a ready node.
pub async fn find(client: &Client) -> Result<String, UnknownUrl> {
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(client.clone());
    // Resource version "any": the API server answers from its cache.
    let real = ListParams::default().match_any();
    let real = real.labels(&format!("{TYPE_LABEL}!={VIRTUAL_NODE}"));
    let (service, nodes) = tokio::try_join!(services.get(AUTH_SERVICE), nodes.list(&real))?;
    Ok(Exposure::of(&service)?.url(&nodes.items)?)
}
