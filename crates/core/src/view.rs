//! Views of resources: for each kind, one file with the few fields that decisions depend on.

mod offer;
mod request;

pub use offer::Offer;
pub use request::Request;
