//! The view of a ForeignCluster as an entry of the list of known clusters.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference, Time};
use tombolo_api::{
    Fingerprint,
    discovery::{DiscoveryType, ForeignCluster, Peering},
    names::{
        DISCOVERY_TYPE_LABEL, LAST_UPDATE_ANNOTATION, PINNED_ANNOTATION, RECORD_ANNOTATION,
        REQUEST_ANNOTATION,
    },
};

use super::Peer;
use crate::discovery::PinnedBy;

/// The fields of a ForeignCluster that discovery depends on.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// The cluster itself.
    pub peer: Peer<'a>,
    /// Name of the object.
    pub name: &'a str,
    /// Uid of the object.
    pub uid: Option<&'a str>,
    /// Its resource version.
    pub resource_version: Option<&'a str>,
    /// Its creation time.
    pub created: Option<Timestamp>,
    /// The start of its deletion.
    pub deleted: Option<Timestamp>,
    /// How the cluster was discovered. Without a label, a user has created the entry.
    pub kind: DiscoveryType,
    /// URL of the cluster's auth service.
    pub auth_url: &'a str,
    /// Whether a peering is wanted.
    pub join: bool,
    /// Its lifetime, in seconds.
    pub ttl: Option<u32>,
    /// The pinned certificate.
    pub fingerprint: Option<Fingerprint>,
    /// The discovery that was written last.
    pub last_update: Option<Timestamp>,
    /// Uid of the request that it was made for, if it exists for that reason only.
    pub request: Option<&'a str>,
    /// The DNS record that lists the cluster.
    pub record: Option<&'a str>,
    /// The outgoing peering.
    pub outgoing: Option<&'a Peering>,
    /// The incoming peering.
    pub incoming: Option<&'a Peering>,
    /// Who has set its fields. Watches drop it.
    pub managed_fields: &'a [ManagedFieldsEntry],
    pinned: Option<&'a str>,
    owners: &'a [OwnerReference],
}

impl<'a> Entry<'a> {
    /// The view of this resource.
    pub fn from_resource(cluster: &'a ForeignCluster) -> Self {
        let (meta, spec, status) = (&cluster.metadata, &cluster.spec, cluster.status.as_ref());
        let label = meta.labels.as_ref().and_then(|labels| labels.get(DISCOVERY_TYPE_LABEL));
        let kind = label.and_then(|text| text.parse().ok()).unwrap_or(DiscoveryType::Manual);
        let annotation = |name: &str| Some(meta.annotations.as_ref()?.get(name)?.as_str());
        let is_incoming = kind == DiscoveryType::IncomingPeering;
        Self {
            peer: Peer::from_resource(cluster),
            name: meta.name.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref(),
            resource_version: meta.resource_version.as_deref(),
            created: meta.creation_timestamp.as_ref().map(|Time(time)| *time),
            deleted: meta.deletion_timestamp.as_ref().map(|Time(time)| *time),
            kind,
            auth_url: &spec.auth_url,
            join: spec.join,
            ttl: spec.ttl,
            fingerprint: spec.fingerprint,
            last_update: annotation(LAST_UPDATE_ANNOTATION).and_then(|time| time.parse().ok()),
            request: annotation(REQUEST_ANNOTATION).filter(|_| is_incoming),
            record: annotation(RECORD_ANNOTATION),
            outgoing: status.and_then(|status| status.outgoing.as_ref()),
            incoming: status.and_then(|status| status.incoming.as_ref()),
            managed_fields: meta.managed_fields.as_deref().unwrap_or_default(),
            pinned: annotation(PINNED_ANNOTATION),
            owners: meta.owner_references.as_deref().unwrap_or_default(),
        }
    }

    /// Source of the pinned certificate, if there is one.
    pub fn pinned_by(&self) -> Option<PinnedBy> {
        Some(PinnedBy::read(self.fingerprint?, self.pinned))
    }

    /// Whether the object with this uid is one of its owners.
    pub fn is_owned_by(&self, uid: &str) -> bool {
        self.owners.iter().any(|owner| owner.uid == uid)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn entry(metadata: &Value) -> ForeignCluster {
        let spec = json!({ "authUrl": "https://milan" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    #[test]
    fn an_entry_without_a_valid_label_is_manual() {
        for (labels, kind) in [
            (json!({}), DiscoveryType::Manual),
            (json!({ DISCOVERY_TYPE_LABEL: "lan" }), DiscoveryType::Manual),
            (json!({ DISCOVERY_TYPE_LABEL: "LAN" }), DiscoveryType::Lan),
        ] {
            let entry = entry(&json!({ "name": "milan", "labels": labels }));
            assert_eq!(Entry::from_resource(&entry).kind, kind, "{labels}");
        }
    }

    #[test]
    fn only_an_entry_of_an_incoming_peering_depends_on_its_request() {
        for (kind, request) in [("IncomingPeering", Some("1")), ("LAN", None)] {
            let entry = entry(&json!({
                "labels": { DISCOVERY_TYPE_LABEL: kind },
                "annotations": { REQUEST_ANNOTATION: "1" },
            }));
            assert_eq!(Entry::from_resource(&entry).request, request, "{kind}");
        }
    }
}
