//! Helpers for the tests of several crates: a cluster of the testbed as one side of a peering, with
//! the CRDs of Tombolo, its settings, and the objects that another cluster would create. Never part
//! of the product. Failures panic.

mod definitions;
mod dns_server;
mod identity;
mod objects;
mod settings;
mod side;
mod watches;

pub use definitions::define;
pub use dns_server::DnsServer;
pub use identity::condition;
pub use objects::{Global, Namespaced, Object, put};
pub use settings::settings;
pub use side::Side;
