//! Rights of a peer's identity in its tenant namespace and its twin namespaces. They grow when a
//! peering is accepted and shrink when it ends.

use k8s_openapi::api::rbac::v1::PolicyRule;
use tombolo_api::{
    ClusterName,
    discovery::RequestState,
    names::{ENDING_TWIN_ROLE, TENANT_ACCOUNT, TWIN_ROLE},
};

use crate::view::Request;

/// Stage of the peering with the owner of an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It only has an identity.
    Known,
    /// This cluster has requested a peering.
    Peered,
    /// This cluster has accepted its request: its pods may run here.
    Hosted,
}

/// The stage by the requests in the tenant namespace: the peer's, which has to be accepted, and our
/// own, by which we agree to an offer and a network. They differ by name: the peer can't write one
/// with our name. A request that is being deleted counts until it is gone, because the peering is
/// still being taken down.
pub fn stage<'a>(us: &ClusterName, requests: impl IntoIterator<Item = Request<'a>>) -> Stage {
    let stage = |request: Request<'_>| {
        let ours = request.name == us.as_str();
        match request.state {
            RequestState::Accepted | RequestState::Pending if ours => Stage::Peered,
            RequestState::Accepted => Stage::Hosted,
            RequestState::Pending | RequestState::Refused => Stage::Known,
        }
    };
    requests.into_iter().map(stage).max().unwrap_or(Stage::Known)
}

/// The ClusterRole of an identity in its twin namespaces: all that pods need while they may run
/// here, then only what deletes them.
pub fn twin_role(stage: Stage) -> &'static str {
    if stage >= Stage::Hosted { TWIN_ROLE } else { ENDING_TWIN_ROLE }
}

/// Rules of the identity in its tenant namespace, its only Role. It writes only objects with its
/// own name, by apply, because only then is `create` bound to a name. It may always read the
/// exchanged objects and delete its own, so that taking down a peering never fails for lack of
/// rights.
pub fn rules(peer: &ClusterName, stage: Stage) -> Vec<PolicyRule> {
    let mut rules = vec![rule("", "serviceaccounts/token", &["create"], Some(TENANT_ACCOUNT))];
    for (group, kind, from) in EXCHANGED {
        rules.push(rule(group, kind, &["list", "watch"], None));
        let verbs: &[&str] =
            if stage >= from { &["create", "delete", "get", "patch"] } else { &["delete", "get"] };
        rules.push(rule(group, kind, verbs, Some(peer.as_str())));
    }
    rules
}

/// The kinds that clusters exchange, and the first stage in which they do.
const EXCHANGED: [(&str, &str, Stage); 4] = [
    ("discovery.liqo.io", "resourcerequests", Stage::Known),
    ("net.liqo.io", "networkconfigs", Stage::Peered),
    ("sharing.liqo.io", "resourceoffers", Stage::Peered),
    ("virtualkubelet.liqo.io", "namespacemaps", Stage::Hosted),
];

fn rule(group: &str, resource: &str, verbs: &[&str], name: Option<&str>) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        resource_names: name.map(|name| vec![name.to_owned()]),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
        ..PolicyRule::default()
    }
}

#[cfg(test)]
mod tests {
    use tombolo_api::discovery::ResourceRequest;

    use super::*;

    fn stage<'a>(
        us: &ClusterName,
        requests: impl IntoIterator<Item = &'a ResourceRequest>,
    ) -> Stage {
        super::stage(us, requests.into_iter().map(Request::from_resource))
    }

    fn request(state: RequestState) -> ResourceRequest {
        let mut request: ResourceRequest = serde_json::from_value(serde_json::json!({
            "apiVersion": "discovery.liqo.io/v1alpha1",
            "kind": "ResourceRequest",
            "metadata": { "name": "rome" },
            "spec": {
                "clusterIdentity": { "clusterID": "r", "clusterName": "rome" },
                "authUrl": "https://rome",
            },
        }))
        .unwrap();
        request.status.get_or_insert_default().state = state;
        request
    }

    fn writable(stage: Stage) -> Vec<String> {
        let writes = |rule: &PolicyRule| rule.verbs.iter().any(|verb| verb == "patch");
        rules(&"rome".parse().unwrap(), stage)
            .into_iter()
            .filter(writes)
            .map(|rule| rule.resources.unwrap().concat())
            .collect()
    }

    #[test]
    fn our_own_or_an_accepted_request_makes_a_peering() {
        let (pending, accepted) = (request(RequestState::Pending), request(RequestState::Accepted));
        let (refused, us) = (request(RequestState::Refused), "milan".parse().unwrap());
        assert_eq!(stage(&us, []), Stage::Known);
        assert_eq!(stage(&us, [&pending, &refused]), Stage::Known);
        assert_eq!(stage(&us, [&pending, &accepted]), Stage::Hosted);
        let ours = "rome".parse().unwrap();
        assert_eq!(stage(&ours, [&pending]), Stage::Peered);
        assert_eq!(
            stage(&ours, [&accepted]),
            Stage::Peered,
            "our own request does not host the peer"
        );
        assert_eq!(stage(&ours, [&refused]), Stage::Known);
        let mut leaving = accepted.clone();
        leaving.metadata.deletion_timestamp =
            Some(serde_json::from_value(serde_json::json!("2026-05-01T12:00:00Z")).unwrap());
        assert_eq!(stage(&us, [&leaving]), Stage::Hosted, "the peering is still being taken down");
    }

    #[test]
    fn only_a_hosted_peer_may_create_objects_in_twin_namespaces() {
        assert_eq!(twin_role(Stage::Hosted), "liqo-twin");
        for stage in [Stage::Known, Stage::Peered] {
            assert_eq!(twin_role(stage), "liqo-twin-ending");
        }
    }

    #[test]
    fn before_a_peering_only_the_request_can_be_written() {
        assert_eq!(writable(Stage::Known), ["resourcerequests"]);
        assert_eq!(
            writable(Stage::Peered),
            ["resourcerequests", "networkconfigs", "resourceoffers"]
        );
        assert_eq!(
            writable(Stage::Hosted),
            ["resourcerequests", "networkconfigs", "resourceoffers", "namespacemaps"]
        );
    }

    #[test]
    fn writes_are_restricted_to_the_peers_name() {
        for stage in [Stage::Known, Stage::Peered, Stage::Hosted] {
            for rule in rules(&"rome".parse().unwrap(), stage) {
                let reads = rule.verbs.iter().all(|verb| verb == "list" || verb == "watch");
                assert!(reads || rule.resource_names.is_some(), "{rule:?}");
                assert!(!rule.verbs.iter().any(|verb| verb == "*" || verb == "update"), "{rule:?}");
                let names = rule.resource_names.unwrap_or_default().concat();
                assert!(["", "rome", "liqo-cluster"].contains(&names.as_str()));
            }
        }
    }
}
