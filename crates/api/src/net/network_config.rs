//! [`NetworkConfig`]: the CIDRs and gateway of a cluster, sent to a peer, which answers with the
//! translated CIDRs.

use std::{collections::BTreeMap, net::IpAddr};

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{BackendType, backend};
use crate::{
    Cidr, ClusterId, NatCidr,
    schema::{disjoint, same_size},
};

/// CIDRs and gateway of the sending cluster.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "NetworkConfig",
    namespaced,
    doc = "NetworkConfig holds the CIDRs and the gateway of a cluster, for one peer. In its \
           status the peer records the translated CIDRs.",
    status = "NetworkConfigStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "nc",
    printcolumn(
        name = "Cluster ID",
        type_ = "string",
        json_path = ".spec.clusterID",
        description = "The receiving cluster"
    ),
    printcolumn(name = "Pods", type_ = "string", json_path = ".spec.podCIDR"),
    printcolumn(
        name = "Pods NAT",
        type_ = "string",
        json_path = ".status.podCIDRNAT",
        description = "Translated PodCIDR in the receiving cluster"
    ),
    printcolumn(name = "External", type_ = "string", json_path = ".spec.externalCIDR"),
    printcolumn(
        name = "External NAT",
        type_ = "string",
        json_path = ".status.externalCIDRNAT",
        description = "Translated ExternalCIDR in the receiving cluster"
    ),
    printcolumn(name = "Endpoint", type_ = "string", json_path = ".spec.endpointIP"),
    printcolumn(name = "Processed", type_ = "boolean", json_path = ".status.processed"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new(format!(
        "!has(self.status) || !has(self.status.podCIDRNAT) || {}",
        same_size("self.status.podCIDRNAT", "self.spec.podCIDR")
    ))
    .message("status.podCIDRNAT must be as large as spec.podCIDR, or None")
    .field_path(".status.podCIDRNAT"),
    validation = Rule::new(format!(
        "!has(self.status) || !has(self.status.externalCIDRNAT) || {}",
        same_size("self.status.externalCIDRNAT", "self.spec.externalCIDR")
    ))
    .message("status.externalCIDRNAT must be as large as spec.externalCIDR, or None")
    .field_path(".status.externalCIDRNAT")
)]
#[x_kube(validation = Rule::new(disjoint("self.podCIDR", "self.externalCIDR"))
    .message("externalCIDR must not overlap podCIDR")
    .field_path(".externalCIDR"))]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigSpec {
    /// Id of the receiving cluster.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "clusterID is immutable: another cluster needs another NetworkConfig"
    ))]
    pub cluster_id: ClusterId,

    /// PodCIDR of the sender.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Cidr,

    /// ExternalCIDR of the sender: the addresses of endpoints that are not its pods.
    #[serde(rename = "externalCIDR")]
    pub external_cidr: Cidr,

    /// Public IP address of the sender's gateway.
    #[serde(rename = "endpointIP")]
    #[schemars(schema_with = "crate::schema::ip")]
    pub endpoint_ip: IpAddr,

    /// Tunnel technology.
    pub backend_type: BackendType,

    /// Tunnel parameters. With wireguard: publicKey and port.
    #[serde(rename = "backend_config")]
    #[schemars(schema_with = "backend::config")]
    pub backend_config: BTreeMap<String, String>,
}

/// The answer of the receiving cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new(
    "!self.processed || (has(self.podCIDRNAT) && has(self.externalCIDRNAT))"
).message("processed needs podCIDRNAT and externalCIDRNAT, if only None").field_path(".processed"))]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigStatus {
    /// Whether the receiving cluster has chosen the translated CIDRs.
    #[serde(default)]
    pub processed: bool,

    /// Translated PodCIDR in the receiving cluster; None if it is not remapped.
    #[serde(rename = "podCIDRNAT", skip_serializing_if = "Option::is_none")]
    pub pod_cidr_nat: Option<NatCidr>,

    /// Translated ExternalCIDR in the receiving cluster; None if it is not remapped.
    #[serde(rename = "externalCIDRNAT", skip_serializing_if = "Option::is_none")]
    pub external_cidr_nat: Option<NatCidr>,

    /// The PodCIDR that this status refers to. If spec.podCIDR has changed since, the status is
    /// stale.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<Cidr>,

    /// The ExternalCIDR that this status refers to.
    #[serde(rename = "externalCIDR", skip_serializing_if = "Option::is_none")]
    pub external_cidr: Option<Cidr>,
}
