//! What of the home cluster is in the remote one, and what comes back.

pub mod change;
pub mod config_map;
pub mod endpoint_slice;
pub mod metadata;
pub mod pod;
pub mod pod_status;
pub mod secret;
pub mod service;
