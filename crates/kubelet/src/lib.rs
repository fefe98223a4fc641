//! Virtual nodes: the node objects, pod offloading, reflection, the kubelet API.

pub mod api;
pub mod node;
pub mod peer;
pub mod pods;
pub mod reflection;
