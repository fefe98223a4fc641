//! How far a peering has come, told from the objects that it leaves on its way.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::{reflector::Store, watcher};
use kube::{Api, Client, ResourceExt};
use tombolo_api::discovery::{
    AuthStatus, ForeignCluster, RequestState, ResourceRequest, condition as conditions,
};
use tombolo_api::net::{ConnectionStatus, TunnelEndpoint};
use tombolo_api::sharing::{OfferPhase, ResourceOffer};
use tombolo_api::virtualkubelet::NamespaceMap;
use tombolo_api::{ClusterId, names};

use crate::watching::{Watches, condition, is_true};

/// The objects of one peering, kept up to date.
pub struct Peering {
    name: String,
    clusters: Store<ForeignCluster>,
    requests: Store<ResourceRequest>,
    offers: Store<ResourceOffer>,
    tunnels: Store<TunnelEndpoint>,
    maps: Store<NamespaceMap>,
    nodes: Store<Node>,
}

/// The same at one moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub cluster: Option<Arc<ForeignCluster>>,
    pub request: Option<Arc<ResourceRequest>>,
    pub offer: Option<Arc<ResourceOffer>>,
    pub tunnel: Option<Arc<TunnelEndpoint>>,
    pub map: Option<Arc<NamespaceMap>>,
    pub node: Option<Arc<Node>>,
}

/// What has become of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Established { node: String },
    Refused { why: String },
    Waiting { done: usize, waiting_for: &'static str },
}

/// The token that somebody has just given, to be shown to the other cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// None was.
    NotGiven,
    /// From here on it is shown, and what comes of it counts.
    Given,
    /// Another one was not taken before: what the status says of a token may still be about that.
    GivenInsteadOfAnother,
}

impl Peering {
    pub fn watch(client: &Client, watches: &mut Watches, name: &str) -> Self {
        let all = watcher::Config::default;
        let virtual_nodes = format!("{}={}", names::TYPE_LABEL, names::VIRTUAL_NODE);
        Self {
            name: name.to_owned(),
            clusters: watches
                .keep(Api::all(client.clone()), all().fields(&format!("metadata.name={name}"))),
            requests: watches.keep(Api::all(client.clone()), all()),
            offers: watches.keep(Api::all(client.clone()), all()),
            tunnels: watches.keep(Api::all(client.clone()), all()),
            maps: watches.keep(Api::all(client.clone()), all()),
            nodes: watches.keep(Api::all(client.clone()), all().labels(&virtual_nodes)),
        }
    }

    pub fn view(&self) -> View {
        let clusters = self.clusters.state();
        let Some(cluster) = clusters.into_iter().find(|fc| fc.name_any() == self.name) else {
            return View::default();
        };
        let mut view = View { cluster: Some(Arc::clone(&cluster)), ..View::default() };
        let Some(id) = cluster.spec.cluster_identity.as_ref().map(|c| c.cluster_id.clone()) else {
            return view;
        };
        view.request = self.requests.state().into_iter().find(|o| goes_to(o.as_ref(), &id));
        view.offer = self.offers.state().into_iter().find(|o| comes_from(o.as_ref(), &id));
        view.map = self.maps.state().into_iter().find(|o| goes_to(o.as_ref(), &id));
        view.tunnel = self.tunnels.state().into_iter().find(|t| t.spec.cluster_id == id);
        let node = view.offer.as_ref().and_then(|o| o.status.as_ref()?.virtual_node.clone());
        let node = node.unwrap_or_else(|| {
            let name = &cluster.spec.cluster_identity.as_ref().expect("it has an id").cluster_name;
            names::virtual_node(name, &id, |_| false)
        });
        view.node = self.nodes.state().into_iter().find(|n| n.name_any() == node);
        view
    }
}

/// Whether an object is one of ours, copied to this cluster.
pub fn goes_to(object: &impl ResourceExt, id: &ClusterId) -> bool {
    object.labels().get(names::REPLICATE_TO_LABEL).is_some_and(|to| to == id.as_str())
}

