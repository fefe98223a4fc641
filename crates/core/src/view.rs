//! Resources as decisions see them: one file a kind, with the few fields that decisions depend on.

mod offer;

pub use offer::Offer;
