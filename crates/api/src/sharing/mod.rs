//! `sharing.liqo.io`: what one cluster offers to another.

mod resource_offer;

pub use resource_offer::{
    OfferPhase, ResourceOffer, ResourceOfferSpec, ResourceOfferStatus, ResourceQuota, StorageClass,
};
