//! [`NetworkConfig`]: one cluster tells another about its network, and hears what it is called
//! there.

use std::{collections::BTreeMap, net::IpAddr};

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::{BackendType, backend};
use crate::{
    Cidr, ClusterId, NatCidr,
    schema::{disjoint, same_size},
};

/// The network of the cluster that sends it.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "NetworkConfig",
    namespaced,
    doc = "NetworkConfig is what a cluster tells another about its network. Its status says \
           whether the other one had to remap it.",
    status = "NetworkConfigStatus",
    derive = "PartialEq",
    category = "liqo",
    shortname = "nc",
    printcolumn(
        name = "Cluster ID",
        type_ = "string",
        json_path = ".spec.clusterID",
        description = "The cluster that it is for"
    ),
    printcolumn(name = "Pods", type_ = "string", json_path = ".spec.podCIDR"),
    printcolumn(
        name = "Pods NAT",
        type_ = "string",
        json_path = ".status.podCIDRNAT",
        description = "What the pods' network is called there"
    ),
    printcolumn(name = "External", type_ = "string", json_path = ".spec.externalCIDR"),
    printcolumn(
        name = "External NAT",
        type_ = "string",
        json_path = ".status.externalCIDRNAT",
        description = "What the external network is called there"
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
    /// The cluster that it is for.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "clusterID is immutable: another cluster needs another NetworkConfig"
    ))]
    pub cluster_id: ClusterId,

    /// Network of the sender's pods.
    #[serde(rename = "podCIDR")]
    pub pod_cidr: Cidr,

    /// Network by which the sender gives addresses to what is not one of its pods.
    #[serde(rename = "externalCIDR")]
    pub external_cidr: Cidr,

    /// Public address of the sender's gateway.
    #[serde(rename = "endpointIP")]
    #[schemars(schema_with = "crate::schema::ip")]
    pub endpoint_ip: IpAddr,

    /// Technology of the tunnel.
    pub backend_type: BackendType,

    /// Parameters of the tunnel. With wireguard: publicKey and port.
    #[serde(rename = "backend_config")]
    #[schemars(schema_with = "backend::config")]
    pub backend_config: BTreeMap<String, String>,
}

/// What the cluster that got it made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new(
    "!self.processed || (has(self.podCIDRNAT) && has(self.externalCIDRNAT))"
).message("processed needs podCIDRNAT and externalCIDRNAT, if only None").field_path(".processed"))]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfigStatus {
    /// Whether that cluster has chosen its names for these networks.
    #[serde(default)]
    pub processed: bool,

    /// What the pods' network is called there: None, or the network it is remapped to.
    #[serde(rename = "podCIDRNAT", skip_serializing_if = "Option::is_none")]
    pub pod_cidr_nat: Option<NatCidr>,

    /// What the external network is called there: None, or the network it is remapped to.
    #[serde(rename = "externalCIDRNAT", skip_serializing_if = "Option::is_none")]
    pub external_cidr_nat: Option<NatCidr>,

    /// The pods' network that this was said of. Where it is another one by now, this is no answer.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<Cidr>,

    /// The external network that this was said of.
    #[serde(rename = "externalCIDR", skip_serializing_if = "Option::is_none")]
    pub external_cidr: Option<Cidr>,
}
