//! Reflected EndpointSlices: only the endpoints that do not run in the remote cluster, with their
//! translated addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use tombolo_api::names::{
    ENDPOINT_SLICE_MANAGED_BY_LABEL, ENDPOINT_SLICE_REFLECTION, SERVICE_NAME_LABEL,
};
use tombolo_api::virtualkubelet::{
    AddressType, EndpointSliceTemplate, ShadowEndpointSlice, ShadowEndpointSliceSpec,
};

use super::metadata::{ReflectionRoute, reflected};
use super::service::is_of_api_server;
use crate::translate::{Location, Networks};

/// Kind in `targetRef` of a reflected endpoint: a pod of another cluster.
const REMOTE_POD: &str = "RemotePod";

/// The inputs for the translation of addresses to those in the remote cluster.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The virtual node of the remote cluster. The pods on it are local endpoints there.
    pub node: &'a str,
    /// The networks of the two clusters.
    pub networks: &'a Networks,
    /// Addresses from the address service, for endpoints that are pods of neither cluster.
    pub mapped: &'a BTreeMap<IpAddr, IpAddr>,
}

/// The reflected ShadowEndpointSlice. `None` if it is not reflected. Endpoints without an address
/// in the remote cluster are left out.
pub fn forge(
    home: &EndpointSlice,
    route: &ReflectionRoute,
    view: View<'_>,
) -> Option<ShadowEndpointSlice> {
    if !is_reflected(home) {
        return None;
    }
    let mut metadata = reflected(&home.metadata, route);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(ENDPOINT_SLICE_MANAGED_BY_LABEL.into(), ENDPOINT_SLICE_REFLECTION.into());
    let endpoints = lacking(home, view.node).filter_map(|endpoint| forge_endpoint(endpoint, view));
    let template = EndpointSliceTemplate {
        address_type: AddressType::IPv4,
        endpoints: endpoints.collect(),
        ports: home.ports.clone().unwrap_or_default(),
    };
    let spec = ShadowEndpointSliceSpec { template };
    Some(ShadowEndpointSlice { metadata, spec })
}

/// The addresses that the address service has to map: of pods of other clusters, of pods in
/// the host network, and of endpoints that are not pods.
pub fn untranslated(home: &EndpointSlice, node: &str, networks: &Networks) -> BTreeSet<IpAddr> {
    if !is_reflected(home) {
        return BTreeSet::new();
    }
    let addresses = lacking(home, node).flat_map(|endpoint| &endpoint.addresses);
    let addresses = addresses.filter_map(|address| address.parse().ok());
    let is_elsewhere = |ip: &IpAddr| matches!(networks.locate(*ip), Location::Elsewhere(_));
    addresses.filter(is_elsewhere).collect()
}

/// Whether a slice is reflected: not those with reflected endpoints, nor that of the API server.
fn is_reflected(slice: &EndpointSlice) -> bool {
    let label = |key| slice.metadata.labels.as_ref().and_then(|l| l.get(key)).map(String::as_str);
    let service = label(SERVICE_NAME_LABEL);
    slice.address_type == AddressType::IPv4.as_str()
        && service.is_some()
        && label(ENDPOINT_SLICE_MANAGED_BY_LABEL) != Some(ENDPOINT_SLICE_REFLECTION)
        && !is_of_api_server(slice.metadata.namespace.as_deref(), service)
}

/// The endpoints that do not run in the remote cluster.
fn lacking<'a>(slice: &'a EndpointSlice, node: &'a str) -> impl Iterator<Item = &'a Endpoint> {
    slice.endpoints.iter().filter(move |endpoint| endpoint.node_name.as_deref() != Some(node))
}

/// Leaves out nodes and zones: those of the home cluster mean nothing in the remote one.
fn forge_endpoint(home: &Endpoint, view: View<'_>) -> Option<Endpoint> {
    let addresses = home.addresses.iter().filter_map(|address| remote_address(address, view));
    let addresses: Vec<_> = addresses.map(|address| address.to_string()).collect();
    (!addresses.is_empty()).then(|| Endpoint {
        addresses,
        conditions: home.conditions.clone(),
        hostname: home.hostname.clone(),
        target_ref: home.target_ref.as_ref().map(|target| ObjectReference {
            kind: Some(REMOTE_POD.into()),
            name: target.name.clone(),
            namespace: target.namespace.clone(),
            uid: target.uid.clone(),
            ..ObjectReference::default()
        }),
        ..Endpoint::default()
    })
}

