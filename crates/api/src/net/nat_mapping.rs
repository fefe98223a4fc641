//! [`NatMapping`]: translated addresses of endpoints, for the pods of another cluster.

use std::{collections::BTreeMap, net::IpAddr};

use kube::{CustomResource, KubeSchema};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    ClusterId,
    schema::{is_canonical_ip, rule},
};

/// All mappings for one cluster, or a part of them.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "net.liqo.io",
    version = "v1alpha1",
    kind = "NatMapping",
    doc = "NatMapping maps the real addresses of endpoints to their translated addresses in \
           another cluster. The gateway translates them back. A cluster may have several \
           NatMappings.",
    derive = "PartialEq",
    category = "liqo",
    shortname = "natmap",
    selectable = ".spec.clusterID",
    printcolumn(name = "Cluster ID", type_ = "string", json_path = ".spec.clusterID"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct NatMappingSpec {
    /// The cluster whose pods send the traffic.
    #[serde(rename = "clusterID")]
    #[x_kube(validation = Rule::new("self == oldSelf").message(
        "clusterID is immutable: another cluster needs another NatMapping"
    ))]
    pub cluster_id: ClusterId,

    /// Translated addresses of endpoints in that cluster, by real address.
    #[schemars(schema_with = "mappings")]
    pub cluster_mappings: BTreeMap<IpAddr, IpAddr>,
}

fn mappings(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": { "type": "string", "maxLength": 45 },
        "maxProperties": 4096,
        "x-kubernetes-map-type": "atomic",
        "x-kubernetes-validations": [rule(
            &format!(
                "self.all(from, {} && isIP(self[from]))",
                is_canonical_ip("from")
            ),
            "every key must be an address in its usual form, such as 10.0.0.5 or 2001:db8::5, \
             and every value an address",
        )],
    })
}
