//! [`IpamStorage`]: the state of the address service.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::{ByteString, apimachinery::pkg::apis::meta::v1::Time};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    Cidr, ClusterId, NatCidr,
    schema::{cidr, disjoint, is_canonical_ip, is_cluster_id, rule, same_size},
};

/// A part of the state of the address service, which is spread over several objects.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "IpamStorage",
    doc = "IpamStorage holds the state of the address service: the CIDRs of this cluster and of \
           its peers, and the addresses allocated to endpoints. It is spread over several \
           objects. Do not edit it.",
    derive = "PartialEq",
    category = "liqo",
    shortname = "ipam",
    printcolumn(name = "Pods", type_ = "string", json_path = ".spec.podCIDR"),
    printcolumn(name = "Services", type_ = "string", json_path = ".spec.serviceCIDR"),
    printcolumn(name = "External", type_ = "string", json_path = ".spec.externalCIDR"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[x_kube(
    validation = Rule::new(format!(
        "!has(self.podCIDR) || !has(self.serviceCIDR) || {}",
        disjoint("self.podCIDR", "self.serviceCIDR")
    ))
    .message("serviceCIDR must not overlap podCIDR")
    .field_path(".serviceCIDR"),
    validation = Rule::new(format!(
        "!has(self.podCIDR) || !has(self.externalCIDR) || {}",
        disjoint("self.podCIDR", "self.externalCIDR")
    ))
    .message("externalCIDR must not overlap podCIDR")
    .field_path(".externalCIDR"),
    validation = Rule::new(format!(
        "!has(self.serviceCIDR) || !has(self.externalCIDR) || {}",
        disjoint("self.serviceCIDR", "self.externalCIDR")
    ))
    .message("externalCIDR must not overlap serviceCIDR")
    .field_path(".externalCIDR")
)]
#[serde(rename_all = "camelCase")]
pub struct IpamStorageSpec {
    /// Not used.
    #[schemars(schema_with = "prefixes")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prefixes: BTreeMap<String, ByteString>,

    /// CIDRs from which translated CIDRs of other clusters are allocated.
    #[schemars(schema_with = "crate::schema::cidrs")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Cidr>,

    /// CIDRs of each peer, real and translated, by cluster id.
    #[schemars(schema_with = "by_cluster::<Subnets>")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_subnets: BTreeMap<ClusterId, Subnets>,

    /// ExternalCIDR of this cluster: the addresses of endpoints that are not its pods.
    #[serde(rename = "externalCIDR", skip_serializing_if = "Option::is_none")]
    pub external_cidr: Option<Cidr>,

    /// Addresses allocated to endpoints that are not pods of this cluster, by the endpoint's real
    /// address. Each entry has an `ip` of this cluster's ExternalCIDR and `clusterMappings`: by
    /// cluster id, the `owners` of the mapping for the cluster to which the endpoint is reflected.
    #[schemars(schema_with = "unchecked")]
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoint_mappings: BTreeMap<IpAddr, EndpointMapping>,

    /// Freed addresses of the ExternalCIDR in quarantine, not yet available to another endpoint.
    #[schemars(schema_with = "quarantined_addresses")]
    #[serde(rename = "resting", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quarantined_addresses: BTreeMap<IpAddr, QuarantinedAddress>,

    /// Freed translated CIDRs of the peer in quarantine, not yet available to another peer.
    #[schemars(schema_with = "quarantined_cidrs")]
    #[serde(rename = "restingSubnets", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quarantined_cidrs: BTreeMap<Cidr, QuarantinedCidr>,

    /// The process that may write these objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,

    /// Not used.
    #[schemars(schema_with = "by_cluster::<ConfiguredCluster>")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nat_mappings_configured: BTreeMap<ClusterId, ConfiguredCluster>,

    /// PodCIDR of this cluster.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<Cidr>,

    /// ServiceCIDR of this cluster.
    #[serde(rename = "serviceCIDR", skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<Cidr>,
}

/// Real and translated CIDRs of one peer. None: not remapped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(
    validation = Rule::new(format!(
        "!has(self.remotePodCIDR) || {}", same_size("self.remoteNATPodCIDR", "self.remotePodCIDR")
    ))
    .message("remoteNATPodCIDR must be as large as remotePodCIDR, or None")
    .field_path(".remoteNATPodCIDR"),
    validation = Rule::new(format!(
        "!has(self.remoteExternalCIDR) || {}",
        same_size("self.remoteNATExternalCIDR", "self.remoteExternalCIDR")
    ))
    .message("remoteNATExternalCIDR must be as large as remoteExternalCIDR, or None")
    .field_path(".remoteNATExternalCIDR")
)]
pub struct Subnets {
    /// Translated PodCIDR of this cluster in the peer. Unset: not reported by the peer yet.
    #[serde(rename = "localNATPodCIDR", skip_serializing_if = "Option::is_none")]
    pub local_nat_pod_cidr: Option<NatCidr>,

