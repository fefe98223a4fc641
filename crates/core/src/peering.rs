//! The next step of a peering in the consumer: request, offer, and the withdrawal of both.

mod milestone;

use tombolo_api::{ClusterName, discovery::RequestState, sharing::OfferPhase};

use crate::{
    offer_stage::{End, OfferStage},
    view::{Entry, Offer, Request},
};
pub use milestone::Milestone;

/// The state of an outgoing peering: pods of this cluster run in the peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// Whether `spec.join` is set.
    pub join: bool,
    /// Whether the peer has issued an identity to this cluster.
    pub authenticated: bool,
    /// Request of this cluster.
    pub request: Option<Request<'a>>,
    /// Offer of the peer.
    pub offer: Option<Offer<'a>>,
    /// Whether the peer has, or will have, twin namespaces of this cluster.
    pub namespaces: bool,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the request.
    Request,
    /// Accept the offer.
    Accept,
    /// Refuse the offer: its virtual node is drained.
    Refuse,
    /// Delete the request.
    Withdraw,
    /// Nothing to do.
    Nothing,
}

/// The condition of a peering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether pods can be offloaded.
    pub established: bool,
    /// Reason of the condition.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
}

/// The next step of an outgoing peering.
pub fn next(there: &Outgoing<'_>) -> Step {
    if there.join {
        return match there.request {
            _ if !there.authenticated => Step::Nothing,
            None => Step::Request,
            Some(request) if request.is_deleted => Step::Nothing,
            Some(request) if request.state == RequestState::Refused => Step::Nothing,
            Some(_) if there.offer.is_some_and(|it| it.stage.can_be_accepted()) => Step::Accept,
            Some(_) => Step::Nothing,
        };
    }
    match there.offer {
        // Also a withdrawn offer: it must not be Accepted still if the provider offers again.
        Some(offer) if offer.answer != OfferPhase::Refused => Step::Refuse,
        Some(offer) if offer.stage.is_draining() => Step::Nothing,
        _ if there.namespaces => Step::Nothing,
        _ if there.request.is_some() => Step::Withdraw,
        _ => Step::Nothing,
    }
}

/// The condition of an outgoing peering.
pub fn state(there: &Outgoing<'_>, cluster: &str) -> State {
    let (established, reason, message) = match (there.request, there.offer) {
        (None, None) if !there.join => (false, "NotJoined", "spec.join is false".to_owned()),
        _ if !there.join => (false, "Ending", format!("the pods in {cluster} are being drained")),
        _ if !there.authenticated => (
            false,
            "NotAuthenticated",
            format!("{cluster} has not issued an identity yet: see the condition Authenticated"),
        ),
        (Some(request), Some(_)) if request.state == RequestState::Refused => (
            false,
            "RequestRefused",
            format!("{cluster} has refused the request: the pods there are being drained"),
        ),
        (_, Some(offer)) => match offer.stage {
            OfferStage::Serving => {
                (true, "Established", format!("the offer of {cluster} is accepted"))
            }
            OfferStage::Draining(End::Withdrawn) => (
                false,
                "OfferWithdrawn",
                format!("{cluster} has withdrawn its offer: the pods there are being drained"),
            ),
            OfferStage::Over(End::Withdrawn) => {
                (false, "OfferWithdrawn", format!("{cluster} has withdrawn its offer"))
            }
            OfferStage::Pending
            | OfferStage::Draining(End::Returned)
            | OfferStage::Over(End::Returned) => {
                (false, "OfferPending", format!("the offer of {cluster} is about to be accepted"))
            }
        },
        (Some(request), None) => match request.state {
            RequestState::Pending => (
                false,
                "RequestPending",
                format!("{cluster} has not accepted the request: its operator may have to do so"),
            ),
            RequestState::Accepted => {
                (false, "RequestAccepted", format!("{cluster} is preparing an offer"))
            }
            RequestState::Refused => {
                (false, "RequestRefused", format!("{cluster} has refused the request"))
            }
        },
        (None, None) => {
            (false, "Requesting", format!("the request to {cluster} is about to be created"))
        }
    };
    State { established, reason, message }
}

/// Whether the request that owns an offer of this cluster is gone. The garbage collector would
/// delete the offer as well, but discovers new kinds only from time to time.
pub fn is_orphaned(offer: &Offer<'_>, requests: &[Request<'_>]) -> bool {
    let is_owner = |request: &Request<'_>| request.uid.is_some_and(|uid| offer.is_owned_by(uid));
    offer.deleted.is_none() && !requests.iter().any(is_owner)
}

