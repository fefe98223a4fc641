//! All decisions, as pure functions: no I/O, no clock, no async.

pub mod admission;
pub mod condition;
pub mod digest;
pub mod discovery;
pub mod health;
pub mod identity;
pub mod ipam;
pub mod json;
pub mod limit;
pub mod network;
pub mod node;
pub mod offer;
pub mod offer_stage;
pub mod offloading;
pub mod owner;
pub mod peering;
pub mod plan;
pub mod quantity;
pub mod reflect;
pub mod replicate;
pub mod shadow_endpoint_slice;
pub mod shadow_pod;
pub mod tenant;
pub mod translate;
pub mod view;
pub mod watch_retry;
