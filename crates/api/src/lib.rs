//! What goes over the wire between clusters and their components: the custom resources, the
//! messages of the address service (`ipam`), the JSON of the auth service, and the names and
//! labels that everybody agrees on. Nothing here talks to anybody.

// Every printer column has a type: two of the same are no mistake.
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
