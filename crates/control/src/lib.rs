//! Controllers, the address service, the auth service, discovery, the admission webhook.

pub mod auth;
pub mod auth_url;
mod binding;
mod by_tenant;
pub mod context;
pub mod control;
pub mod discovery;
pub mod foreign_cluster;
pub mod health;
pub mod identity;
pub mod ipam;
mod key_pair;
pub mod leader;
pub mod namespace_map;
pub mod namespace_offloading;
pub mod network_config;
mod object_error;
pub mod offer;
pub mod peering;
pub mod replicator;
pub mod shadow_endpoint_slice;
pub mod shadow_pod;
pub mod tunnel_endpoint;
pub mod twin_namespace;
pub mod webhook;
