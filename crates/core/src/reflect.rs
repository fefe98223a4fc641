//! Reflection of objects to a remote cluster, and of pod status back to the home cluster.

pub mod change;
pub mod config_map;
pub mod endpoint_slice;
pub mod metadata;
pub mod pod;
pub mod pod_status;
pub mod secret;
pub mod service;