/// Whether an object is a copy from this cluster.
pub fn comes_from(object: &impl ResourceExt, id: &ClusterId) -> bool {
    object.labels().get(names::REPLICATED_FROM_LABEL).is_some_and(|from| from == id.as_str())
}

impl Token {
    /// The same, when there was time enough to show it.
    fn tried(self) -> Self {
        if self == Self::GivenInsteadOfAnother { Self::Given } else { self }
    }
}

impl View {
    /// What is waited for, one after the other.
    pub const STEPS: [&'static str; 6] = [
        "waiting for an identity there",
        "waiting until the request is accepted",
        "waiting for an offer",
        "waiting until the networks are agreed upon",
        "waiting for the tunnel",
        "waiting for the virtual node",
    ];

    pub fn of(cluster: &ForeignCluster) -> Self {
        Self { cluster: Some(Arc::new(cluster.clone())), ..Self::default() }
    }

    pub fn outcome(&self, token: Token) -> Outcome {
        if let Some(why) = self.refused(token) {
            return Outcome::Refused { why };
        }
        let steps = self.steps();
        match steps.iter().position(|done| !done) {
            Some(done) => Outcome::Waiting { done, waiting_for: Self::STEPS[done] },
            None => Outcome::Established {
                node: self.node.as_ref().map(|node| node.name_any()).unwrap_or_default(),
            },
        }
    }

    pub fn is_authenticated(&self) -> bool {
        let status = self.cluster.as_ref().and_then(|cluster| cluster.status.as_ref());
        status.is_some_and(|status| {
            status.auth_status == Some(AuthStatus::Accepted)
                || is_true(&status.conditions, conditions::AUTHENTICATED)
        })
    }

    pub fn is_connected(&self) -> bool {
        self.connection() == Some(ConnectionStatus::Connected)
    }

    pub fn node_is_ready(&self) -> bool {
        self.node.as_deref().is_some_and(node_is_ready)
    }

    /// Whether pods from there run, or can run, in this cluster.
    pub fn is_incoming(&self) -> bool {
        let status = self.cluster.as_ref().and_then(|cluster| cluster.status.as_ref());
        let incoming = status.and_then(|status| status.incoming.as_ref());
        incoming.is_some_and(|incoming| incoming.peered || incoming.peering_request.is_some())
    }

    /// The step that is not done, why, and what to do.
    pub fn stuck(&self, token: Token) -> String {
        let step = self.stuck_step(token);
        match self.unreachable() {
            Some(why) => format!(
                "{why}. Check that the cluster runs, and that its API server can be reached from \
                 this cluster's nodes.\n{step}"
            ),
            None => step,
        }
    }

    /// What was tried at the other cluster's API server, if it does not answer.
    pub fn unreachable(&self) -> Option<&str> {
        let all = &self.cluster.as_ref()?.status.as_ref()?.conditions;
        let condition = condition(all, conditions::API_SERVER)?;
        (condition.status == "False").then_some(condition.message.as_str())
    }

