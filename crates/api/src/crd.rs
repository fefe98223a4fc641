//! The CRDs of all kinds, for the installer and for `crds/`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt;

use crate::{config, discovery, net, offloading, sharing, virtualkubelet};

/// The CRDs of all kinds. Use these instead of a kind's own [`crd`](CustomResourceExt::crd): their
/// schemas are cleaned up.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        config::ClusterConfig::crd(),
        discovery::ForeignCluster::crd(),
        discovery::ResourceRequest::crd(),
        discovery::SearchDomain::crd(),
        net::IpamStorage::crd(),
        net::NatMapping::crd(),
        net::NetworkConfig::crd(),
        net::TunnelEndpoint::crd(),
        offloading::NamespaceOffloading::crd(),
        sharing::ResourceOffer::crd(),
        virtualkubelet::NamespaceMap::crd(),
        virtualkubelet::ShadowEndpointSlice::crd(),
        virtualkubelet::ShadowPod::crd(),
    ];
    crds.iter_mut()
        .flat_map(|crd| &mut crd.spec.versions)
        .filter_map(|version| version.schema.as_mut()?.open_api_v3_schema.as_mut())
        .for_each(tidy);
    crds
}

/// Removes the parts of the derived schema that Kubernetes has no use for: `null` as a distinct
/// value (unset means the same, and the API server drops null values), formats of unsigned
/// integers, which cause warnings, titles, and line breaks of the source.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.title = None;
    if let Some(description) = &mut schema.description {
        *description = description.replace('\n', " ");
    }
    if schema.format.as_deref().is_some_and(|f| f.starts_with("uint")) {
        schema.format = None;
    }
    if let Some(properties) = &mut schema.properties {
        properties.values_mut().for_each(tidy);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}
