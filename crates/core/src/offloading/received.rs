//! What to do about a NamespaceMap that another cluster has sent.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use tombolo_api::names::FINALIZER;
use tombolo_api::virtualkubelet::NamespaceMap;

use super::twin::{Existing, TwinPlan, twins};
use crate::{identity::Stage, view::Offer};

/// The next step for a NamespaceMap that another cluster has sent.
#[derive(Clone, Debug, PartialEq)]
pub enum Received {
    /// Put the finalizer on it, before anything is made for it.
    Hold,
    /// Delete it: its sender may have no pods here any more.
    Delete,
    /// Make, keep and remove twins as planned.
    Follow(TwinPlan),
}

/// Decides by the stage of the peering with the sender and by `offer`, what this cluster lends it.
/// `existing` as for [`twins`].
pub fn received(
    map: &NamespaceMap,
    stage: Stage,
    offer: Option<&Offer<'_>>,
    existing: &BTreeMap<String, Existing>,
    now: Timestamp,
) -> Received {
    if map.metadata.deletion_timestamp.is_none() {
        let mut finalizers = map.metadata.finalizers.iter().flatten();
        if !finalizers.any(|finalizer| finalizer == FINALIZER) {
            return Received::Hold;
        }
        if is_outstayed(stage, offer, now) {
            return Received::Delete;
        }
    }
    let mut plan = twins(map, existing);
    if stage < Stage::Hosted {
        plan.make.clear();
    }
    Received::Follow(plan)
}

/// After how long, if nothing else changes, a map is to be deleted that may stay for now. `None`:
/// not by time alone.
pub fn outstays_in(stage: Stage, offer: Option<&Offer<'_>>, now: Timestamp) -> Option<Duration> {
    let left = offer.filter(|_| stage < Stage::Hosted).and_then(|offer| time_left(offer, now))?;
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// Whether a map that a cluster has sent is to go, with the twins, though its sender keeps it: no pods of
/// that cluster may run here any more. `offer` is what it was lent; it goes as soon as the other cluster
/// has taken its pods back, and for that it has some time.
fn is_outstayed(stage: Stage, offer: Option<&Offer<'_>>, now: Timestamp) -> bool {
    let is_over = |offer: &Offer<'_>| time_left(offer, now).is_some_and(|left| !left.is_positive());
    stage < Stage::Hosted && offer.is_none_or(is_over)
}

/// How long a cluster may take to end its pods here.
const TIME_TO_LEAVE: SignedDuration = SignedDuration::from_mins(5);

/// What is left of that, once the offer is withdrawn.
fn time_left(offer: &Offer<'_>, now: Timestamp) -> Option<SignedDuration> {
    Some(TIME_TO_LEAVE - now.duration_since(offer.deleted?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::sharing::ResourceOffer;

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

    fn map(finalizers: &[&str], leaves: bool) -> NamespaceMap {
        serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
            "metadata": {
                "name": "rome", "finalizers": finalizers,
                "deletionTimestamp": leaves.then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "desiredMapping": { "shop": "shop-rome" } },
        }))
        .unwrap()
    }

    #[test]
    fn who_is_no_guest_any_more_has_some_time_to_leave() {
        let (stays, leaves) = (offer(None), withdrawn());
        let (stays, leaves) = (Offer::from_resource(&stays), Offer::from_resource(&leaves));
        for stage in [Stage::Known, Stage::Peered] {
            assert!(is_outstayed(stage, None, at("12:00:00")), "it has taken its pods back");
            assert!(!is_outstayed(stage, Some(&stays), at("12:00:00")), "nobody has told it yet");
            assert!(!is_outstayed(stage, Some(&leaves), at("12:04:59")));
            assert!(is_outstayed(stage, Some(&leaves), at("12:05:00")));
        }
        for offer in [None, Some(&leaves), Some(&stays)] {
            assert!(!is_outstayed(Stage::Hosted, offer, at("13:00:00")));
        }
    }

    #[test]
    fn the_time_that_is_left_is_known() {
        let (stays, leaves) = (offer(None), withdrawn());
        let (stays, leaves) = (Offer::from_resource(&stays), Offer::from_resource(&leaves));
        let left = |stage, offer, now| outstays_in(stage, offer, at(now));
        assert_eq!(left(Stage::Known, Some(&leaves), "12:04:00"), Some(Duration::from_secs(60)));
        assert_eq!(left(Stage::Known, Some(&leaves), "12:05:00"), None, "it is over");
        assert_eq!(left(Stage::Known, Some(&leaves), "12:06:00"), None, "it is over");
        assert_eq!(left(Stage::Known, Some(&stays), "12:00:00"), None);
        assert_eq!(left(Stage::Known, None, "12:00:00"), None);
        assert_eq!(left(Stage::Hosted, Some(&leaves), "12:04:00"), None);
    }

    #[test]
    fn nothing_is_made_for_a_map_without_the_finalizer() {
        let offer = offer(None);
        let offer = Offer::from_resource(&offer);
        let decide = |map: &NamespaceMap, stage| {
            received(map, stage, Some(&offer), &BTreeMap::new(), at("12:00:00"))
        };
        let mine = ["example.com/mine"];
        assert_eq!(decide(&map(&mine, false), Stage::Hosted), Received::Hold);
        let Received::Follow(plan) = decide(&map(&[FINALIZER], false), Stage::Hosted) else {
            panic!("its twins are made");
        };
        assert_eq!(plan.make.len(), 1);
        let Received::Follow(plan) = decide(&map(&[FINALIZER], false), Stage::Peered) else {
            panic!("its sender has time to leave");
        };
        assert!(plan.make.is_empty(), "its sender is no guest");
        let Received::Follow(plan) = decide(&map(&mine, true), Stage::Hosted) else {
            panic!("a map that leaves gets no finalizer");
        };
        assert!(plan.make.is_empty() && plan.release);
    }

    #[test]
    fn a_map_that_has_outstayed_is_deleted_once() {
        let decide = |map: &NamespaceMap| {
            received(map, Stage::Known, None, &BTreeMap::new(), at("12:00:00"))
        };
        assert_eq!(decide(&map(&[FINALIZER], false)), Received::Delete);
        assert!(matches!(decide(&map(&[FINALIZER], true)), Received::Follow(_)));
    }
}
