//! The kinds that are reflected: what each is at home, what it is over there.

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

/// A kind that is reflected.
pub trait Kind: Send + Sync + 'static {
    /// What it is in this cluster.
    type Home: Namespaced;
    /// What it is over there.
    type Remote: Namespaced + Serialize;

    /// Whether addresses are in it, which are others over there.
    const HAS_ADDRESSES: bool = false;

    /// Whether somebody else may have made one of the same name over there.
    const IS_COMMON: bool = true;

    /// The object over there. `None`: it is not reflected.
    fn forge(
        home: &Self::Home,
        route: &ReflectionRoute,
        view: Option<View<'_>>,
    ) -> Option<Self::Remote>;

    /// The addresses that only the address service can name.
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

/// EndpointSlices, which are ShadowEndpointSlices over there.
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
