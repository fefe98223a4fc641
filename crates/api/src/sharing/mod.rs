//! `sharing.liqo.io`: resources offered to other clusters.

mod resource_offer;

pub use resource_offer::{
    OfferPhase, ResourceOffer, ResourceOfferSpec, ResourceOfferStatus, ResourceQuota, StorageClass,
};