/// The condition of an incoming peering: pods of the peer run in this cluster.
pub fn incoming(request: Option<&Request<'_>>, offer: Option<&Offer<'_>>) -> State {
    let (established, reason, message) = match (request, offer) {
        (None, _) => (false, "NotRequested", "the peer has not requested a peering".to_owned()),
        (Some(request), _) if request.state == RequestState::Refused => {
            let message = "the request is refused: set its status.state to Accepted to accept it";
            (false, "RequestRefused", message.to_owned())
        }
        (Some(request), _) if request.state == RequestState::Pending => (
            false,
            "RequestPending",
            "the request is pending: set its status.state to Accepted to accept it".to_owned(),
        ),
        (Some(_), Some(offer)) if offer.stage == OfferStage::Serving => {
            (true, "Established", "the peer has accepted the offer".to_owned())
        }
        (Some(_), Some(offer)) if offer.answer == OfferPhase::Refused => {
            (false, "OfferRefused", "the peer has refused the offer".to_owned())
        }
        (Some(_), Some(offer)) if offer.stage.is_withdrawn() => {
            (false, "OfferWithdrawn", "this cluster has withdrawn its offer".to_owned())
        }
        (Some(_), _) => (false, "Offering", "the peer has not accepted the offer yet".to_owned()),
    };
    State { established, reason, message }
}

/// The handling of a request while the ForeignCluster of its peer is being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOnUnpeer {
    /// A request of the peer: refuse it.
    Refuse,
    /// A request of this cluster: wait for its deletion.
    Wait,
    /// A refused request of the peer: leave its deletion to the peer.
    Leave,
}

/// Decides by the name of a request, the only field that the peer can't choose, and its state.
pub fn request_on_unpeer(request: &Request<'_>, us: &ClusterName) -> RequestOnUnpeer {
    if request.name == us.as_str() {
        RequestOnUnpeer::Wait
    } else if request.state == RequestState::Refused {
        RequestOnUnpeer::Leave
    } else {
        RequestOnUnpeer::Refuse
    }
}

