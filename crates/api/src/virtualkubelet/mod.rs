//! `virtualkubelet.liqo.io`: objects of offloading and reflection in the remote cluster.

mod namespace_map;
mod shadow_endpoint_slice;
mod shadow_pod;

pub use namespace_map::{
    MappingPhase, NamespaceMap, NamespaceMapSpec, NamespaceMapStatus, RemoteNamespace,
};
pub use shadow_endpoint_slice::{
    AddressType, EndpointSliceTemplate, ShadowEndpointSlice, ShadowEndpointSliceSpec,
};
pub use shadow_pod::{ShadowPod, ShadowPodSpec};
