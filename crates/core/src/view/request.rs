//! The view of a ResourceRequest.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tombolo_api::{
    ClusterIdentity,
    discovery::{RequestState, ResourceRequest},
};

/// The fields of a ResourceRequest that decisions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Name of the object: the cluster name of its consumer. It is the only field that the consumer
    /// can't choose freely.
    pub name: &'a str,
    /// Its tenant namespace.
    pub namespace: &'a str,
    /// Uid of the object.
    pub uid: Option<&'a str>,
    /// The consumer, as claimed in the spec.
    pub cluster: &'a ClusterIdentity,
    /// URL of the auth service of the consumer.
    pub auth_url: &'a str,
    /// The answer of the provider.
    pub state: RequestState,
    /// Whether it has a status.
    pub has_status: bool,
    /// Its creation time.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_deleted: bool,
}

impl<'a> Request<'a> {
    /// The view of this resource.
    pub fn from_resource(request: &'a ResourceRequest) -> Self {
        let (meta, spec, status) = (&request.metadata, &request.spec, request.status.as_ref());
        Self {
            name: meta.name.as_deref().unwrap_or_default(),
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref(),
            cluster: &spec.cluster_identity,
            auth_url: &spec.auth_url,
            state: status.map(|status| status.state).unwrap_or_default(),
            has_status: status.is_some(),
            created: meta.creation_timestamp.as_ref().map(|Time(time)| *time),
            is_deleted: meta.deletion_timestamp.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_request_without_a_status_is_pending() {
        let request: ResourceRequest = serde_json::from_value(json!({
            "metadata": { "name": "rome" },
            "spec": {
                "clusterIdentity": { "clusterID": "rome-id", "clusterName": "rome" },
                "authUrl": "https://rome",
            },
        }))
        .unwrap();
        let view = Request::from_resource(&request);
        assert_eq!((view.state, view.has_status), (RequestState::Pending, false));
    }
}
