//! What a peering needs next, in the cluster that asks for it: request, offer, and the way back.

mod milestone;

use tombolo_api::{
    ClusterName,
    discovery::{ForeignCluster, RequestState, condition::AUTHENTICATED},
    sharing::OfferPhase,
};

use crate::{
    condition::is_true,
    discovery::request_of,
    offer_stage::{End, OfferStage},
    view::{Offer, Request},
};
pub use milestone::Milestone;

/// What there is of the peering by which pods of this cluster run in another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing<'a> {
    /// Whether it is wanted.
    pub join: bool,
    /// Whether the other cluster has given this one an identity.
    pub authenticated: bool,
    /// Our request.
    pub request: Option<Request<'a>>,
    /// The other cluster's offer.
    pub offer: Option<Offer<'a>>,
    /// Whether namespaces of this cluster are, or are to be, there.
    pub namespaces: bool,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ask for resources.
    Request,
    /// Take the offer.
    Accept,
    /// Give the offer back: what runs by it is to end.
    Refuse,
    /// Take the request back.
    Withdraw,
    /// Nothing, for now or at all.
    Nothing,
}

/// How far the peering is: a word for programs, and one for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Whether pods can be sent.
    pub established: bool,
    /// The word for programs.
    pub reason: &'static str,
    /// The words for people.
    pub message: String,
}

/// What the peering needs next.
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
        // Also one that was withdrawn, so that it is not accepted when it comes back.
        Some(offer) if offer.answer != OfferPhase::Refused => Step::Refuse,
        Some(offer) if offer.stage.is_draining() => Step::Nothing,
        _ if there.namespaces => Step::Nothing,
        _ if there.request.is_some() => Step::Withdraw,
        _ => Step::Nothing,
    }
}

/// Whether the other cluster has given this one an identity, as far as is known.
pub fn is_authenticated(entry: &ForeignCluster) -> bool {
    let status = entry.status.as_ref();
    status.is_some_and(|status| is_true(&status.conditions, AUTHENTICATED))
}

/// How far it is.
pub fn state(there: &Outgoing<'_>, cluster: &str) -> State {
    let (established, reason, message) = match (there.request, there.offer) {
        (None, None) if !there.join => (false, "NotWanted", "spec.join is false".to_owned()),
        _ if !there.join => {
            (false, "Ending", format!("what runs in {cluster} is being taken back"))
        }
        _ if !there.authenticated => (
            false,
            "NotAuthenticated",
            format!("{cluster} has not given this cluster an identity yet: see Authenticated"),
        ),
        (Some(request), Some(_)) if request.state == RequestState::Refused => (
            false,
            "RequestRefused",
            format!("{cluster} has refused the request: what runs there is being taken back"),
        ),
        (_, Some(offer)) => match offer.stage {
            OfferStage::Serving => (true, "Established", format!("{cluster} lends resources")),
            OfferStage::Draining(End::Withdrawn) => (
                false,
                "OfferWithdrawn",
                format!("{cluster} has withdrawn its offer: what runs there is being taken back"),
            ),
            OfferStage::Over(End::Withdrawn) => {
                (false, "OfferWithdrawn", format!("{cluster} has withdrawn its offer"))
            }
            OfferStage::Pending
            | OfferStage::Draining(End::Returned)
            | OfferStage::Over(End::Returned) => {
                (false, "OfferPending", format!("the offer of {cluster} came in"))
            }
        },
        (Some(request), None) => match request.state {
            RequestState::Pending => (
                false,
                "RequestPending",
                format!("{cluster} has not accepted the request yet: somebody there may have to"),
            ),
            RequestState::Accepted => {
                (false, "RequestAccepted", format!("{cluster} is preparing an offer"))
            }
            RequestState::Refused => {
                (false, "RequestRefused", format!("{cluster} has refused the request"))
            }
        },
        (None, None) => (false, "Requesting", format!("asking {cluster} for resources")),
    };
    State { established, reason, message }
}

/// Whether our offer has outlived the request that it answers. The garbage collector would take it
/// away as well, but learns of new kinds only now and then.
pub fn is_left_over(offer: &Offer<'_>, requests: &[Request<'_>]) -> bool {
    let is_owner = |request: &Request<'_>| request.uid.is_some_and(|uid| offer.is_owned_by(uid));
    offer.deleted.is_none() && !requests.iter().any(is_owner)
}

/// How far a peering is by which pods of the other cluster run in this one.
pub fn incoming(request: Option<&Request<'_>>, offer: Option<&Offer<'_>>) -> State {
    let (established, reason, message) = match (request, offer) {
        (None, _) => (false, "NotAsked", "the other cluster asks for nothing".to_owned()),
        (Some(request), _) if request.state == RequestState::Refused => {
            let message =
                "the request was refused here: set its status.state to Accepted to accept it";
            (false, "Refused", message.to_owned())
        }
        (Some(request), _) if request.state == RequestState::Pending => (
            false,
            "Pending",
            "the request waits: set its status.state to Accepted to accept it".to_owned(),
        ),
        (Some(_), Some(offer)) if offer.stage == OfferStage::Serving => {
            (true, "Established", "the other cluster has taken the offer".to_owned())
        }
        (Some(_), Some(offer)) if offer.answer == OfferPhase::Refused => {
            (false, "OfferRefused", "the other cluster has given the offer back".to_owned())
        }
        (Some(_), Some(offer)) if offer.stage.is_withdrawn() => {
            (false, "OfferWithdrawn", "this cluster has withdrawn its offer".to_owned())
        }
        (Some(_), _) => (false, "Offering", "the other cluster has not taken it yet".to_owned()),
    };
    State { established, reason, message }
}

