//! The view of a TunnelEndpoint.

use tombolo_api::net::{
    Connection, ConnectionStatus, TunnelEndpoint, TunnelEndpointSpec, TunnelEndpointStatus,
};

/// The fields of a TunnelEndpoint that decisions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint<'a> {
    /// Name of the object.
    pub name: &'a str,
    /// Its tenant namespace.
    pub namespace: &'a str,
    /// Uid of the object.
    pub uid: Option<&'a str>,
    /// The peer and its network.
    pub spec: &'a TunnelEndpointSpec,
    /// The agreed networks, once they are known.
    pub status: Option<&'a TunnelEndpointStatus>,
    /// The state of the tunnel, as reported by the gateway.
    pub connection: Option<&'a Connection>,
    /// Whether it is being deleted.
    pub is_deleted: bool,
}

impl<'a> Endpoint<'a> {
    /// The view of this resource.
    pub fn from_resource(endpoint: &'a TunnelEndpoint) -> Self {
        let (meta, status) = (&endpoint.metadata, endpoint.status.as_ref());
        Self {
            name: meta.name.as_deref().unwrap_or_default(),
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref(),
            spec: &endpoint.spec,
            status,
            connection: status.and_then(|status| status.connection.as_ref()),
            is_deleted: meta.deletion_timestamp.is_some(),
        }
    }

    /// Whether the tunnel is connected.
    pub fn is_connected(&self) -> bool {
        self.connection.is_some_and(|it| it.status == Some(ConnectionStatus::Connected))
    }
}