    fn stuck_step(&self, token: Token) -> String {
        let Some(cluster) = &self.cluster else {
            return "The ForeignCluster is gone.".to_owned();
        };
        let (name, url) = (cluster.name_any(), &cluster.spec.auth_url);
        let step = self.steps().iter().position(|done| !done).unwrap_or(Self::STEPS.len());
        let says = |kind: &str| {
            let all = cluster.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            match condition(all, kind) {
                Some(condition) if !condition.message.is_empty() => format!(
                    " Condition {kind} is {} ({}): {}",
                    condition.status, condition.reason, condition.message
                ),
                Some(condition) => {
                    format!(" Condition {kind} is {} ({}).", condition.status, condition.reason)
                }
                None => format!(" There is no condition {kind} yet: does `liqo-control` run?"),
            }
        };
        match step {
            0 => self.refused(token.tried()).unwrap_or_else(|| {
                format!(
                    "Its auth service at {url} has given no identity yet.{} Check that {url} can \
                     be reached from this cluster's nodes.",
                    says(conditions::AUTHENTICATED)
                )
            }),
            1 => format!(
                "The ResourceRequest waits to be accepted in {name}: there, somebody has to set its \
                 status.state to Accepted, or sharing.autoAccept in the ClusterConfig.{}",
                says(conditions::OUTGOING_PEERING)
            ),
            2 => format!(
                "The request is accepted, but no ResourceOffer has come from {name} yet.{}",
                says(conditions::OUTGOING_PEERING)
            ),
            3 => format!(
                "The two clusters have not agreed on networks yet: `kubectl get networkconfigs -A` \
                 on both sides shows which one is not processed.{}",
                says(conditions::TUNNEL_ENDPOINT)
            ),
            4 => {
                let tunnel = self.tunnel.as_ref();
                let message = tunnel
                    .and_then(|t| t.status.as_ref()?.connection.as_ref()?.status_message.clone());
                let place = tunnel.map(|t| t.spec.endpoint_ip.to_string()).unwrap_or_default();
                format!(
                    "The tunnel to {place} (UDP {}) does not carry packets{}. Check that firewalls \
                     let UDP through both ways.",
                    tunnel
                        .and_then(|t| t.spec.backend_config.get("port").cloned())
                        .unwrap_or_else(|| names::GATEWAY_PORT.to_string()),
                    message.map(|message| format!(": {message}")).unwrap_or_default()
                )
            }
            5 => {
                let offer = self.offer.as_ref().and_then(|offer| offer.status.as_ref());
                match (&self.node, offer.map(|status| status.phase)) {
                    (Some(node), _) => format!(
                        "Node {} is not Ready{}.",
                        node.name_any(),
                        ready_message(node).map(|m| format!(": {m}")).unwrap_or_default()
                    ),
                    (None, Some(OfferPhase::Refused)) => {
                        "The offer was refused in this cluster.".to_owned()
                    }
                    (None, _) => {
                        "There is no virtual node yet: does `liqo-kubelet` run? (`kubectl -n liqo \
                         get pods`)"
                            .to_owned()
                    }
                }
            }
            _ => "All is there.".to_owned(),
        }
    }

    fn steps(&self) -> [bool; 6] {
        let accepted = self.request.as_ref().and_then(|r| r.status.as_ref());
        let accepted = accepted.is_some_and(|status| status.state == RequestState::Accepted);
        // A later step can be done before an earlier one is.
        [
            self.is_authenticated(),
            accepted || self.offer.is_some(),
            self.offer.is_some(),
            self.tunnel.is_some(),
            self.is_connected(),
            self.node_is_ready(),
        ]
    }

    fn connection(&self) -> Option<ConnectionStatus> {
        self.tunnel.as_ref()?.status.as_ref()?.connection.as_ref()?.status
    }

    fn refused(&self, token: Token) -> Option<String> {
        let cluster = self.cluster.as_ref()?;
        let (name, url) = (cluster.name_any(), &cluster.spec.auth_url);
        let status = cluster.status.as_ref()?;
        let said = condition(&status.conditions, conditions::AUTHENTICATED);
        let wrong_token = said.is_some_and(|said| said.reason == conditions::WRONG_TOKEN);
        // By its URL: the ForeignCluster may be taken back.
        let get_token = format!(
            "the token is there in Secret liqo/auth-token: `kubectl -n liqo get secret auth-token -o \
             jsonpath={{.data.token}} | base64 -d`. Then: `tombolo peer {url} --token-file FILE`"
        );
        match status.auth_status {
            Some(AuthStatus::EmptyRefused) if token == Token::NotGiven => {
                Some(format!("{name} ({url}) gives no identity without a token; {get_token}"))
            }
            Some(AuthStatus::Refused) if !wrong_token => Some(format!(
                "{name} ({url}) gives no identity: {}",
                said.map(|said| said.message.as_str()).unwrap_or_default()
            )),
            Some(AuthStatus::Refused) if token != Token::GivenInsteadOfAnother => {
                let which = match token {
                    Token::NotGiven => "that this cluster has for it",
                    _ => "that was given",
                };
                Some(format!("{name} ({url}) does not take the token {which}; {get_token}"))
            }
            _ => {
                let request = self.request.as_ref()?.status.as_ref()?;
                (request.state == RequestState::Refused).then(|| {
                    let why = request.conditions.iter().map(|c| c.message.as_str());
                    let why: Vec<&str> = why.filter(|message| !message.is_empty()).collect();
                    format!("{name} has refused the request: {}", why.join("; "))
                })
            }
        }
    }
}

