//! The EndpointSlice that a ShadowEndpointSlice stands for.
