//! The reflected kinds: their local and their remote type.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Secret, Service},
    discovery::v1::EndpointSlice,
};
use serde::Serialize;
use tombolo_api::virtualkubelet::ShadowEndpointSlice;
use tombolo_core::{
    reflect::{
        config_map,
        endpoint_slice::{self, View},
        metadata::ReflectionRoute,
        secret, service,
    },
    translate::Networks,
};

use super::home::Namespaced;

/// A reflected kind.
pub trait Kind: Send + Sync + 'static {
    /// The type in this cluster.
    type Home: Namespaced;
    /// The type in the remote cluster.
    type Remote: Namespaced + Serialize;

    /// Whether it contains addresses to translate.
    const HAS_ADDRESSES: bool = false;

    /// Whether users of the remote cluster may create objects of this kind with the same name.
    const IS_COMMON: bool = true;

    /// The remote object. `None`: it is not reflected.
    fn forge(
        home: &Self::Home,
        route: &ReflectionRoute,
        view: Option<View<'_>>,
    ) -> Option<Self::Remote>;

    /// Addresses that the address service has to map.
    fn unnamed(_home: &Self::Home, _node: &str, _networks: &Networks) -> BTreeSet<IpAddr> {
        BTreeSet::new()
    }
}

/// Services.
#[derive(Debug)]
pub struct Services;

impl Kind for Services {
    type Home = Service;
    type Remote = Service;

    fn forge(home: &Service, route: &ReflectionRoute, _: Option<View<'_>>) -> Option<Service> {
        service::forge(home, route)
    }
}

/// EndpointSlices, reflected as ShadowEndpointSlices.
#[derive(Debug)]
pub struct EndpointSlices;

impl Kind for EndpointSlices {
    type Home = EndpointSlice;
    type Remote = ShadowEndpointSlice;

    const HAS_ADDRESSES: bool = true;
    const IS_COMMON: bool = false;

    fn forge(
        home: &EndpointSlice,
        route: &ReflectionRoute,
        view: Option<View<'_>>,
    ) -> Option<ShadowEndpointSlice> {
        endpoint_slice::forge(home, route, view?)
    }

    fn unnamed(home: &EndpointSlice, node: &str, networks: &Networks) -> BTreeSet<IpAddr> {
        endpoint_slice::unnamed(home, node, networks)
    }
}

/// ConfigMaps.
#[derive(Debug)]
pub struct ConfigMaps;

impl Kind for ConfigMaps {
    type Home = ConfigMap;
    type Remote = ConfigMap;

    fn forge(home: &ConfigMap, route: &ReflectionRoute, _: Option<View<'_>>) -> Option<ConfigMap> {
        config_map::forge(home, route)
    }
}

/// Secrets.
#[derive(Debug)]
pub struct Secrets;

impl Kind for Secrets {
    type Home = Secret;
    type Remote = Secret;

    fn forge(home: &Secret, route: &ReflectionRoute, _: Option<View<'_>>) -> Option<Secret> {
        secret::forge(home, route)
    }
}
