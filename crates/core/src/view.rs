//! Views of resources: for each kind, one file with the few fields that decisions depend on.

mod domain;
mod entry;
mod offer;
mod peer;
mod request;

pub use domain::Domain;
pub use entry::Entry;
pub use offer::Offer;
pub use peer::Peer;
pub use request::Request;
