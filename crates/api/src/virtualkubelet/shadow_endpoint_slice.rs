//! [`ShadowEndpointSlice`]: endpoints of the home cluster, for the remote one.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::schema::rule;

/// The endpoints.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "virtualkubelet.liqo.io",
    version = "v1alpha1",
    kind = "ShadowEndpointSlice",
    namespaced,
    doc = "ShadowEndpointSlice is an EndpointSlice of the home cluster in the remote one. The \
           remote cluster creates an EndpointSlice from it, with endpoints that are not ready \
           while the home cluster is unreachable.",
    derive = "PartialEq",
    category = "liqo",
    shortname = "seps",
    printcolumn(
        name = "Service",
        type_ = "string",
        json_path = ".metadata.labels.kubernetes\\.io/service-name"
    ),
    printcolumn(name = "Address type", type_ = "string", json_path = ".spec.template.addressType"),
    printcolumn(name = "Ports", type_ = "string", json_path = ".spec.template.ports[*].port"),
    printcolumn(
        name = "Endpoints",
        type_ = "string",
        json_path = ".spec.template.endpoints[*].addresses[*]"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
pub struct ShadowEndpointSliceSpec {
    /// The EndpointSlice to create.
    pub template: EndpointSliceTemplate,
}

/// Addresses, conditions and ports of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new(
    "self.endpoints.all(e, e.addresses.all(a, isIP(a) \
     && ip(a).family() == (self.addressType == 'IPv4' ? 4 : 6)))"
).message("every address of endpoints must be of the addressType").field_path(".endpoints"))]
#[serde(rename_all = "camelCase")]
pub struct EndpointSliceTemplate {
    /// Address family: IPv4 or IPv6.
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "addressType is immutable, as in an EndpointSlice"
    ))]
    pub address_type: AddressType,

    /// The endpoints.
    #[schemars(schema_with = "endpoints")]
    pub endpoints: Vec<Endpoint>,

    /// The ports of every endpoint.
    #[schemars(schema_with = "ports")]
    #[serde(default)]
    pub ports: Vec<EndpointPort>,
}

/// Address family of an EndpointSlice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AddressType {
    /// IPv4 addresses.
    IPv4,
    /// IPv6 addresses.
    IPv6,
}

impl AddressType {
    /// The value in an EndpointSlice.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::IPv4 => "IPv4",
            Self::IPv6 => "IPv6",
        }
    }
}

fn endpoints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 1000,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["addresses"],
            "properties": {
                "addresses": {
                    "description": "Addresses of the endpoint. Consumers use the first.",
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 100,
                    "items": { "type": "string", "maxLength": 45 },
                    "x-kubernetes-list-type": "set",
                },
                "conditions": {
                    "description": "State of the endpoint.",
                    "type": "object",
                    "properties": {
                        "ready": boolean("Whether it receives traffic. Unset is true."),
                        "serving": boolean("Like ready, but also true while terminating."),
                        "terminating": boolean("Whether it is terminating."),
                    },
                },
                "hostname": string("Host name of the endpoint in DNS.", 63),
                "nodeName": string("Node of the endpoint.", 253),
                "zone": string("Zone of the endpoint.", 253),
                "hints": {
                    "description": "Preferred consumers of the endpoint.",
                    "type": "object",
                    "properties": {
                        "forZones": named("Zones that should use it."),
                        "forNodes": named("Nodes that should use it."),
                    },
                },
                "targetRef": {
                    "description": "The object behind the endpoint, such as a pod.",
                    "type": "object",
                    "x-kubernetes-map-type": "atomic",
                    "properties": {
                        "apiVersion": string("API version of the object.", 317),
                        "fieldPath": string("Part of the object.", 1024),
                        "kind": string("Kind of the object.", 63),
                        "name": string("Name of the object.", 253),
                        "namespace": string("Namespace of the object.", 63),
                        "resourceVersion": string("Version of the object.", 253),
                        "uid": string("UID of the object.", 253),
                    },
                },
            },
        },
    })
}

fn ports(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 100,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "properties": {
                "name": {
                    "description": "Name of the port. Unset and empty count as the same name.",
                    "type": "string",
                    "maxLength": 63,
                    "x-kubernetes-validations": [rule(
                        "self.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$')",
                        "must be the name of a port: lower-case letters, digits and '-', with a \
                         letter or digit at both ends",
                    )],
                },
                "port": {
                    "description": "Port number. Unset: all ports.",
                    "type": "integer",
                    "format": "int32",
                    "minimum": 1,
                    "maximum": 65535,
                },
                "protocol": {
                    "description": "TCP, UDP or SCTP. Unset is TCP.",
                    "type": "string",
                    "enum": ["TCP", "UDP", "SCTP"],
                },
                "appProtocol": string("Application protocol.", 317),
            },
        },
        "x-kubernetes-validations": [rule(
            "self.all(p, self.exists_one(q, \
             (has(p.name) ? p.name : '') == (has(q.name) ? q.name : '')))",
            "no two ports can have the same name",
        )],
    })
}

fn boolean(description: &str) -> Value {
    json!({ "description": description, "type": "boolean" })
}

fn string(description: &str, max: usize) -> Value {
    json!({ "description": description, "type": "string", "maxLength": max })
}

fn named(description: &str) -> Value {
    json!({
        "description": description,
        "type": "array",
        "maxItems": 8,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": { "name": string("Name of the zone or node.", 253) },
        },
    })
}
