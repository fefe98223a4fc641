//! [`ClusterConfig`]: settings that can change at run time.

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::Cidr;

/// The settings, by subject. Omitted fields have their defaults.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "config.liqo.io",
    version = "v1alpha1",
    kind = "ClusterConfig",
    doc = "ClusterConfig holds the settings of this cluster. There is one, named cluster. Changes \
           take effect immediately.",
    derive = "PartialEq",
    category = "liqo",
    printcolumn(
        name = "LAN discovery",
        type_ = "boolean",
        json_path = ".spec.discovery.enabled"
    ),
    printcolumn(
        name = "Autojoin",
        type_ = "boolean",
        json_path = ".spec.discovery.autojoin"
    ),
    printcolumn(
        name = "Autoaccept",
        type_ = "boolean",
        json_path = ".spec.sharing.autoAccept"
    ),
    printcolumn(
        name = "Share %",
        type_ = "integer",
        json_path = ".spec.sharing.sharePercentage"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("self.metadata.name == 'cluster'").message(
        "metadata.name must be cluster: there is one ClusterConfig"
    )
)]
pub struct ClusterConfigSpec {
    /// Discovery of other clusters, and announcement of this one.
    #[serde(default)]
    pub discovery: DiscoveryConfig,

    /// Conditions for issuing identities to other clusters.
    #[serde(default)]
    pub auth: AuthConfig,

    /// Resources offered to other clusters.
    #[serde(default)]
    pub sharing: SharingConfig,

    /// CIDRs and gateway address.
    #[serde(default)]
    pub network: NetworkSettings,
}

/// Discovery of other clusters, and announcement of this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveryConfig {
    /// Whether to discover clusters in the local network, by mDNS.
    pub enabled: bool,

    /// Whether to announce this cluster in the local network, by mDNS.
    pub advertise: bool,

    /// Discovery group. Only clusters of the same group discover each other in the local network.
    /// Clusters without a group form a group too.
    #[schemars(schema_with = "group")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,

    /// Interfaces of the node for mDNS. Unset: all interfaces in a local network.
    #[schemars(schema_with = "crate::schema::interfaces")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,

    /// Lifetime (TTL) of the announcement of this cluster, in seconds.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub ttl_seconds: u32,

    /// Interval between two queries of a SearchDomain, in seconds.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub search_period_seconds: u32,

    /// Whether to peer with every discovered cluster automatically.
    pub autojoin: bool,
}

/// Conditions for issuing identities to other clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthConfig {
    /// Whether other clusters get an identity without a token.
    pub empty_token: bool,

    /// Name of a Secret (of type kubernetes.io/tls, in namespace liqo) with the certificate of the
    /// auth service. Unset: a self-signed certificate.
    #[schemars(schema_with = "crate::schema::object_name")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

/// Resources offered to other clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SharingConfig {
    /// Whether ResourceRequests are accepted automatically. Otherwise an administrator sets
    /// status.state of each to Accepted.
    pub auto_accept: bool,

    /// Offered share of the free resources, in percent.
    #[schemars(range(max = 100))]
    pub share_percentage: u32,

    /// Whether each cluster is offered the whole share. Otherwise resources offered to one cluster
    /// are not offered to another.
    pub overcommit: bool,
}

/// CIDRs and gateway address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSettings {
    /// CIDRs that are never used as translated CIDRs of other clusters.
    #[schemars(schema_with = "crate::schema::cidrs")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_subnets: Vec<Cidr>,

    /// Additional CIDRs from which translated CIDRs of other clusters are allocated, besides the
    /// private ranges.
    #[schemars(schema_with = "crate::schema::cidrs")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_pools: Vec<Cidr>,

    /// Prefix length of the ExternalCIDR, by default 16. A longer prefix leaves room for more
    /// peers. In an IPv6 cluster 96 is added, which gives the same number of addresses. Changes
    /// take effect only while there are no peers.
    #[schemars(range(min = 8, max = 29))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_prefix_length: Option<u8>,

    /// Address or DNS name at which other clusters reach the gateway, with or without a port.
    /// Unset: it is detected.
    #[schemars(schema_with = "crate::schema::endpoint")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
}

impl Default for DiscoveryConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            advertise: true,
            group: None,
            interfaces: Vec::new(),
            ttl_seconds: 90,
            search_period_seconds: 30,
            autojoin: false,
        }
    }
}

impl Default for SharingConfig {
    fn default() -> Self {
        Self { auto_accept: true, share_percentage: 30, overcommit: false }
    }
}

fn group(_: &mut SchemaGenerator) -> Schema {
    crate::schema::label("the name of a group", 63)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_config_has_all_defaults() {
        let spec: ClusterConfigSpec = serde_json::from_str("{}").unwrap();
        assert_eq!(spec, ClusterConfigSpec::default());
        assert!(spec.sharing.auto_accept);
        assert!(!spec.auth.empty_token);
    }

    #[test]
    fn one_setting_leaves_the_others_at_their_defaults() {
        let spec: ClusterConfigSpec =
            serde_json::from_str(r#"{"sharing": {"sharePercentage": 80}}"#).unwrap();
        assert_eq!(spec.sharing.share_percentage, 80);
        assert!(spec.sharing.auto_accept);
    }
}
