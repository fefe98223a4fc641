//! [`TunnelEndpoint`]: the connection to another cluster's network, merged from both
//! NetworkConfigs.

use std::{collections::BTreeMap, net::IpAddr};

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{BackendType, backend};
use crate::{
    Cidr, ClusterId, NatCidr,
    schema::{disjoint, same_size},
};

/// The remote end of the tunnel.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "TunnelEndpoint",
    namespaced,
    doc = "TunnelEndpoint is the network connection to another cluster: the real and translated \
           CIDRs of both sides, and the tunnel.",
    status = "TunnelEndpointStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "te",
    printcolumn(name = "Cluster ID", type_ = "string", json_path = ".spec.clusterID"),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".spec.endpointIP"),
    printcolumn(name = "Pods", type_ = "string", json_path = ".spec.podCIDR"),
    printcolumn(
        name = "Pods NAT",
        type_ = "string",
        json_path = ".status.remoteNATPodCIDR",
        description = "Translated PodCIDR of the other cluster in this one"
    ),
    printcolumn(
        name = "Connection",
        type_ = "string",
        json_path = ".status.connection.status"
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.connection.statusMessage",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new(format!(
        "!has(self.status) || !has(self.status.remoteNATPodCIDR) || {}",
        same_size("self.status.remoteNATPodCIDR", "self.spec.podCIDR")
    ))
    .message("status.remoteNATPodCIDR must be as large as spec.podCIDR, or None")
    .field_path(".status.remoteNATPodCIDR"),
    validation = Rule::new(format!(
        "!has(self.status) || !has(self.status.remoteNATExternalCIDR) || {}",
        same_size("self.status.remoteNATExternalCIDR", "self.spec.externalCIDR")
    ))
    .message("status.remoteNATExternalCIDR must be as large as spec.externalCIDR, or None")
    .field_path(".status.remoteNATExternalCIDR")
)]
#[x_kube(validation = Rule::new(disjoint("self.podCIDR", "self.externalCIDR"))
    .message("externalCIDR must not overlap podCIDR")
    .field_path(".externalCIDR"))]
#[serde(rename_all = "camelCase")]
pub struct TunnelEndpointSpec {
    /// Id of the other cluster.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "clusterID is immutable: another cluster needs another TunnelEndpoint"
    ))]
    pub cluster_id: ClusterId,

    /// Real PodCIDR of the other cluster.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Cidr,

    /// Real ExternalCIDR of the other cluster.
    #[serde(rename = "externalCIDR")]
    pub external_cidr: Cidr,

    /// Public IP address of the other cluster's gateway.
    #[serde(rename = "endpointIP")]
    #[schemars(schema_with = "crate::schema::ip")]
    pub endpoint_ip: IpAddr,

    /// Tunnel technology.
    pub backend_type: BackendType,

    /// Tunnel parameters of the other cluster. With wireguard: publicKey and port.
    #[serde(rename = "backend_config")]
    #[schemars(schema_with = "backend::config")]
    pub backend_config: BTreeMap<String, String>,
}

/// The local end and the state of the tunnel. All fields are optional, since several components
/// each apply their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new(format!(
        "!has(self.localPodCIDR) || !has(self.localNATPodCIDR) || {}",
        same_size("self.localNATPodCIDR", "self.localPodCIDR")
    ))
    .message("localNATPodCIDR must be as large as localPodCIDR, or None")
    .field_path(".localNATPodCIDR"),
    validation = Rule::new(format!(
        "!has(self.localExternalCIDR) || !has(self.localNATExternalCIDR) || {}",
        same_size("self.localNATExternalCIDR", "self.localExternalCIDR")
    ))
    .message("localNATExternalCIDR must be as large as localExternalCIDR, or None")
    .field_path(".localNATExternalCIDR")
)]
#[serde(rename_all = "camelCase")]
pub struct TunnelEndpointStatus {
    /// Phase of the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,