/// What becomes of a request when this cluster wants to be done with the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// It is the other cluster's: the answer is no.
    Refuse,
    /// It is ours: it is being taken back.
    Wait,
    /// It is the other cluster's and is refused: when to take it back is not for us to say.
    Leave,
}

/// What becomes of a request. The name says whose it is: it is all that the other can't choose.
pub fn farewell(request: &Request<'_>, us: &ClusterName) -> Farewell {
    if request.name == us.as_str() {
        Farewell::Wait
    } else if request.state == RequestState::Refused {
        Farewell::Leave
    } else {
        Farewell::Refuse
    }
}

/// Whether the other cluster has asked again after its entry was no more wanted. An entry that is
/// there because of a request says which one; of others, whole seconds are known.
pub fn is_asked_anew(request: &Request<'_>, us: &ClusterName, entry: &ForeignCluster) -> bool {
    let is_open = farewell(request, us) == Farewell::Refuse && !request.is_deleted;
    let ended = entry.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    is_open
        && match request_of(entry) {
            Some(uid) => request.uid != Some(uid),
            None => request.created.zip(ended).is_some_and(|(asked, ended)| asked > ended),
        }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{
        discovery::ResourceRequest, names::KUBELET_FINALIZER, sharing::ResourceOffer,
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

    fn farewell(request: &ResourceRequest, us: &ClusterName) -> Farewell {
        super::farewell(&Request::from_resource(request), us)
    }

    fn is_asked_anew(request: &ResourceRequest, us: &ClusterName, entry: &ForeignCluster) -> bool {
        super::is_asked_anew(&Request::from_resource(request), us, entry)
    }

    fn is_left_over(offer: &ResourceOffer, requests: &[ResourceRequest]) -> bool {
        let requests: Vec<_> = requests.iter().map(Request::from_resource).collect();
        super::is_left_over(&Offer::from_resource(offer), &requests)
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
    fn a_peering_ends_in_the_order_in_which_nothing_is_left() {
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
        assert_eq!(state(&there, "milan").reason, "NotWanted");
    }

    #[test]
    fn a_peering_that_is_wanted_again_waits_for_the_old_request_to_go() {
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
    fn a_peering_that_is_refused_is_over_until_it_is_accepted_again() {
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
    fn a_withdrawn_offer_is_drained_said_to_be_withdrawn_and_not_accepted() {
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
    fn who_is_to_be_forgotten_is_refused() {
        let us = "milan".parse().unwrap();
        assert_eq!(farewell(&request("Accepted"), &us), Farewell::Refuse);
        assert_eq!(farewell(&request("Pending"), &us), Farewell::Refuse);
        assert_eq!(farewell(&request("Refused"), &us), Farewell::Leave);
        assert_eq!(farewell(&request("Accepted"), &"rome".parse().unwrap()), Farewell::Wait);
    }

    #[test]
    fn who_asks_after_the_end_has_begun_is_not_refused() {
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
        assert!(!is_asked_anew(&made("2", then, "Accepted"), &us, &by_hand));
        assert!(is_asked_anew(&made("2", later, "Pending"), &us, &by_hand));
        assert!(!is_asked_anew(&made("1", later, "Accepted"), &us, &by_request));
        assert!(is_asked_anew(&made("2", then, "Accepted"), &us, &by_request));
        assert!(!is_asked_anew(&made("2", later, "Refused"), &us, &by_request), "refused already");
        assert!(!is_asked_anew(&made("2", later, "Pending"), &them, &by_hand), "our own");
    }

    #[test]
    fn an_offer_goes_with_the_request_that_it_answers_and_with_no_other() {
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
        assert!(!is_left_over(&offer, &[made("other"), made("first")]));
        assert!(is_left_over(&offer, &[made("second")]), "of the same name, but another");
        assert!(is_left_over(&offer, &[]));
    }

    #[test]
    fn the_other_side_is_told_too() {
        assert_eq!(incoming(None, None).reason, "NotAsked");
        let asked = request("Accepted");
        assert_eq!(incoming(Some(&asked), None).reason, "Offering");
        let taken = offer("Accepted", &[]);
        assert!(incoming(Some(&asked), Some(&taken)).established);
        assert_eq!(incoming(Some(&request("Pending")), None).reason, "Pending");
        let returned = offer("Refused", &[]);
        let said = incoming(Some(&asked), Some(&returned));
        assert_eq!(said.reason, "OfferRefused");
    }
}
