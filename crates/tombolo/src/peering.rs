//! How far a peering has come, told from the objects that it leaves on its way.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use kube::runtime::{reflector::Store, watcher};
use kube::{Api, Client, Resource as _, ResourceExt, api::ObjectMeta};
use tombolo_api::ClusterName;
use tombolo_api::discovery::{
    AuthStatus, ForeignCluster, RequestState, ResourceRequest, condition as conditions,
};
use tombolo_api::names;
use tombolo_api::net::TunnelEndpoint;
use tombolo_api::sharing::ResourceOffer;
use tombolo_api::virtualkubelet::NamespaceMap;
use tombolo_core::node;
use tombolo_core::offer_stage::{End, OfferStage};
use tombolo_core::owner::belongs_to;
use tombolo_core::peering::{Milestone, Outgoing};
use tombolo_core::view::{Endpoint, Offer, Peer, Request};

use crate::watching::{Watches, condition};

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
        let Some(identity) = &cluster.spec.cluster_identity else {
            return view;
        };
        let id = &identity.cluster_id;
        let ours = ours_in(&cluster, &identity.cluster_name);
        let theirs = |offer: &Arc<ResourceOffer>| {
            offer.namespace().as_deref() == Peer::from_resource(&cluster).tenant
                && belongs_to(&offer.name_any(), &identity.cluster_name)
        };
        view.request = self.requests.state().into_iter().find(|it| ours(it.meta()));
        view.offer = self.offers.state().into_iter().find(theirs);
        view.map = self.maps.state().into_iter().find(|it| ours(it.meta()));
        view.tunnel = self.tunnels.state().into_iter().find(|t| t.spec.cluster_id == *id);
        let node = node::name(identity, view.offer().as_ref());
        view.node = self.nodes.state().into_iter().find(|n| n.name_any() == node);
        view
    }
}

/// Selects the objects of this cluster in the tenant namespace of a peer.
fn ours_in<'a>(
    cluster: &'a ForeignCluster,
    peer: &'a ClusterName,
) -> impl Fn(&ObjectMeta) -> bool + 'a {
    move |meta| {
        meta.namespace.as_deref() == Peer::from_resource(cluster).tenant
            && meta.name.as_deref().is_some_and(|name| !belongs_to(name, peer))
    }
}

impl Token {
    /// The same, when there was time enough to show it.
    fn tried(self) -> Self {
        if self == Self::GivenInsteadOfAnother { Self::Given } else { self }
    }
}

impl View {
    pub fn of(cluster: &ForeignCluster) -> Self {
        Self { cluster: Some(Arc::new(cluster.clone())), ..Self::default() }
    }

    pub fn outcome(&self, token: Token) -> Outcome {
        if let Some(why) = self.refused(token) {
            return Outcome::Refused { why };
        }
        match self.missing() {
            Some(milestone) => Outcome::Waiting {
                done: Milestone::ALL.iter().filter(|it| **it < milestone).count(),
                waiting_for: waiting_for(milestone),
            },
            None => Outcome::Established {
                node: self.node.as_ref().map(|node| node.name_any()).unwrap_or_default(),
            },
        }
    }

    pub fn is_authenticated(&self) -> bool {
        self.cluster.as_ref().is_some_and(|cluster| {
            let status = cluster.status.as_ref().and_then(|status| status.auth_status);
            status == Some(AuthStatus::Accepted) || Peer::from_resource(cluster).is_authenticated
        })
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
        match self.missing() {
            Some(Milestone::Identity) => self.refused(token.tried()).unwrap_or_else(|| {
                format!(
                    "Its auth service at {url} has issued no identity yet.{} Check that {url} can \
                     be reached from this cluster's nodes.",
                    says(conditions::AUTHENTICATED)
                )
            }),
            Some(Milestone::Acceptance) => format!(
                "The ResourceRequest waits to be accepted in {name}: there, somebody has to set its \
                 status.state to Accepted, or sharing.autoAccept in the ClusterConfig.{}",
                says(conditions::OUTGOING_PEERING)
            ),
            Some(Milestone::Offer) => format!(
                "The request is accepted, but no ResourceOffer has come from {name} yet.{}",
                says(conditions::OUTGOING_PEERING)
            ),
            Some(Milestone::Networks) => format!(
                "The two clusters have not agreed on networks yet: `kubectl get networkconfigs -A` \
                 on both sides shows which one is not processed.{}",
                says(conditions::TUNNEL_ENDPOINT)
            ),
            Some(Milestone::Tunnel) => {
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
            Some(Milestone::Node) => match (&self.node, self.offer().map(|offer| offer.stage)) {
                (Some(node), _) => format!(
                    "Node {} is not Ready{}.",
                    node.name_any(),
                    ready_message(node).map(|m| format!(": {m}")).unwrap_or_default()
                ),
                (None, Some(OfferStage::Draining(end) | OfferStage::Over(end))) => match end {
                    End::Returned => "The offer was refused in this cluster.".to_owned(),
                    End::Withdrawn => format!("{name} has withdrawn its offer."),
                },
                (None, _) => {
                    "There is no virtual node yet: does `liqo-kubelet` run? (`kubectl -n liqo get \
                     pods`)"
                        .to_owned()
                }
            },
            None => "All is there.".to_owned(),
        }
    }

    fn missing(&self) -> Option<Milestone> {
        let there = Outgoing {
            join: self.cluster.as_ref().is_some_and(|cluster| cluster.spec.join),
            authenticated: self.is_authenticated(),
            request: self.request.as_deref().map(Request::from_resource),
            offer: self.offer(),
            namespaces: self.map.is_some(),
        };
        let tunnel = self.tunnel.as_deref().map(Endpoint::from_resource);
        Milestone::missing(&there, tunnel.as_ref(), self.node.as_deref())
    }

    fn offer(&self) -> Option<Offer<'_>> {
        self.offer.as_deref().map(Offer::from_resource)
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
                Some(format!("{name} ({url}) issues no identity without a token; {get_token}"))
            }
            Some(AuthStatus::Refused) if !wrong_token => Some(format!(
                "{name} ({url}) issues no identity: {}",
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

fn waiting_for(milestone: Milestone) -> &'static str {
    match milestone {
        Milestone::Identity => "waiting for an identity there",
        Milestone::Acceptance => "waiting until the request is accepted",
        Milestone::Offer => "waiting for an offer",
        Milestone::Networks => "waiting until the networks are agreed upon",
        Milestone::Tunnel => "waiting for the tunnel",
        Milestone::Node => "waiting for the virtual node",
    }
}

fn ready_message(node: &Node) -> Option<&str> {
    node::ready_condition(node)?.message.as_deref()
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
