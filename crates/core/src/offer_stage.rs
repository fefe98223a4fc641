//! The stage of an offer. Its virtual node, its NamespaceMap and its peering follow from it.

use tombolo_api::sharing::OfferPhase;

/// The stage that an offer has reached in the home cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferStage {
    /// The home cluster has not answered it.
    Pending,
    /// Accepted: it has a virtual node, or gets one.
    Serving,
    /// It has ended, and its virtual node remains until the pods there have ended.
    Draining(End),
    /// It has ended, and has no virtual node.
    Over(End),
}

/// The way in which an offer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The home cluster does not accept it, but can do so again.
    Returned,
    /// The provider has withdrawn it, by `withdrawalTimestamp` or by deletion: no answer of the
    /// home cluster changes that.
    Withdrawn,
}

impl OfferStage {
    /// Decides from the home cluster's answer, a withdrawal by the provider, and the existence of
    /// a virtual node. Whatever ends an offer with a node, the pods there come first.
    pub fn decide(answer: OfferPhase, withdrawn: bool, has_node: bool) -> Self {
        let end = match answer {
            _ if withdrawn => End::Withdrawn,
            OfferPhase::Accepted => return Self::Serving,
            OfferPhase::Pending if !has_node => return Self::Pending,
            OfferPhase::Pending | OfferPhase::Refused => End::Returned,
        };
        if has_node { Self::Draining(end) } else { Self::Over(end) }
    }

    /// Whether pods are leaving its virtual node.
    pub fn is_draining(self) -> bool {
        matches!(self, Self::Draining(_))
    }

    /// Whether it has a virtual node, or gets one.
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
    fn only_the_provider_ends_an_offer_for_good() {
        for answer in [Pending, Refused] {
            for has_node in [false, true] {
                assert!(OfferStage::decide(answer, false, has_node).can_be_accepted());
                let withdrawn = OfferStage::decide(answer, true, has_node);
                assert!(withdrawn.is_withdrawn() && !withdrawn.can_be_accepted());
            }
        }
    }
}