    /// Real PodCIDR of this cluster.
    #[serde(rename = "localPodCIDR", skip_serializing_if = "Option::is_none")]
    pub local_pod_cidr: Option<Cidr>,

    /// Translated PodCIDR of this cluster in the other one; None if it is not remapped.
    #[schemars(default = "not_remapped")]
    #[serde(rename = "localNATPodCIDR", skip_serializing_if = "Option::is_none")]
    pub local_nat_pod_cidr: Option<NatCidr>,

    /// Translated PodCIDR of the other cluster in this one; None if it is not remapped.
    #[schemars(default = "not_remapped")]
    #[serde(rename = "remoteNATPodCIDR", skip_serializing_if = "Option::is_none")]
    pub remote_nat_pod_cidr: Option<NatCidr>,

    /// Real ExternalCIDR of this cluster.
    #[serde(rename = "localExternalCIDR", skip_serializing_if = "Option::is_none")]
    pub local_external_cidr: Option<Cidr>,

    /// Translated ExternalCIDR of this cluster in the other one; None if it is not remapped.
    #[schemars(default = "not_remapped")]
    #[serde(rename = "localNATExternalCIDR", skip_serializing_if = "Option::is_none")]
    pub local_nat_external_cidr: Option<NatCidr>,

    /// Translated ExternalCIDR of the other cluster in this one; None if it is not remapped.
    #[schemars(default = "not_remapped")]
    #[serde(rename = "remoteNATExternalCIDR", skip_serializing_if = "Option::is_none")]
    pub remote_nat_external_cidr: Option<NatCidr>,

    /// IP address of the other cluster's gateway that the tunnel uses.
    #[schemars(schema_with = "crate::schema::ip")]
    #[serde(rename = "remoteTunnelPublicIP", default, skip_serializing_if = "Option::is_none")]
    pub remote_tunnel_public_ip: Option<IpAddr>,

    /// Public IP address of this cluster's gateway.
    #[schemars(schema_with = "crate::schema::ip")]
    #[serde(rename = "localTunnelPublicIP", default, skip_serializing_if = "Option::is_none")]
    pub local_tunnel_public_ip: Option<IpAddr>,

    /// Index of the tunnel interface in the gateway.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    #[serde(rename = "tunnelIFaceIndex", skip_serializing_if = "Option::is_none")]
    pub tunnel_iface_index: Option<u32>,

    /// Name of the tunnel interface in the gateway.
    #[schemars(length(min = 1, max = 15))]
    #[serde(rename = "tunnelIFaceName", skip_serializing_if = "Option::is_none")]
    pub tunnel_iface_name: Option<String>,

    /// Index of the veth interface from the gateway's node to the gateway.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    #[serde(rename = "vethIFaceIndex", skip_serializing_if = "Option::is_none")]
    pub veth_iface_index: Option<u32>,

    /// Name of the veth interface from the gateway's node to the gateway.
    #[schemars(length(min = 1, max = 15))]
    #[serde(rename = "vethIFaceName", skip_serializing_if = "Option::is_none")]
    pub veth_iface_name: Option<String>,

    /// IP address of the node of the active gateway.
    #[schemars(schema_with = "crate::schema::ip")]
    #[serde(rename = "gatewayIP", default, skip_serializing_if = "Option::is_none")]
    pub gateway_ip: Option<IpAddr>,

    /// State of the tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection: Option<Connection>,
}

/// State of a tunnel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// connected, connecting or error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ConnectionStatus>,

    /// Human-readable details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_message: Option<String>,

    /// Current tunnel parameters.
    #[schemars(schema_with = "backend::config")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peer_configuration: BTreeMap<String, String>,
}

/// State of a tunnel: connected, connecting or error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ConnectionStatus {
    /// Packets pass in both directions.
    Connected,
    /// No packet has passed yet.
    Connecting,
    /// Packets do not pass; the message has the cause.
    Error,
}

fn not_remapped() -> Option<NatCidr> {
    Some(NatCidr::None)
}
