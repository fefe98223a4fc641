//! The wire formats of Tombolo: custom resources, messages of the address service (`ipam`), JSON of
//! the auth service, and well-known names and labels. No I/O.

// Printer columns repeat their types.
#![allow(clippy::duplicated_attributes)]

pub mod auth;
pub mod config;
pub mod discovery;
pub mod ipam;
pub mod names;
pub mod net;
pub mod offloading;
pub mod sharing;
pub mod virtualkubelet;

mod cidr;
mod cluster;
mod crd;
mod fingerprint;
mod reference;
mod schema;

pub use cidr::{Cidr, NatCidr, NotACidr};
pub use cluster::{ClusterId, ClusterIdentity, ClusterName, NotALabel, is_dns_label};
pub use crd::crds;
pub use fingerprint::{Fingerprint, NotAFingerprint};
pub use reference::Reference;