/// Whether the peer has made this request after the deletion of its entry began. An entry that was
/// created for a request records its uid. For other entries the times decide, in whole seconds.
pub fn is_requested_again(request: &Request<'_>, us: &ClusterName, entry: &Entry<'_>) -> bool {
    let is_open = request_on_unpeer(request, us) == RequestOnUnpeer::Refuse && !request.is_deleted;
    is_open
        && match entry.request {
            Some(uid) => request.uid != Some(uid),
            None => request.created.zip(entry.deleted).is_some_and(|(made, ended)| made > ended),
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{
        discovery::{ForeignCluster, ResourceRequest},
        names::KUBELET_FINALIZER,
        sharing::ResourceOffer,
    };

    use super::*;

    fn request(state: &str) -> ResourceRequest {
        serde_json::from_value(json!({
            "metadata": { "name": "rome" },
            "spec": {
                "clusterIdentity": { "clusterID": "r", "clusterName": "rome" },
                "authUrl": "https://rome",
            },
            "status": { "state": state },
        }))
        .unwrap()
    }

    fn offer(phase: &str, finalizers: &[&str]) -> ResourceOffer {
        serde_json::from_value(json!({
            "metadata": { "name": "milan", "finalizers": finalizers },
            "spec": { "clusterID": "m", "resourceQuota": { "hard": { "cpu": "1" } } },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    fn incoming(request: Option<&ResourceRequest>, offer: Option<&ResourceOffer>) -> State {
        let (request, offer) =
            (request.map(Request::from_resource), offer.map(Offer::from_resource));
        super::incoming(request.as_ref(), offer.as_ref())
    }

    fn request_on_unpeer(request: &ResourceRequest, us: &ClusterName) -> RequestOnUnpeer {
        super::request_on_unpeer(&Request::from_resource(request), us)
    }

    fn is_requested_again(
        request: &ResourceRequest,
        us: &ClusterName,
        entry: &ForeignCluster,
    ) -> bool {
        super::is_requested_again(
            &Request::from_resource(request),
            us,
            &Entry::from_resource(entry),
        )
    }

    fn is_orphaned(offer: &ResourceOffer, requests: &[ResourceRequest]) -> bool {
        let requests: Vec<_> = requests.iter().map(Request::from_resource).collect();
        super::is_orphaned(&Offer::from_resource(offer), &requests)
    }

    fn withdrawn(phase: &str, finalizers: &[&str]) -> ResourceOffer {
        let mut offer = offer(phase, finalizers);
        offer.spec.withdrawal_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        offer
    }

    #[test]
    fn a_peering_starts_step_by_step() {
        let mut there = Outgoing { join: true, ..Outgoing::default() };
        assert_eq!(next(&there), Step::Nothing);
        assert_eq!(state(&there, "milan").reason, "NotAuthenticated");
        there.authenticated = true;
        assert_eq!(next(&there), Step::Request);
        let pending = request("Pending");
        there.request = Some(Request::from_resource(&pending));
        assert_eq!(next(&there), Step::Nothing);
        assert_eq!(state(&there, "milan").reason, "RequestPending");
        let came = offer("Pending", &[]);
        there.offer = Some(Offer::from_resource(&came));
        assert_eq!(next(&there), Step::Accept);
        let taken = offer("Accepted", &[]);
        there.offer = Some(Offer::from_resource(&taken));
        assert_eq!(next(&there), Step::Nothing);
        assert!(state(&there, "milan").established);
    }

    #[test]
    fn a_peering_ends_with_the_offer_then_the_namespaces_then_the_request() {
        let asked = request("Accepted");
        let mut there = Outgoing {
            authenticated: true,
            request: Some(Request::from_resource(&asked)),
            namespaces: true,
            ..Outgoing::default()
        };
        let taken = offer("Accepted", &[KUBELET_FINALIZER]);
        there.offer = Some(Offer::from_resource(&taken));
        assert_eq!(next(&there), Step::Refuse);
        let in_use = offer("Refused", &[KUBELET_FINALIZER]);
        there.offer = Some(Offer::from_resource(&in_use));
        assert_eq!(next(&there), Step::Nothing);
        let drained = offer("Refused", &[]);
        there.offer = Some(Offer::from_resource(&drained));
        assert_eq!(next(&there), Step::Nothing, "namespaces are still there");
        there.namespaces = false;
        assert_eq!(next(&there), Step::Withdraw);
        there.request = None;
        there.offer = None;
        assert_eq!(next(&there), Step::Nothing);
        assert_eq!(state(&there, "milan").reason, "NotJoined");
    }

    #[test]
    fn a_peering_that_is_joined_again_waits_for_the_deletion_of_the_old_request() {
        let mut leaving = request("Accepted");
        leaving.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        let there = Outgoing {
            join: true,
            authenticated: true,
            request: Some(Request::from_resource(&leaving)),
            ..Outgoing::default()
        };
        assert_eq!(next(&there), Step::Nothing);
    }

    #[test]
    fn a_refused_peering_is_over_until_it_is_accepted_again() {
        let (refused, leaving) = (request("Refused"), offer("Accepted", &[KUBELET_FINALIZER]));
        let mut there = Outgoing {
            join: true,
            authenticated: true,
            request: Some(Request::from_resource(&refused)),
            offer: Some(Offer::from_resource(&leaving)),
            namespaces: true,
        };
        assert_eq!(next(&there), Step::Nothing);
        let said = state(&there, "milan");
        assert!(!said.established && said.reason == "RequestRefused");
        let late = offer("Pending", &[]);
        there.offer = Some(Offer::from_resource(&late));
        assert_eq!(next(&there), Step::Nothing);
        there.offer = None;
        assert_eq!(state(&there, "milan").reason, "RequestRefused");
    }

    #[test]
    fn a_withdrawn_offer_is_drained_reported_and_not_accepted() {
        let asked = request("Accepted");
        let joined = Outgoing {
            join: true,
            authenticated: true,
            request: Some(Request::from_resource(&asked)),
            namespaces: true,
            ..Outgoing::default()
        };
        for (phase, finalizers) in [
            ("Accepted", &[KUBELET_FINALIZER][..]),
            ("Accepted", &[]),
            ("Refused", &[]),
            ("Pending", &[]),
        ] {
            let offer = withdrawn(phase, finalizers);
            let there = Outgoing { offer: Some(Offer::from_resource(&offer)), ..joined };
            assert_eq!(next(&there), Step::Nothing, "{phase}");
            let said = state(&there, "milan");
            assert!(!said.established && said.reason == "OfferWithdrawn", "{phase}: {said:?}");
        }
        let draining = withdrawn("Accepted", &[KUBELET_FINALIZER]);
        let said = incoming(Some(&asked), Some(&draining));
        assert!(!said.established && said.reason == "OfferWithdrawn", "{said:?}");
    }

    #[test]
    fn a_peering_with_a_withdrawn_offer_ends_in_the_same_order() {
        let asked = request("Accepted");
        let step = |offer: &ResourceOffer, namespaces| {
            next(&Outgoing {
                authenticated: true,
                request: Some(Request::from_resource(&asked)),
                offer: Some(Offer::from_resource(offer)),
                namespaces,
                ..Outgoing::default()
            })
        };
        assert_eq!(step(&withdrawn("Accepted", &[KUBELET_FINALIZER]), true), Step::Refuse);
        assert_eq!(step(&withdrawn("Refused", &[KUBELET_FINALIZER]), true), Step::Nothing);
        assert_eq!(step(&withdrawn("Refused", &[]), true), Step::Nothing, "namespaces are there");
        assert_eq!(step(&withdrawn("Refused", &[]), false), Step::Withdraw);
    }

    #[test]
    fn requests_of_an_unpeered_cluster_are_refused() {
        let us = "milan".parse().unwrap();
        assert_eq!(request_on_unpeer(&request("Accepted"), &us), RequestOnUnpeer::Refuse);
        assert_eq!(request_on_unpeer(&request("Pending"), &us), RequestOnUnpeer::Refuse);
        assert_eq!(request_on_unpeer(&request("Refused"), &us), RequestOnUnpeer::Leave);
        assert_eq!(
            request_on_unpeer(&request("Accepted"), &"rome".parse().unwrap()),
            RequestOnUnpeer::Wait
        );
    }

    #[test]
    fn a_request_made_after_the_deletion_of_the_entry_is_not_refused() {
        let entry = |kind: &str, request: &str| -> ForeignCluster {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "rome", "deletionTimestamp": "2026-01-01T00:00:10Z",
                    "labels": { "discovery.liqo.io/discovery-type": kind },
                    "annotations": { "discovery.liqo.io/request": request },
                },
                "spec": { "authUrl": "https://rome" },
            }))
            .unwrap()
        };
        let (us, them) = ("milan".parse().unwrap(), "rome".parse().unwrap());
        let (by_hand, by_request) = (entry("Manual", "1"), entry("IncomingPeering", "1"));
        let made = |uid: &str, at: &str, state: &str| {
            let mut request = request(state);
            request.metadata.uid = Some(uid.to_owned());
            request.metadata.creation_timestamp = Some(serde_json::from_value(json!(at)).unwrap());
            request
        };
        let (then, later) = ("2026-01-01T00:00:10Z", "2026-01-01T00:00:11Z");
        assert!(!is_requested_again(&made("2", then, "Accepted"), &us, &by_hand));
        assert!(is_requested_again(&made("2", later, "Pending"), &us, &by_hand));
        assert!(!is_requested_again(&made("1", later, "Accepted"), &us, &by_request));
        assert!(is_requested_again(&made("2", then, "Accepted"), &us, &by_request));
        assert!(
            !is_requested_again(&made("2", later, "Refused"), &us, &by_request),
            "refused already"
        );
        assert!(!is_requested_again(&made("2", later, "Pending"), &them, &by_hand), "our own");
    }

    #[test]
    fn an_offer_is_orphaned_without_the_request_that_owns_it() {
        let made = |uid: &str| {
            let mut request = request("Accepted");
            request.metadata.uid = Some(uid.to_owned());
            request
        };
        let mut offer = offer("Accepted", &[]);
        let owner = json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ResourceRequest",
            "name": "rome", "uid": "first",
        });
        offer.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
        assert!(!is_orphaned(&offer, &[made("other"), made("first")]));
        assert!(is_orphaned(&offer, &[made("second")]), "of the same name, but another");
        assert!(is_orphaned(&offer, &[]));
    }

    #[test]
    fn the_incoming_condition_follows_request_and_offer() {
        assert_eq!(incoming(None, None).reason, "NotRequested");
        let asked = request("Accepted");
        assert_eq!(incoming(Some(&asked), None).reason, "Offering");
        let taken = offer("Accepted", &[]);
        assert!(incoming(Some(&asked), Some(&taken)).established);
        assert_eq!(incoming(Some(&request("Pending")), None).reason, "RequestPending");
        let returned = offer("Refused", &[]);
        let said = incoming(Some(&asked), Some(&returned));
        assert_eq!(said.reason, "OfferRefused");
    }
}
