//! The stage of an offer. The state of its virtual node, NamespaceMap and peering depends on it.

use tombolo_api::sharing::OfferPhase;

/// The stage of an offer in the home cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferStage {
    /// The home cluster has not answered it.
    Pending,
    /// Accepted: it has a virtual node, or will get one.
    Serving,
    /// It has ended. Its virtual node remains until its pods have terminated.
    Draining(End),
    /// It has ended, and has no virtual node.
    Over(End),
}

/// The reason why an offer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The home cluster has refused it or reset its answer, and can still accept it.
    Returned,
    /// The provider has withdrawn it, by `withdrawalTimestamp` or by deletion. The home cluster
    /// can't accept it any more.
    Withdrawn,
}

impl OfferStage {
    /// Decides from the home cluster's answer, a withdrawal by the provider, and the existence of
    /// a virtual node. An offer with a node is always drained first.
    pub fn decide(answer: OfferPhase, withdrawn: bool, has_node: bool) -> Self {
        let end = match answer {
            _ if withdrawn => End::Withdrawn,
            OfferPhase::Accepted => return Self::Serving,
            OfferPhase::Pending if !has_node => return Self::Pending,
            OfferPhase::Pending | OfferPhase::Refused => End::Returned,
        };
        if has_node { Self::Draining(end) } else { Self::Over(end) }
    }

    /// Whether its virtual node is being drained.
    pub fn is_draining(self) -> bool {
        matches!(self, Self::Draining(_))
    }

    /// Whether it has a virtual node, or will get one.
    pub fn needs_node(self) -> bool {
        self == Self::Serving || self.is_draining()
    }

    /// Whether the home cluster can accept it.
    pub fn can_be_accepted(self) -> bool {
        matches!(self, Self::Pending | Self::Draining(End::Returned) | Self::Over(End::Returned))
    }

    /// Whether the provider has withdrawn it.
    pub fn is_withdrawn(self) -> bool {
        matches!(self, Self::Draining(End::Withdrawn) | Self::Over(End::Withdrawn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use OfferPhase::{Accepted, Pending, Refused};

    #[test]
    fn an_accepted_offer_serves_until_it_is_returned_or_withdrawn() {
        for has_node in [false, true] {
            assert_eq!(OfferStage::decide(Accepted, false, has_node), OfferStage::Serving);
        }
        let (returned, withdrawn) = (End::Returned, End::Withdrawn);
        assert_eq!(OfferStage::decide(Refused, false, true), OfferStage::Draining(returned));
        assert_eq!(OfferStage::decide(Refused, false, false), OfferStage::Over(returned));
        assert_eq!(OfferStage::decide(Accepted, true, true), OfferStage::Draining(withdrawn));
        assert_eq!(OfferStage::decide(Accepted, true, false), OfferStage::Over(withdrawn));
    }

    #[test]
    fn a_node_is_drained_before_an_offer_is_over_or_waits_again() {
        for answer in [Pending, Refused] {
            assert!(OfferStage::decide(answer, false, true).is_draining());
        }
        for answer in [Pending, Accepted, Refused] {
            assert!(OfferStage::decide(answer, true, true).is_draining());
        }
        assert_eq!(OfferStage::decide(Pending, false, false), OfferStage::Pending);
    }

    #[test]
    fn only_a_withdrawn_offer_can_not_be_accepted_again() {
        for answer in [Pending, Refused] {
            for has_node in [false, true] {
                assert!(OfferStage::decide(answer, false, has_node).can_be_accepted());
                let withdrawn = OfferStage::decide(answer, true, has_node);
                assert!(withdrawn.is_withdrawn() && !withdrawn.can_be_accepted());
            }
        }
    }
}
