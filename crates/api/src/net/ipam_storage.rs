//! [`IpamStorage`]: what the address service remembers.

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

/// A part of what the address service remembers: it is spread over several objects.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "IpamStorage",
    doc = "IpamStorage is what the address service remembers: this cluster's networks, those of \
           its peers, and the addresses given to endpoints. It is spread over several objects. \
           Not for editing by hand.",
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

    /// Networks from which other clusters' networks are remapped.
    #[schemars(schema_with = "crate::schema::cidrs")]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<Cidr>,

    /// Networks of and for a peer, by its cluster id.
    #[schemars(schema_with = "by_cluster::<Subnets>")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub cluster_subnets: BTreeMap<ClusterId, Subnets>,

    /// Network by which this cluster gives addresses to what is not one of its pods.
    #[serde(rename = "externalCIDR", skip_serializing_if = "Option::is_none")]
    pub external_cidr: Option<Cidr>,

    /// Addresses given to endpoints that are not pods of this cluster, by the endpoint's own
    /// address. Each is an `ip` of this cluster's external network and, as keys of
    /// `clusterMappings`, the ids of the clusters to which the endpoint is reflected, each with the
    /// `owners` that asked for it.
    #[schemars(schema_with = "unchecked")]
    #[serde(default, deserialize_with = "readable", skip_serializing_if = "BTreeMap::is_empty")]
    pub endpoint_mappings: BTreeMap<IpAddr, EndpointMapping>,

    /// Addresses of the external network that no endpoint has any more, and that no other one gets
    /// yet.
    #[schemars(schema_with = "quarantined_addresses")]
    #[serde(rename = "resting", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quarantined_addresses: BTreeMap<IpAddr, QuarantinedAddress>,

    /// What networks of the peer were called here until a while ago, by that name. No other peer's
    /// network is called so yet.
    #[schemars(schema_with = "quarantined_cidrs")]
    #[serde(rename = "restingSubnets", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub quarantined_cidrs: BTreeMap<Cidr, QuarantinedCidr>,

    /// Who writes all these objects.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub writer: Option<Writer>,

    /// Not used.
    #[schemars(schema_with = "by_cluster::<ConfiguredCluster>")]
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub nat_mappings_configured: BTreeMap<ClusterId, ConfiguredCluster>,

    /// Network of this cluster's pods.
    #[serde(rename = "podCIDR", skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<Cidr>,

    /// Network of this cluster's services.
    #[serde(rename = "serviceCIDR", skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<Cidr>,
}

/// The networks of and for one peer. "None" is: not remapped.
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
    /// What the peer calls this cluster's pods' network. Unset: it has not said yet.
    #[serde(rename = "localNATPodCIDR", skip_serializing_if = "Option::is_none")]
    pub local_nat_pod_cidr: Option<NatCidr>,

    /// What the peer calls this cluster's external network. Unset: it has not said yet.
    #[serde(rename = "localNATExternalCIDR", skip_serializing_if = "Option::is_none")]
    pub local_nat_external_cidr: Option<NatCidr>,

    /// Network of the peer's pods, as the peer calls it.
    #[serde(rename = "remotePodCIDR", skip_serializing_if = "Option::is_none")]
    pub remote_pod_cidr: Option<Cidr>,

    /// External network of the peer, as the peer calls it.
    #[serde(rename = "remoteExternalCIDR", skip_serializing_if = "Option::is_none")]
    pub remote_external_cidr: Option<Cidr>,

    /// What this cluster calls the peer's pods' network.
    #[serde(rename = "remoteNATPodCIDR", default)]
    pub remote_nat_pod_cidr: NatCidr,

    /// What this cluster calls the peer's external network.
    #[serde(rename = "remoteNATExternalCIDR", default)]
    pub remote_nat_external_cidr: NatCidr,
}

/// The address given to one endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointMapping {
    /// An address of this cluster's external network.
    pub ip: IpAddr,

    /// The clusters to which the endpoint is reflected, by their ids.
    pub cluster_mappings: BTreeMap<ClusterId, ClusterMapping>,
}

/// An address in quarantine: no other endpoint gets it before the quarantine ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedAddress {
    /// The last endpoint. When it is mapped again, it gets the address back.
    pub ip: IpAddr,

    /// The end of the quarantine: packets to the last endpoint may still be in flight.
    pub until: Time,
}

/// A translated CIDR in quarantine: no other peer gets it before the quarantine ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuarantinedCidr {
    /// The real CIDR in the last peer. When that peers again, it gets the translated CIDR back.
    pub of: Cidr,

    /// The end of the quarantine: packets to the peer may still be in flight.
    pub until: Time,
}

/// The one process that writes, and what it may be writing to at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct Writer {
    /// The process.
    pub holder: String,

    /// How often it has made sure that no other one writes.
    #[serde(default)]
    pub claims: u32,

    /// Names of the objects that it may be writing to. It says so before it does: whoever writes
    /// next makes sure that the writes of this one to these objects fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open: Vec<String>,
}

/// What is known of an endpoint that is reflected to a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClusterMapping {
    /// The clients of the address service that have asked for it. None: one that has given no name.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub owners: BTreeSet<String>,
}

/// Nothing: the key says it all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ConfiguredCluster {}

impl Subnets {
    /// The CIDR of the peer's pods in this cluster, once it is known.
    pub fn translated_pod_cidr(&self) -> Option<Cidr> {
        Some(self.remote_nat_pod_cidr.or(self.remote_pod_cidr?))
    }

    /// The peer's ExternalCIDR as translated in this cluster, once it is known.
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
                    "description": "The endpoint that had it last. It gets it back when it asks.",
                    "type": "string",
                    "maxLength": 45,
                },
                "until": {
                    "description": "Until when: packets to the last endpoint may still be under way.",
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
        "The network of the peer that had it last. It gets it back when it comes again.".into(),
    );
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "required": ["of", "until"],
            "properties": {
                "of": of,
                "until": {
                    "description": "Until when: packets to the peer may still be under way.",
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

/// Not checked by the API server, which would take as long for that as for all else, at every mapping
/// made. Nobody but the address service writes it.
fn unchecked(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-map-type": "atomic",
    })
}

/// What can be read of it: an entry that somebody has spoiled is no reason to lose the others.
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
    fn without_translation_the_translated_cidr_is_the_real_one() {
        let mut subnets = Subnets::default();
        assert_eq!(subnets.translated_pod_cidr(), None);
        subnets.remote_pod_cidr = Some("10.0.0.0/16".parse().unwrap());
        assert_eq!(subnets.translated_pod_cidr(), subnets.remote_pod_cidr);
        subnets.remote_nat_pod_cidr = "10.9.0.0/16".parse().unwrap();
        let translated = subnets.translated_pod_cidr().unwrap();
        assert_eq!(translated.to_string(), "10.9.0.0/16");
    }

    #[test]
    fn a_mapping_is_read_as_the_listing_has_it() {
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
    fn what_can_not_be_read_of_the_mappings_is_left_out() {
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