pub fn node_is_ready(node: &Node) -> bool {
    let all = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    all.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True")
}

fn ready_message(node: &Node) -> Option<String> {
    let all = node.status.as_ref()?.conditions.as_ref()?;
    all.iter().find(|c| c.type_ == "Ready")?.message.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cluster(status: &serde_json::Value) -> View {
        let cluster = json!({
            "apiVersion": "discovery.liqo.io/v1alpha1",
            "kind": "ForeignCluster",
            "metadata": {"name": "milan"},
            "spec": {"authUrl": "https://192.0.2.7:30443", "join": true},
            "status": status,
        });
        View::of(&serde_json::from_value(cluster).unwrap())
    }

    fn condition_is(kind: &str, status: &str, message: &str) -> serde_json::Value {
        json!({
            "type": kind, "status": status, "reason": "Because", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    }

    #[test]
    fn it_waits_for_one_step_after_the_other() {
        let view = cluster(&json!({}));
        assert_eq!(
            view.outcome(Token::NotGiven),
            Outcome::Waiting { done: 0, waiting_for: "waiting for an identity there" }
        );
        let view = cluster(&json!({"authStatus": "Accepted"}));
        assert_eq!(
            view.outcome(Token::NotGiven),
            Outcome::Waiting { done: 1, waiting_for: "waiting until the request is accepted" }
        );
    }

    #[test]
    fn who_wants_a_token_says_where_to_get_it() {
        let Outcome::Refused { why } =
            cluster(&json!({"authStatus": "EmptyRefused"})).outcome(Token::NotGiven)
        else {
            panic!("it should be refused");
        };
        for part in ["https://192.0.2.7:30443", "auth-token", "--token-file"] {
            assert!(why.contains(part), "{part:?} is not in {why}");
        }
    }

    #[test]
    fn a_token_that_was_just_given_gets_its_time() {
        let view = cluster(&json!({"authStatus": "EmptyRefused"}));
        assert!(matches!(view.outcome(Token::Given), Outcome::Waiting { done: 0, .. }));
        let view = refused("WrongToken");
        let outcome = view.outcome(Token::GivenInsteadOfAnother);
        assert!(matches!(outcome, Outcome::Waiting { done: 0, .. }));
        assert!(view.stuck(Token::GivenInsteadOfAnother).contains("that was given"));
    }

    #[test]
    fn what_is_refused_is_told_at_once() {
        let why = |reason, token| match refused(reason).outcome(token) {
            Outcome::Refused { why } => why,
            other => panic!("it should be refused: {other:?}"),
        };
        assert!(why("WrongToken", Token::Given).contains("does not take the token that was given"));
        assert!(why("WrongToken", Token::NotGiven).contains("that this cluster has for it"));
        let other = why("OwnCluster", Token::NotGiven);
        assert!(other.contains("no it is") && !other.contains("token"), "{other}");
    }

    fn refused(reason: &str) -> View {
        let mut condition = condition_is("Authenticated", "False", "no it is");
        condition["reason"] = json!(reason);
        cluster(&json!({"authStatus": "Refused", "conditions": [condition]}))
    }

    #[test]
    fn what_is_stuck_is_told_with_condition_and_address() {
        let refused = condition_is("Authenticated", "False", "connection refused");
        let stuck = cluster(&json!({"conditions": [refused]})).stuck(Token::NotGiven);
        for part in ["https://192.0.2.7:30443", "Authenticated", "connection refused"] {
            assert!(stuck.contains(part), "{part:?} is not in {stuck}");
        }
    }
}
