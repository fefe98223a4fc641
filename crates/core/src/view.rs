//! Resources as decisions see them: one file a kind, with the few fields that decisions depend on.

mod offer;
mod request;

pub use offer::Offer;
pub use request::Request;
