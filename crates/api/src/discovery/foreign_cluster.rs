//! [`ForeignCluster`]: another cluster, and the state of the peering with it.

use std::{fmt, str::FromStr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{ClusterIdentity, Fingerprint, Reference};

/// Address and desired peering of the other cluster.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "discovery.liqo.io",
    version = "v1alpha1",
    kind = "ForeignCluster",
    doc = "ForeignCluster is another cluster: the URL of its auth service, whether to peer with \
           it, and the state of the peering.",
    status = "ForeignClusterStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "fc",
    selectable = ".spec.clusterIdentity.clusterID",
    printcolumn(
        name = "Type",
        type_ = "string",
        json_path = ".metadata.labels.discovery\\.liqo\\.io/discovery-type",
        description = "How the cluster was discovered"
    ),
    printcolumn(
        name = "Outgoing",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"OutgoingPeering\")].status",
        description = "Whether pods of this cluster can run there"
    ),
    printcolumn(
        name = "Incoming",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"IncomingPeering\")].status",
        description = "Whether pods of that cluster can run in this one"
    ),
    printcolumn(
        name = "Network",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"TunnelEndpoint\")].status",
        description = "Whether the tunnel is up"
    ),
    printcolumn(
        name = "Auth",
        type_ = "string",
        json_path = ".status.authStatus",
        description = "Whether that cluster has issued an identity to this one"
    ),
    printcolumn(
        name = "API Server",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"APIServer\")].status",
        description = "Whether that cluster's API server answers",
        priority = 1
    ),
    printcolumn(
        name = "Cluster ID",
        type_ = "string",
        json_path = ".spec.clusterIdentity.clusterID",
        priority = 1
    ),
    printcolumn(name = "Auth URL", type_ = "string", json_path = ".spec.authUrl", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ForeignClusterSpec {
    /// URL of the other cluster's auth service. The only required field.
    #[schemars(schema_with = "crate::schema::auth_url")]
    pub auth_url: String,

    /// Whether to peer: true starts an outgoing peering, false ends it.
    #[serde(default)]
    pub join: bool,

    /// Id and name of the other cluster. Set from the response of its auth service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_identity: Option<ClusterIdentity>,

    /// Lifetime of an entry from LAN or WAN discovery, in seconds. Renewed by every announcement.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<u32>,

    /// SHA-256 fingerprint of the certificate that the auth service must present: 64 hexadecimal
    /// digits, with or without colons. Unset: pinned on first use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
}

/// State of the peering. All fields are optional, since several controllers each apply their own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ForeignClusterStatus {
    /// Whether the other cluster has issued an identity to this one.
    #[schemars(default = "pending")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_status: Option<AuthStatus>,

    /// The tenant namespaces, which hold the objects of this peering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_namespace: Option<TenantNamespace>,

    /// The outgoing peering: pods of this cluster run in the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outgoing: Option<Peering>,

    /// The incoming peering: pods of the other cluster run in this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub incoming: Option<Peering>,

    /// The objects of the network connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,

    /// Authenticated, OutgoingPeering, IncomingPeering, TunnelEndpoint, APIServer.
    #[schemars(schema_with = "crate::schema::conditions")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// Whether the other cluster has issued an identity to this one: Pending (not requested yet),
/// Accepted, EmptyRefused (a token is required) or Refused (the token was rejected).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuthStatus {
    /// Not requested yet.
    Pending,
    /// An identity was issued.
    Accepted,
    /// Requested without a token, and refused: a token is required.
    EmptyRefused,
    /// Requested with a token, and refused.
    Refused,
}

/// The tenant namespaces of one peering, one on each side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TenantNamespace {
    /// The namespace in this cluster.
    #[schemars(schema_with = "crate::schema::namespace")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local: Option<String>,

    /// The namespace in the other cluster.
    #[schemars(schema_with = "crate::schema::namespace")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
}

/// One direction of a peering.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Peering {
    /// Whether the peering is established.
    #[serde(default)]
    pub peered: bool,

    /// The ResourceRequest of the peering.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peering_request: Option<Reference>,
}

/// The objects of the network connection of two clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// The NetworkConfig of this cluster, sent to the other one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_network_config: Option<Related>,

    /// The NetworkConfig of the other cluster, sent to this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_network_config: Option<Related>,

    /// The TunnelEndpoint, merged from both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel_endpoint: Option<Related>,
}

/// Existence and reference of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Related {
    /// Whether the object exists.
    #[serde(default)]
    pub available: bool,

    /// Name and namespace of the object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
}

/// Condition types of a ForeignCluster, and the reasons that other code depends on.
pub mod condition {
    /// The other cluster has issued an identity to this one.
    pub const AUTHENTICATED: &str = "Authenticated";
    /// Reason of [`AUTHENTICATED`]: the other cluster has rejected the token.
    pub const WRONG_TOKEN: &str = "WrongToken";
    /// Pods of this cluster can run in the other one.
    pub const OUTGOING_PEERING: &str = "OutgoingPeering";
    /// Pods of the other cluster can run in this one.
    pub const INCOMING_PEERING: &str = "IncomingPeering";
    /// The tunnel is up.
    pub const TUNNEL_ENDPOINT: &str = "TunnelEndpoint";
    /// The other cluster's API server answers.
    pub const API_SERVER: &str = "APIServer";
}

/// How a cluster was discovered: the value of the label
/// [`DISCOVERY_TYPE_LABEL`](crate::names::DISCOVERY_TYPE_LABEL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryType {
    /// By mDNS.
    Lan,
    /// By a SearchDomain.
    Wan,
    /// Created by a user.
    Manual,
    /// By its ResourceRequest. The weakest type: any other replaces it.
    IncomingPeering,
}

/// An invalid [`DiscoveryType`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a discovery type: LAN, WAN, Manual or IncomingPeering")]
pub struct UnknownDiscoveryType(String);

impl DiscoveryType {
    /// All types.
    pub const ALL: [Self; 4] = [Self::Lan, Self::Wan, Self::Manual, Self::IncomingPeering];

    /// The label's value.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lan => "LAN",
            Self::Wan => "WAN",
            Self::Manual => "Manual",
            Self::IncomingPeering => "IncomingPeering",
        }
    }
}

impl fmt::Display for DiscoveryType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for DiscoveryType {
    type Err = UnknownDiscoveryType;

    fn from_str(text: &str) -> Result<Self, UnknownDiscoveryType> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| UnknownDiscoveryType(text.to_owned()))
    }
}

fn pending() -> Option<AuthStatus> {
    Some(AuthStatus::Pending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_types_display_and_parse() {
        for kind in DiscoveryType::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "lan".parse::<DiscoveryType>().unwrap_err();
        assert!(error.to_string().contains("LAN, WAN, Manual"));
    }

    #[test]
    fn only_the_auth_url_is_required() {
        let spec: ForeignClusterSpec =
            serde_json::from_str(r#"{"authUrl": "https://auth.example.com"}"#).unwrap();
        assert!(!spec.join);
        assert_eq!(spec.cluster_identity, None);
    }
}
