//! The next step for a NamespaceMap received from a peer.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use super::twin::{Existing, TwinPlan, twins};
use crate::{
    identity::Stage,
    view::{Map, Offer},
};

/// The next step for a NamespaceMap received from a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum ReceivedMapStep {
    /// Add the finalizer, before any twin is created.
    AddFinalizer,
    /// Delete it: the peer may not run pods here any more.
    Delete,
    /// Create, keep and delete twins as planned.
    Reconcile(TwinPlan),
}

/// Decides by the stage of the peering and by `offer`, the offer of this cluster to the peer.
/// `existing` as for [`twins`].
pub fn received_map_step(
    map: &Map<'_>,
    stage: Stage,
    offer: Option<&Offer<'_>>,
    existing: &BTreeMap<String, Existing>,
    now: Timestamp,
) -> ReceivedMapStep {
    if !map.is_deleted {
        if !map.is_guarded {
            return ReceivedMapStep::AddFinalizer;
        }
        if is_overdue(stage, offer, now) {
            return ReceivedMapStep::Delete;
        }
    }
    let mut plan = twins(map, existing);
    if stage < Stage::Hosted {
        plan.create.clear();
    }
    ReceivedMapStep::Reconcile(plan)
}

/// Time until the map has to be deleted if nothing else changes. `None`: no deletion is scheduled.
pub fn deletion_due_in(
    stage: Stage,
    offer: Option<&Offer<'_>>,
    now: Timestamp,
) -> Option<Duration> {
    let left = offer.filter(|_| stage < Stage::Hosted).and_then(|offer| time_left(offer, now))?;
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// Whether this cluster deletes the map and its twins although the peer keeps them: the peer may
/// not run pods here any more. It has the drain period to delete its pods; the offer disappears
/// when it has done so.
fn is_overdue(stage: Stage, offer: Option<&Offer<'_>>, now: Timestamp) -> bool {
    let is_over = |offer: &Offer<'_>| time_left(offer, now).is_some_and(|left| !left.is_positive());
    stage < Stage::Hosted && offer.is_none_or(is_over)
}

/// Time for a peer to delete its pods after the withdrawal of the offer.
const DRAIN_PERIOD: SignedDuration = SignedDuration::from_mins(5);

/// Rest of the drain period. `None` if the offer is not being deleted.
fn time_left(offer: &Offer<'_>, now: Timestamp) -> Option<SignedDuration> {
    Some(DRAIN_PERIOD - now.duration_since(offer.deleted?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{names::FINALIZER, sharing::ResourceOffer, virtualkubelet::NamespaceMap};

    use super::*;

    fn at(time: &str) -> Timestamp {
        format!("2026-01-01T{time}Z").parse().unwrap()
    }

    fn offer(ends: Option<&str>) -> ResourceOffer {
        serde_json::from_value(json!({
            "metadata": { "name": "milan", "deletionTimestamp": ends },
            "spec": { "clusterID": "m", "resourceQuota": { "hard": {} } },
        }))
        .unwrap()
    }

    fn withdrawn() -> ResourceOffer {
        offer(Some("2026-01-01T12:00:00Z"))
    }

    fn map(finalizers: &[&str], terminating: bool) -> NamespaceMap {
        serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
            "metadata": {
                "name": "rome", "finalizers": finalizers,
                "deletionTimestamp": terminating.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "desiredMapping": { "shop": "shop-rome" } },
        }))
        .unwrap()
    }

    #[test]
    fn a_peer_that_is_not_hosted_any_more_has_a_drain_period() {
        let (offered, ending) = (offer(None), withdrawn());
        let (offered, ending) = (Offer::from_resource(&offered), Offer::from_resource(&ending));
        for stage in [Stage::Known, Stage::Peered] {
            assert!(is_overdue(stage, None, at("12:00:00")), "its pods are drained");
            assert!(
                !is_overdue(stage, Some(&offered), at("12:00:00")),
                "the offer is not withdrawn yet"
            );
            assert!(!is_overdue(stage, Some(&ending), at("12:04:59")));
            assert!(is_overdue(stage, Some(&ending), at("12:05:00")));
        }
        for offer in [None, Some(&ending), Some(&offered)] {
            assert!(!is_overdue(Stage::Hosted, offer, at("13:00:00")));
        }
    }

    #[test]
    fn the_rest_of_the_drain_period_is_known() {
        let (offered, ending) = (offer(None), withdrawn());
        let (offered, ending) = (Offer::from_resource(&offered), Offer::from_resource(&ending));
        let left = |stage, offer, now| deletion_due_in(stage, offer, at(now));
        assert_eq!(left(Stage::Known, Some(&ending), "12:04:00"), Some(Duration::from_secs(60)));
        assert_eq!(left(Stage::Known, Some(&ending), "12:05:00"), None, "it is over");
        assert_eq!(left(Stage::Known, Some(&ending), "12:06:00"), None, "it is over");
        assert_eq!(left(Stage::Known, Some(&offered), "12:00:00"), None);
        assert_eq!(left(Stage::Known, None, "12:00:00"), None);
        assert_eq!(left(Stage::Hosted, Some(&ending), "12:04:00"), None);
    }

    #[test]
    fn no_twin_is_created_for_a_map_without_the_finalizer() {
        let offer = offer(None);
        let offer = Offer::from_resource(&offer);
        let decide = |map: &NamespaceMap, stage| {
            let map = Map::from_resource(map);
            received_map_step(&map, stage, Some(&offer), &BTreeMap::new(), at("12:00:00"))
        };
        let mine = ["example.com/mine"];
        assert_eq!(decide(&map(&mine, false), Stage::Hosted), ReceivedMapStep::AddFinalizer);
        let ReceivedMapStep::Reconcile(plan) = decide(&map(&[FINALIZER], false), Stage::Hosted)
        else {
            panic!("its twins are created");
        };
        assert_eq!(plan.create.len(), 1);
        let ReceivedMapStep::Reconcile(plan) = decide(&map(&[FINALIZER], false), Stage::Peered)
        else {
            panic!("the drain period lasts");
        };
        assert!(plan.create.is_empty(), "the peer may not run pods here");
        let ReceivedMapStep::Reconcile(plan) = decide(&map(&mine, true), Stage::Hosted) else {
            panic!("a terminating map gets no finalizer");
        };
        assert!(plan.create.is_empty() && plan.release);
    }

    #[test]
    fn an_overdue_map_is_deleted_once() {
        let decide = |map: &NamespaceMap| {
            let map = Map::from_resource(map);
            received_map_step(&map, Stage::Known, None, &BTreeMap::new(), at("12:00:00"))
        };
        assert_eq!(decide(&map(&[FINALIZER], false)), ReceivedMapStep::Delete);
        assert!(matches!(decide(&map(&[FINALIZER], true)), ReceivedMapStep::Reconcile(_)));
    }
}
