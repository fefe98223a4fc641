//! Views of resources: for each kind, one file with the few fields that decisions depend on.

mod domain;
mod entry;
mod namespace_map;
mod network_config;
mod offer;
mod peer;
mod request;
mod tunnel_endpoint;

pub use domain::Domain;
pub use entry::Entry;
pub use namespace_map::Map;
pub use network_config::Config;
pub use offer::Offer;
pub use peer::Peer;
pub use request::Request;
pub use tunnel_endpoint::Endpoint;