fn remote_address(address: &str, view: View<'_>) -> Option<IpAddr> {
    match view.networks.locate(address.parse().ok()?) {
        Location::There(pod) => Some(pod.real.0),
        Location::Here(pod) => Some(pod.translated.0),
        Location::Elsewhere(address) => view.mapped.get(&address).copied(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::metadata::tests::to_milan;
    use super::*;
    use crate::translate::CidrTranslation;

    /// Both have the PodCIDR 10.244.0.0/16, translated to 10.71.0.0/16 in the other cluster.
    fn networks() -> Networks {
        let named = |real: &str, name: &str| {
            CidrTranslation::new(real.parse().unwrap(), name.parse().unwrap()).unwrap()
        };
        Networks {
            local_pods: named("10.244.0.0/16", "10.71.0.0/16"),
            local_external: named("10.70.0.0/16", "10.72.0.0/16"),
            remote_pods: named("10.244.0.0/16", "10.71.0.0/16"),
            remote_external: named("10.70.0.0/16", "10.72.0.0/16"),
        }
    }

    fn slice(labels: &Value, endpoints: &Value) -> EndpointSlice {
        serde_json::from_value(json!({
            "metadata": { "name": "web-x7k2p", "namespace": "shop", "labels": labels },
            "addressType": "IPv4", "endpoints": endpoints,
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        }))
        .unwrap()
    }

    fn web() -> Value {
        json!({
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        })
    }

    fn endpoint(address: &str, node: &str) -> Value {
        json!({
            "addresses": [address], "nodeName": node, "zone": "z",
            "hints": { "forZones": [{ "name": "z" }] },
            "conditions": { "ready": false, "serving": true, "terminating": true },
            "hostname": "web-0",
            "targetRef": { "kind": "Pod", "name": "web-0", "namespace": "shop", "uid": "u" },
        })
    }

    fn forged(slice: &EndpointSlice, mapped: &[(&str, &str)]) -> Option<ShadowEndpointSlice> {
        let ip = |text: &str| text.parse().unwrap();
        let mapped = mapped.iter().map(|(from, to)| (ip(from), ip(to))).collect();
        let view = View { node: "liqo-milan", networks: &networks(), mapped: &mapped };
        forge(slice, &to_milan(), view)
    }

    #[test]
    fn only_endpoints_outside_of_the_destination_are_reflected_with_translated_addresses() {
        let slice = slice(
            &web(),
            &json!([endpoint("10.244.1.5", "rome-1"), endpoint("10.71.3.3", "liqo-milan")]),
        );
        insta::assert_yaml_snapshot!(forged(&slice, &[]));
    }

    #[test]
    fn endpoints_that_are_not_pods_of_this_cluster_get_the_address_from_the_address_service() {
        let endpoints = json!([
            endpoint("10.244.1.5", "rome-1"),
            endpoint("10.80.0.9", "liqo-paris"),
            endpoint("172.18.0.2", "rome-2"),
            endpoint("10.71.3.3", "liqo-milan"),
        ]);
        let slice = slice(&web(), &endpoints);
        let untranslated = untranslated(&slice, "liqo-milan", &networks());
        let untranslated: Vec<_> = untranslated.iter().map(IpAddr::to_string).collect();
        assert_eq!(untranslated, ["10.80.0.9", "172.18.0.2"]);
        let shadow = forged(&slice, &[("10.80.0.9", "10.72.0.4")]).unwrap();
        let endpoints = shadow.spec.template.endpoints.iter();
        let addresses: Vec<_> = endpoints.flat_map(|endpoint| &endpoint.addresses).collect();
        assert_eq!(addresses, ["10.71.1.5", "10.72.0.4"]);
    }

    #[test]
    fn a_pod_of_the_destination_has_its_real_address() {
        let slice = slice(&web(), &json!([{ "addresses": ["10.71.3.3"] }]));
        assert!(untranslated(&slice, "liqo-milan", &networks()).is_empty());
        let endpoints = forged(&slice, &[]).unwrap().spec.template.endpoints;
        assert_eq!(endpoints[0].addresses, ["10.244.3.3"]);
    }

    #[test]
    fn slices_without_an_endpoint_for_the_destination_are_empty() {
        let slice = slice(&web(), &json!([endpoint("10.71.3.3", "liqo-milan")]));
        assert_eq!(forged(&slice, &[]).unwrap().spec.template.endpoints, []);
    }

    #[test]
    fn slices_of_other_clusters_of_no_service_or_of_another_family_are_not_reflected() {
        let none = json!([]);
        let reflected = json!({
            "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "endpointslice.reflection.liqo.io",
        });
        assert_eq!(forged(&slice(&reflected, &none), &[]), None);
        assert_eq!(forged(&slice(&json!({}), &none), &[]), None);
        let six = EndpointSlice { address_type: "IPv6".into(), ..slice(&web(), &none) };
        assert_eq!(forged(&six, &[]), None);
        let labels = json!({ "kubernetes.io/service-name": "kubernetes" });
        let mut api_server = slice(&labels, &json!([endpoint("172.18.0.2", "rome-1")]));
        api_server.metadata.namespace = Some("default".into());
        assert_eq!(forged(&api_server, &[]), None);
        assert!(untranslated(&api_server, "liqo-milan", &networks()).is_empty());
    }
}