    /// Translated ExternalCIDR of this cluster in the peer. Unset: not reported by the peer yet.
    #[serde(rename = "localNATExternalCIDR", skip_serializing_if = "Option::is_none")]
    pub local_nat_external_cidr: Option<NatCidr>,

    /// Real PodCIDR of the peer.
    #[serde(rename = "remotePodCIDR", skip_serializing_if = "Option::is_none")]
    pub remote_pod_cidr: Option<Cidr>,

    /// Real ExternalCIDR of the peer.
    #[serde(rename = "remoteExternalCIDR", skip_serializing_if = "Option::is_none")]
    pub remote_external_cidr: Option<Cidr>,

    /// Translated PodCIDR of the peer in this cluster.
    #[serde(rename = "remoteNATPodCIDR", default)]
    pub remote_nat_pod_cidr: NatCidr,

    /// Translated ExternalCIDR of the peer in this cluster.
    #[serde(rename = "remoteNATExternalCIDR", default)]
    pub remote_nat_external_cidr: NatCidr,
}

/// The address allocated to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointMapping {
    /// The allocated address, of this cluster's ExternalCIDR.
    pub ip: IpAddr,

    /// The clusters to which the endpoint is reflected, by cluster id.
    pub cluster_mappings: BTreeMap<ClusterId, ClusterMapping>,
}

/// A freed address in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedAddress {
    /// The last endpoint with this address, which it gets back if it is mapped again.
    pub ip: IpAddr,

    /// End of the quarantine: until then packets to the last endpoint may be in flight.
    pub until: Time,
}

/// A freed translated CIDR in quarantine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedCidr {
    /// The last CIDR of the peer that was translated to it. It gets the translated CIDR back if the
    /// peer uses it again.
    pub of: Cidr,

    /// End of the quarantine: until then packets to the peer may be in flight.
    pub until: Time,
}

/// The current writer and the objects of its pending writes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Writer {
    /// Id of the process.
    pub holder: String,

    /// How often it has fenced off the previous writer.
    #[serde(default)]
    pub claims: u32,

    /// Names of the objects with pending writes, recorded before the writes are sent. The next
    /// writer makes sure that pending writes of this one fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
}

/// The mapping of an endpoint for one cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterMapping {
    /// The clients of the address service that own the mapping. Empty: a client without a name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub owners: BTreeSet<String>,
}

/// Has no fields: only its key matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfiguredCluster {}

impl Subnets {
    /// Translated PodCIDR of the peer in this cluster, once its real one is known.
    pub fn translated_pod_cidr(&self) -> Option<Cidr> {
        Some(self.remote_nat_pod_cidr.or(self.remote_pod_cidr?))
    }

    /// Translated ExternalCIDR of the peer in this cluster, once its real one is known.
    pub fn translated_external_cidr(&self) -> Option<Cidr> {
        Some(self.remote_nat_external_cidr.or(self.remote_external_cidr?))
    }
}

fn by_cluster<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": generator.subschema_for::<T>(),
        "maxProperties": 256,
        "x-kubernetes-map-type": "atomic",
        "x-kubernetes-validations": [rule(
            &format!("self.all(id, {})", is_cluster_id("id")),
            "every key must be a cluster id: lower-case letters, digits and '-'",
        )],
    })
}

fn prefixes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string", "format": "byte" },
        "x-kubernetes-map-type": "atomic",
    })
}

