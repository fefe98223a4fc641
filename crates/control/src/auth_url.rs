//! Where other clusters reach this one's auth service.

use k8s_openapi::api::core::v1::{Node, Service};
use kube::{Api, Client, api::ListParams};
use tombolo_api::names::{AUTH_SERVICE, NAMESPACE, TYPE_LABEL, VIRTUAL_NODE};
use tombolo_core::discovery::{Exposure, Unexposed};

/// The URL is not known.
#[derive(Debug, thiserror::Error)]
pub enum UnknownUrl {
    /// The API server does not say.
    #[error("find the auth service's URL")]
    Ask(#[from] kube::Error),
    /// There is none.
    #[error(transparent)]
    Unexposed(#[from] Unexposed),
}

/// The URL that was named, that of a load balancer, or the node port on a node that is up.
pub async fn find(client: &Client) -> Result<String, UnknownUrl> {
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let nodes: Api<Node> = Api::all(client.clone());
    // As they were a moment ago: nothing has to be waited for then.
    let real = ListParams::default().match_any();
    let real = real.labels(&format!("{TYPE_LABEL}!={VIRTUAL_NODE}"));
    let (service, nodes) = tokio::try_join!(services.get(AUTH_SERVICE), nodes.list(&real))?;
    Ok(Exposure::of(&service)?.url(&nodes.items)?)
}
