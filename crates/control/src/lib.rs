//! Controllers, the address service, the auth service, discovery, the admission webhook. The binary
//! runs [`control`], [`auth`] and [`discovery`], and prints the URL that [`auth_url`] finds.

pub mod auth;
pub mod auth_url;
pub mod control;
pub mod discovery;
#[doc(hidden)]
pub mod testing;

mod binding;
mod by_tenant;
mod context;
mod foreign_cluster;
mod health;
mod identity;
mod ipam;
mod key_pair;
mod leader;
mod namespace_map;
mod namespace_offloading;
mod network_config;
mod object_error;
mod offer;
mod peering;
mod replicator;
mod shadow_endpoint_slice;
mod shadow_pod;
mod tunnel_endpoint;
mod twin_namespace;
mod webhook;
