//! The owner of an exchanged object: the cluster after which it is named.
//!
//! Clusters exchange four kinds in the tenant namespace of a peering: ResourceRequest,
//! ResourceOffer, NetworkConfig and NamespaceMap. RBAC confines a peer to objects with its own
//! name, and no peer may have the name of this cluster. Labels and specs are claims of whoever
//! wrote the object.

use tombolo_api::ClusterName;

/// Whether an exchanged object with this name belongs to this cluster. Otherwise it belongs to the
/// other cluster of the peering.
pub fn belongs_to(name: &str, cluster: &ClusterName) -> bool {
    name == cluster.as_str()
}
