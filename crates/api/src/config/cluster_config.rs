//! [`ClusterConfig`]: what can be set while everything runs.

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::Cidr;

/// The settings, by subject. Whatever is left out has its default.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "config.liqo.io",
    version = "v1alpha1",
    kind = "ClusterConfig",
    doc = "ClusterConfig holds the settings of this cluster. There is one, called cluster; a \
           change counts at once.",
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
    /// How other clusters are found, and find this one.
    #[serde(default)]
    pub discovery: DiscoveryConfig,

    /// Who gets an identity.
    #[serde(default)]
    pub auth: AuthConfig,

    /// What is offered to other clusters.
    #[serde(default)]
    pub sharing: SharingConfig,

    /// Which addresses are used.
    #[serde(default)]
    pub network: NetworkSettings,
}

/// How other clusters are found, and find this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DiscoveryConfig {
    /// Whether to look for clusters in the local network, by mDNS.
    pub enabled: bool,

    /// Whether to announce this cluster in the local network, by mDNS.
    pub advertise: bool,

    /// Name of the group of clusters in the local network that find one another. Clusters in
    /// different groups don't. Unset is a group too.
    #[schemars(schema_with = "group")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,

    /// Names of the node's interfaces on which to look for clusters and to announce this one.
    /// Unset: all that lead to a local network.
    #[schemars(schema_with = "crate::schema::interfaces")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<String>,

    /// Seconds for which an announcement of this cluster holds.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub ttl_seconds: u32,

    /// Seconds between two searches of a SearchDomain.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub search_period_seconds: u32,

    /// Whether to peer with each cluster that is discovered.
    pub autojoin: bool,
}

/// Who gets an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthConfig {
    /// Whether a cluster gets an identity without a token.
    pub empty_token: bool,

    /// Name of the Secret (of type kubernetes.io/tls, in the namespace liqo) with the auth
    /// service's certificate. Unset: it signs its own.
    #[schemars(schema_with = "crate::schema::object_name")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
}

/// What is offered to other clusters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SharingConfig {
    /// Whether requests are accepted at once. Otherwise they wait for somebody.
    pub auto_accept: bool,

    /// How much of what is free is offered, in percent.
    #[schemars(range(max = 100))]
    pub share_percentage: u32,

    /// Whether several clusters are each offered the whole share. Otherwise what one is offered
    /// is not free for another.
    pub overcommit: bool,
}

/// Which addresses are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NetworkSettings {
    /// Networks that must never be used to remap another cluster's addresses.
    #[schemars(schema_with = "crate::schema::cidrs")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reserved_subnets: Vec<Cidr>,

    /// Networks to take from beside the private ones, when other clusters' addresses are
    /// remapped.
    #[schemars(schema_with = "crate::schema::cidrs")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_pools: Vec<Cidr>,

    /// Size of the network by which this cluster gives addresses to what is not one of its pods:
    /// 16 unless set. A smaller network, so a larger number, is for many peers. In an IPv6 cluster
    /// it is 96 more, for as many addresses. While there are peers it stays as it is.
    #[schemars(range(min = 8, max = 29))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_prefix_length: Option<u8>,

    /// Where other clusters reach this one's gateway: an address or a DNS name, with or without
    /// a port. Unset: it is found out.
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
    fn an_empty_config_has_the_defaults() {
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
