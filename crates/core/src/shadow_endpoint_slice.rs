//! The EndpointSlice of a ShadowEndpointSlice. Its endpoints are ready only while their cluster is
//! reachable.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::core::{ObjectMeta, Resource as _};
use tombolo_api::ClusterId;
use tombolo_api::names::{
    ENDPOINT_SLICE_MANAGED_BY_LABEL, ENDPOINT_SLICE_REFLECTION, FORGED_ANNOTATION, ORIGIN_LABEL,
};
use tombolo_api::virtualkubelet::ShadowEndpointSlice;

use crate::{node, view::Peer};

/// The desired EndpointSlice of a ShadowEndpointSlice.
pub fn forge(shadow: &ShadowEndpointSlice, origin_is_reachable: bool) -> EndpointSlice {
    let template = &shadow.spec.template;
    let mut labels = shadow.metadata.labels.clone().unwrap_or_default();
    labels.insert(ENDPOINT_SLICE_MANAGED_BY_LABEL.into(), ENDPOINT_SLICE_REFLECTION.into());
    let mut annotations = shadow.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(FORGED_ANNOTATION);
    let endpoints =
        template.endpoints.iter().map(|endpoint| enforced(endpoint, origin_is_reachable));
    EndpointSlice {
        metadata: ObjectMeta {
            name: shadow.metadata.name.clone(),
            namespace: shadow.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: shadow.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        address_type: template.address_type.as_str().into(),
        endpoints: endpoints.collect(),
        ports: Some(template.ports.clone()),
    }
}

/// The cluster of the endpoints of a ShadowEndpointSlice.
pub fn origin(shadow: &ShadowEndpointSlice) -> Option<ClusterId> {
    shadow.metadata.labels.as_ref()?.get(ORIGIN_LABEL)?.parse().ok()
}

/// Whether the endpoints of a peer can be used: its pods are reached through the tunnel, and without
/// its API server the readiness of endpoints is unknown.
pub fn is_reachable(peer: &Peer<'_>) -> bool {
    node::health(Some(peer)).is_ok()
}

/// Whether an EndpointSlice is controlled by this ShadowEndpointSlice.
pub fn belongs_to(slice: &EndpointSlice, shadow: &ShadowEndpointSlice) -> bool {
    let mut owners = slice.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        owner.controller == Some(true) && Some(&owner.uid) == shadow.metadata.uid.as_ref()
    })
}

/// Whether an EndpointSlice needs no change.
pub fn is_up_to_date(have: &EndpointSlice, want: &EndpointSlice) -> bool {
    let (have_meta, want_meta) = (&have.metadata, &want.metadata);
    let ports = |slice: &EndpointSlice| slice.ports.clone().unwrap_or_default();
    have.endpoints == want.endpoints
        && ports(have) == ports(want)
        && have_meta.labels == want_meta.labels
        && have_meta.annotations == want_meta.annotations
        && have_meta.owner_references == want_meta.owner_references
}

fn enforced(endpoint: &Endpoint, origin_is_reachable: bool) -> Endpoint {
    let mut endpoint = endpoint.clone();
    // The API server adds conditions to an endpoint without any.
    let conditions = endpoint.conditions.get_or_insert_default();
    if !origin_is_reachable {
        conditions.ready = Some(false);
        conditions.serving = Some(false);
    }
    endpoint
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tombolo_api::discovery::ForeignCluster;

    use super::*;

    fn shadow() -> ShadowEndpointSlice {
        serde_json::from_value(json!({
            "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "ShadowEndpointSlice",
            "metadata": {
                "name": "web-x7k2p", "namespace": "shop-rome", "uid": "u",
                "labels": {
                    "kubernetes.io/service-name": "web",
                    "endpointslice.kubernetes.io/managed-by": "endpointslice.reflection.liqo.io",
                    "virtualkubelet.liqo.io/origin": "rome-id",
                    "virtualkubelet.liqo.io/destination": "milan-id",
                },
                "annotations": { "liqo.io/forged": "0123" },
            },
            "spec": { "template": {
                "addressType": "IPv4",
                "endpoints": [
                    { "addresses": ["10.71.1.5"] },
                    { "addresses": ["10.71.1.6"], "conditions": { "ready": true } },
                    { "addresses": ["10.71.1.7"], "conditions": {
                        "ready": false, "serving": true, "terminating": true,
                    } },
                ],
                "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
            } },
        }))
        .unwrap()
    }

    fn cluster(conditions: &[(&str, &str)]) -> ForeignCluster {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status)| {
                json!({
                    "type": type_, "status": status, "reason": "R", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": "rome" }, "spec": { "authUrl": "https://192.0.2.1" },
            "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    #[test]
    fn the_slice_follows_the_template_while_the_origin_is_reachable() {
        insta::assert_yaml_snapshot!(forge(&shadow(), true));
    }

    #[test]
    fn no_endpoint_is_ready_while_the_origin_is_unreachable() {
        let slice = forge(&shadow(), false);
        let conditions = slice.endpoints.iter().map(|endpoint| endpoint.conditions.clone());
        let conditions: Vec<_> = conditions.flatten().collect();
        assert_eq!(conditions.len(), 3);
        assert!(conditions.iter().all(|c| c.ready == Some(false) && c.serving == Some(false)));
        assert_eq!(conditions[2].terminating, Some(true));
    }

    #[test]
    fn a_reachable_cluster_needs_both_tunnel_and_api_server() {
        let (tunnel, api) = ("TunnelEndpoint", "APIServer");
        let is_reachable = |cluster: &ForeignCluster| is_reachable(&Peer::from_resource(cluster));
        assert!(is_reachable(&cluster(&[(tunnel, "True"), (api, "True")])));
        assert!(!is_reachable(&cluster(&[(tunnel, "False"), (api, "True")])));
        assert!(!is_reachable(&cluster(&[(tunnel, "True"), (api, "Unknown")])));
        assert!(!is_reachable(&cluster(&[(tunnel, "True")])));
        assert!(!is_reachable(&cluster(&[])));
    }

    #[test]
    fn a_slice_is_identified_by_its_owner_and_compared_by_the_written_fields() {
        let want = forge(&shadow(), true);
        let mut have = want.clone();
        have.metadata.resource_version = Some("7".into());
        assert!(belongs_to(&have, &shadow()) && is_up_to_date(&have, &want));
        assert!(!is_up_to_date(&have, &forge(&shadow(), false)));
        have.metadata.owner_references = None;
        assert!(!belongs_to(&have, &shadow()) && !is_up_to_date(&have, &want));
    }
}
