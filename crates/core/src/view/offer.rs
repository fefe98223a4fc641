//! The view of a ResourceOffer.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{OwnerReference, Time},
};
use tombolo_api::{
    ClusterId,
    names::KUBELET_FINALIZER,
    sharing::{OfferPhase, ResourceOffer},
};

use crate::offer_stage::OfferStage;

/// The fields of a ResourceOffer that decisions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    /// Name of the object: the cluster name of the provider.
    pub name: &'a str,
    /// Its tenant namespace.
    pub namespace: &'a str,
    /// Cluster id of the provider, as claimed in the spec.
    pub cluster_id: &'a ClusterId,
    /// The offered resources.
    pub quota: &'a BTreeMap<String, Quantity>,
    /// Labels for the virtual node.
    pub labels: &'a BTreeMap<String, String>,
    /// Name of the virtual node, if it has one.
    pub virtual_node: Option<&'a str>,
    /// The answer of the home cluster.
    pub answer: OfferPhase,
    /// Its stage.
    pub stage: OfferStage,
    /// The start of its deletion.
    pub deleted: Option<Timestamp>,
    owners: &'a [OwnerReference],
}

impl<'a> Offer<'a> {
    /// The view of this resource.
    pub fn from_resource(offer: &'a ResourceOffer) -> Self {
        let (meta, spec, status) = (&offer.metadata, &offer.spec, offer.status.as_ref());
        let deleted = meta.deletion_timestamp.as_ref().map(|Time(time)| *time);
        let answer = status.map(|status| status.phase).unwrap_or_default();
        let withdrawn = deleted.is_some() || spec.withdrawal_timestamp.is_some();
        let has_node = meta.finalizers.iter().flatten().any(|name| name == KUBELET_FINALIZER);
        Self {
            name: meta.name.as_deref().unwrap_or_default(),
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            cluster_id: &spec.cluster_id,
            quota: &spec.resource_quota.hard,
            labels: &spec.labels,
            virtual_node: status.and_then(|status| status.virtual_node.as_deref()),
            answer,
            stage: OfferStage::decide(answer, withdrawn, has_node),
            deleted,
            owners: meta.owner_references.as_deref().unwrap_or_default(),
        }
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
    use crate::offer_stage::End;

    fn stage(metadata: &Value, withdrawn: Option<&str>, phase: Option<&str>) -> OfferStage {
        let offer: ResourceOffer = serde_json::from_value(json!({
            "metadata": metadata,
            "spec": {
                "clusterID": "milan-id", "resourceQuota": { "hard": { "cpu": "2" } },
                "withdrawalTimestamp": withdrawn,
            },
            "status": phase.map(|phase| json!({ "phase": phase })),
        }))
        .unwrap();
        Offer::from_resource(&offer).stage
    }

    #[test]
    fn deletion_and_withdrawal_lead_to_the_same_stage() {
        let time = "2026-01-01T00:00:00Z";
        let node = json!([KUBELET_FINALIZER]);
        let draining = OfferStage::Draining(End::Withdrawn);
        assert_eq!(
            stage(&json!({ "finalizers": node }), None, Some("Accepted")),
            OfferStage::Serving
        );
        let withdrawn = stage(&json!({ "finalizers": node }), Some(time), Some("Accepted"));
        assert_eq!(withdrawn, draining);
        let deleted = json!({ "finalizers": node, "deletionTimestamp": time });
        assert_eq!(stage(&deleted, None, Some("Accepted")), draining);
    }

    #[test]
    fn only_the_finalizer_of_the_kubelet_shows_a_node() {
        let other = json!({ "finalizers": ["liqo.io/replicator"] });
        assert_eq!(stage(&other, None, Some("Refused")), OfferStage::Over(End::Returned));
    }

    #[test]
    fn an_offer_without_a_status_is_pending() {
        assert_eq!(stage(&json!({}), None, None), OfferStage::Pending);
    }
}