fn quarantined_addresses(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "required": ["ip", "until"],
            "properties": {
                "ip": {
                    "description": "The last endpoint with this address, which it gets back if \
                                    it is mapped again.",
                    "type": "string",
                    "maxLength": 45,
                },
                "until": {
                    "description": "End of the quarantine: until then packets to the last \
                                    endpoint may be in flight.",
                    "type": "string",
                    "format": "date-time",
                },
            },
        },
        "maxProperties": 1024,
        "x-kubernetes-map-type": "atomic",
        "x-kubernetes-validations": [rule(
            &format!("self.all(given, {} && isIP(self[given].ip))", is_canonical_ip("given")),
            "every key must be an address in its usual form, such as 10.0.0.5 or 2001:db8::5, and \
             every ip an address",
        )],
    })
}

fn quarantined_cidrs(generator: &mut SchemaGenerator) -> Schema {
    let mut of = cidr(generator);
    of.insert(
        "description".to_owned(),
        "The last CIDR of the peer that was translated to it. It gets the translated CIDR back if \
         the peer uses it again."
            .into(),
    );
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "required": ["of", "until"],
            "properties": {
                "of": of,
                "until": {
                    "description": "End of the quarantine: until then packets to the peer may \
                                    be in flight.",
                    "type": "string",
                    "format": "date-time",
                },
            },
        },
        "maxProperties": 64,
        "x-kubernetes-map-type": "atomic",
        "x-kubernetes-validations": [rule(
            "self.all(name, isCIDR(name) && cidr(name) == cidr(name).masked())",
            "every key must be a network, such as 10.0.0.0/16 or fd00::/48",
        )],
    })
}

/// Not validated by the API server: that would double the cost of every new mapping, and only the
/// address service writes it.
fn unchecked(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-map-type": "atomic",
    })
}

/// Skips invalid entries, so that one of them does not lose the others.
fn readable<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<IpAddr, EndpointMapping>, D::Error> {
    let all = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
    let read = |(ip, mapping): (String, serde_json::Value)| {
        Some((ip.parse().ok()?, serde_json::from_value(mapping).ok()?))
    };
    Ok(all.into_iter().filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cidr_that_is_not_remapped_is_its_own_translation() {
        let mut subnets = Subnets::default();
        assert_eq!(subnets.translated_pod_cidr(), None);
        subnets.remote_pod_cidr = Some("10.0.0.0/16".parse().unwrap());
        assert_eq!(subnets.translated_pod_cidr(), subnets.remote_pod_cidr);
        subnets.remote_nat_pod_cidr = "10.9.0.0/16".parse().unwrap();
        let translated = subnets.translated_pod_cidr().unwrap();
        assert_eq!(translated.to_string(), "10.9.0.0/16");
    }

    #[test]
    fn a_mapping_in_the_documented_form_is_parsed() {
        let spec: IpamStorageSpec = serde_json::from_str(
            r#"{"endpointMappings":
                {"10.1.0.5": {"ip": "192.168.0.45", "clusterMappings": {"cluster-1": {}}}}}"#,
        )
        .unwrap();
        let from: IpAddr = "10.1.0.5".parse().unwrap();
        let mapping = &spec.endpoint_mappings[&from];
        assert_eq!(mapping.ip.to_string(), "192.168.0.45");
        assert_eq!(mapping.cluster_mappings.len(), 1);
    }

    #[test]
    fn invalid_mappings_are_skipped() {
        let spec: IpamStorageSpec = serde_json::from_str(
            r#"{"endpointMappings": {
                "10.1.0.5": {"ip": "192.168.0.45", "clusterMappings": {"cluster-1": {}}},
                "ten": {"ip": "192.168.0.46", "clusterMappings": {"cluster-1": {}}},
                "10.1.0.6": {"ip": 7},
                "10.1.0.7": {"ip": "192.168.0.47", "clusterMappings": {"Not An Id": {}}}
            }}"#,
        )
        .unwrap();
        let read: Vec<_> = spec.endpoint_mappings.keys().map(IpAddr::to_string).collect();
        assert_eq!(read, ["10.1.0.5"]);
    }
}
