//! Views of resources: for each kind, one file with the few fields that decisions depend on.

mod offer;
mod peer;
mod request;

pub use offer::Offer;
pub use peer::Peer;
pub use request::Request;
