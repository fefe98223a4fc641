//! Makes EndpointSlices of ShadowEndpointSlices.
