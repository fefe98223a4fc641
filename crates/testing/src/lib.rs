//! What the tests of several crates share: a cluster of the testbed as one side of a peering, with
//! our kinds, its settings, and what another cluster would have brought about. Never part of the
//! product. What it can't do it says by a panic.

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
