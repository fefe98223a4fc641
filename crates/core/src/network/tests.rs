use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use tombolo_api::{
    NatCidr,
    discovery::{
        ForeignClusterSpec, ResourceRequest, ResourceRequestSpec, ResourceRequestStatus,
        condition::{AUTHENTICATED, TUNNEL_ENDPOINT},
    },
    net::{Connection, ConnectionStatus},
};

use super::*;
use crate::condition::now_is;

#[test]
fn a_config_is_sent_once_the_request_is_accepted_and_an_identity_issued() {
    let scene = Scene { requests: vec![accepted_by_milan()], ..Scene::default() };
    let Action::Apply(config) = scene.state().own_config(&rome(), &milan()) else { panic!() };
    assert_eq!(config.name_any(), "rome");
    assert_eq!(config.namespace().as_deref(), Some("liqo-tenant-milan"));
    assert_eq!(config.labels()[REPLICATE_TO_LABEL], "milan-id");
    assert_eq!(config.spec.cluster_id, milan());
    assert_eq!(config.spec.backend_config["port"], "51840");

    let mut unauthenticated = scene.clone();
    unauthenticated.authenticated(false);
    assert_eq!(unauthenticated.state().own_config(&rome(), &milan()), Action::None);
    let no_gateway = Local { gateway: None, ..rome() };
    assert_eq!(scene.state().own_config(&no_gateway, &milan()), Action::None);
    assert_eq!(Scene::default().state().own_config(&rome(), &milan()), Action::None);
}

#[test]
fn a_config_is_not_sent_before_acceptance_and_deleted_after_a_refusal() {
    let mut scene = Scene { requests: vec![request_to_milan()], ..Scene::default() };
    assert_eq!(scene.state().own_config(&rome(), &milan()), Action::None);
    scene.configs = peered().configs;
    assert_eq!(scene.state().own_config(&rome(), &milan()), Action::None, "it exists already");
    scene.requests[0].status =
        Some(ResourceRequestStatus { state: RequestState::Refused, ..Default::default() });
    assert!(matches!(scene.state().own_config(&rome(), &milan()), Action::Delete { .. }));
}

#[test]
fn a_request_of_the_peer_counts_once_it_is_accepted() {
    let mut request = request_from_milan();
    let is_sent = |request: &ResourceRequest| {
        let scene = Scene { requests: vec![request.clone()], ..Scene::default() };
        matches!(scene.state().own_config(&rome(), &milan()), Action::Apply(_))
    };
    assert!(!is_sent(&request));
    let status = |state| Some(ResourceRequestStatus { state, ..Default::default() });
    request.status = status(RequestState::Refused);
    assert!(!is_sent(&request));
    request.status = status(RequestState::Accepted);
    assert!(is_sent(&request));
    request.metadata.deletion_timestamp = Some(Time(now()));
    assert!(!is_sent(&request));
}

#[test]
fn a_config_is_applied_only_if_it_differs() {
    let mut scene = peered();
    assert_eq!(scene.state().own_config(&rome(), &milan()), Action::None);
    scene.authenticated(false);
    let mut moved = rome();
    moved.gateway.as_mut().unwrap().endpoint_ip = "192.0.2.9".parse().unwrap();
    assert!(matches!(scene.state().own_config(&moved, &milan()), Action::Apply(_)));
}

#[test]
fn without_a_peering_the_config_is_deleted() {
    let scene = Scene { requests: vec![], ..peered() };
    let state = scene.state();
    let Action::Delete { name, .. } = state.own_config(&rome(), &milan()) else { panic!() };
    assert_eq!(name, "rome");
}

#[test]
fn a_tunnel_needs_both_answers() {
    let subnets = subnets();
    let scene = peered();
    let Action::Apply(endpoint) = scene.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets))
    else {
        panic!()
    };
    assert_eq!(endpoint.name_any(), "milan");
    let networks = crate::translate::Networks::from_tunnel_endpoint(&endpoint).unwrap().unwrap();
    assert_eq!(networks.local_pods.real(), rome().pod_cidr);
    assert_eq!(networks.local_pods.translated(), cidr("10.9.0.0/16"));
    assert_eq!(networks.remote_pods.translated(), cidr("10.8.0.0/16"));
    assert_eq!(networks.remote_external.real(), cidr("10.1.0.0/16"));

    assert_eq!(scene.state().tunnel_endpoint(&rome(), &milan(), None), Action::None);
    let mut unanswered = peered();
    unanswered.configs[0].status = None;
    assert_eq!(unanswered.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets)), Action::None);
    let mut unsent = peered();
    unsent.configs.pop();
    assert_eq!(unsent.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets)), Action::None);
}

#[test]
fn translated_cidrs_that_dont_fit_make_no_tunnel_and_are_reported() {
    let mut scene = peered();
    let answer = scene.configs[0].status.as_mut().unwrap();
    answer.pod_cidr_nat = Some("10.8.0.0/15".parse().unwrap());
    let state = scene.state();
    assert_eq!(state.tunnel_endpoint(&rome(), &milan(), Some(&subnets())), Action::None);
    let status = state.foreign_cluster_status(&rome(), &milan(), now()).unwrap();
    let condition = &status.conditions[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "InvalidCIDRs"));
    assert_eq!(
        condition.message,
        "milan has answered with invalid translated CIDRs: 10.0.0.0/16 can't be \
         translated to 10.8.0.0/15: a prefix of 16 bits of IPv4 and a prefix of 15 bits of IPv4 \
         differ, so addresses would lose their host part"
    );
}

#[test]
fn status_fields_of_the_gateway_do_not_change_the_tunnel_endpoint() {
    let subnets = subnets();
    let mut scene = connected(ConnectionStatus::Connected);
    assert_eq!(scene.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets)), Action::None);
    scene.configs[1].spec.endpoint_ip = "192.0.2.77".parse().unwrap();
    let act = scene.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets));
    assert!(matches!(act, Action::Apply(_)));
}

#[test]
fn the_tunnel_endpoint_is_deleted_with_the_second_config() {
    let mut scene = connected(ConnectionStatus::Connected);
    scene.configs.remove(0);
    assert_eq!(scene.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets())), Action::None);
    assert!(!scene.state().is_over(&rome()));
    scene.configs[0].metadata.deletion_timestamp = Some(Time(now()));
    assert!(scene.state().is_over(&rome()));
    let state = scene.state();
    let action = state.tunnel_endpoint(&rome(), &milan(), None);
    let Action::Delete { name, .. } = action else { panic!() };
    assert_eq!(name, "milan");
}

#[test]
fn a_config_for_another_cluster_is_not_answered() {
    let mut scene = peered();
    scene.configs[1].spec.cluster_id = "turin-id".parse().unwrap();
    assert_eq!(scene.state().their_config(&rome()), None);
}

#[test]
fn labels_of_a_peer_do_not_make_its_config_ours() {
    let mut scene = peered();
    let theirs = &mut scene.configs[1];
    theirs.metadata.labels = Some([(REPLICATE_TO_LABEL.into(), "milan-id".into())].into());
    theirs.spec.pod_cidr = cidr("10.66.0.0/16");
    theirs.status = peered().configs[0].status.clone();
    scene.configs.swap(0, 1);
    assert_eq!(scene.state().own_config(&rome(), &milan()), Action::None);
    let act = scene.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets()));
    let Action::Apply(endpoint) = act else { panic!() };
    let status = endpoint.status.unwrap();
    assert_eq!(status.local_pod_cidr, Some(rome().pod_cidr), "from our own settings");
    scene.requests[0].metadata.name = Some("milan".into());
    scene.requests[0].status = None;
    let Action::Delete { name, .. } = scene.state().own_config(&rome(), &milan()) else { panic!() };
    assert_eq!(name, "rome", "a request of milan is not ours");
}

#[test]
fn an_answer_to_other_cidrs_is_ignored() {
    let mut scene = peered();
    let sent = scene.configs[0].spec.clone();
    let say = |scene: &mut Scene, pods: Option<&str>, external: Option<&str>| {
        let status = scene.configs[0].status.as_mut().unwrap();
        status.pod_cidr = pods.map(|text| text.parse().unwrap());
        status.external_cidr = external.map(|text| text.parse().unwrap());
    };
    assert!(scene.state().answer(&rome()).is_some(), "it does not name the CIDRs");
    let (pods, external) = (sent.pod_cidr.to_string(), sent.external_cidr.to_string());
    say(&mut scene, Some(&pods), Some(&external));
    assert!(scene.state().answer(&rome()).is_some());
    for (pods, external) in [("10.99.0.0/16", external.as_str()), (&pods, "10.99.0.0/16")] {
        say(&mut scene, Some(pods), Some(external));
        assert_eq!(scene.state().answer(&rome()), None);
        let act = scene.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets()));
        assert_eq!(act, Action::None, "the tunnel waits for the new answer");
    }
}

#[test]
fn an_answer_is_given_once() {
    let mut config = peered().configs.remove(1);
    let answer_to = |config: &NetworkConfig| answer_to(&Config::from_resource(config), &subnets());
    let answer = answer_to(&config).unwrap();
    assert!(answer.processed);
    assert_eq!(answer.pod_cidr_nat, Some("10.8.0.0/16".parse().unwrap()));
    assert_eq!(answer.external_cidr_nat, Some(NatCidr::None));
    assert_eq!(answer.pod_cidr, Some(config.spec.pod_cidr), "the answer names the CIDR");
    assert_eq!(answer.external_cidr, Some(config.spec.external_cidr));
    config.status = Some(answer);
    assert_eq!(answer_to(&config), None);
    config.spec.pod_cidr = "10.99.0.0/16".parse().unwrap();
    assert!(answer_to(&config).is_some(), "another CIDR is answered again");
}

#[test]
fn the_condition_names_the_missing_precondition() {
    let reason = |scene: &Scene, local: &Local| {
        let status = scene.state().foreign_cluster_status(local, &milan(), now()).unwrap();
        let [condition] = status.conditions.as_slice() else { panic!() };
        assert_eq!(condition.type_, TUNNEL_ENDPOINT);
        (condition.status.clone(), condition.reason.clone())
    };
    let expect = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    let mut scene = Scene::default();
    let status = scene.foreign_cluster.status.take();
    let status_before = scene.state().foreign_cluster_status(&rome(), &milan(), now());
    assert_eq!(status_before, None, "there is no status yet");
    scene.foreign_cluster.status = status;
    assert_eq!(reason(&scene, &rome()), expect("False", "NoPeering"));
    scene.requests = vec![request_to_milan()];
    let no_gateway = Local { gateway: None, ..rome() };
    assert_eq!(reason(&scene, &no_gateway), expect("False", "WaitingForGateway"));
    assert_eq!(reason(&scene, &rome()), expect("False", "WaitingForAcceptance"));
    scene.requests = vec![accepted_by_milan()];
    assert_eq!(reason(&scene, &rome()), expect("False", "WaitingForIdentity"));
    scene.configs = peered().configs;
    assert_eq!(reason(&scene, &rome()), expect("False", "Negotiated"));
    scene.configs[0].status = None;
    assert_eq!(reason(&scene, &rome()), expect("False", "WaitingForPeer"));
    let connecting = connected(ConnectionStatus::Connecting);
    assert_eq!(reason(&connecting, &rome()), expect("False", "Connecting"));
    let connected = connected(ConnectionStatus::Connected);
    assert_eq!(reason(&connected, &rome()), expect("True", "Connected"));
}

#[test]
fn a_status_is_written_once_and_keeps_the_time_of_the_last_change() {
    let mut scene = connected(ConnectionStatus::Connected);
    let first = scene.state().foreign_cluster_status(&rome(), &milan(), now()).unwrap();
    let network = first.network.clone().unwrap();
    assert!(network.tunnel_endpoint.unwrap().available);
    scene.show(&first);
    let later = now() + jiff::SignedDuration::from_secs(60);
    assert_eq!(scene.state().foreign_cluster_status(&rome(), &milan(), later), None);
    scene.endpoints = connected(ConnectionStatus::Error).endpoints;
    let second = scene.state().foreign_cluster_status(&rome(), &milan(), later).unwrap();
    assert_eq!(second.conditions[0].last_transition_time, Time(later));
    scene.show(&second);
    scene.endpoints = connected(ConnectionStatus::Connecting).endpoints;
    let even_later = later + jiff::SignedDuration::from_secs(60);
    let third = scene.state().foreign_cluster_status(&rome(), &milan(), even_later).unwrap();
    assert_eq!(third.conditions[0].last_transition_time, Time(later), "False all the time");
}

#[test]
fn a_gateway_is_known_once_its_lease_is_complete() {
    let mut annotations: std::collections::BTreeMap<_, _> = [
        ("net.liqo.io/endpoint-ip", "192.0.2.1"),
        ("net.liqo.io/port", "51840"),
        ("net.liqo.io/public-key", "key"),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into();
    assert_eq!(Gateway::from_annotations(&annotations).unwrap().port, 51840);
    annotations.remove("net.liqo.io/public-key");
    assert_eq!(Gateway::from_annotations(&annotations), None);
}

/// The objects of milan in rome.
#[derive(Clone)]
struct Scene {
    foreign_cluster: ForeignCluster,
    requests: Vec<ResourceRequest>,
    configs: Vec<NetworkConfig>,
    endpoints: Vec<TunnelEndpoint>,
}

impl Default for Scene {
    fn default() -> Self {
        let spec = ForeignClusterSpec {
            auth_url: "https://192.0.2.2".into(),
            join: true,
            cluster_identity: Some(identity("milan")),
            ttl: None,
            fingerprint: None,
        };
        let mut scene = Self {
            foreign_cluster: ForeignCluster::new("milan", spec),
            requests: vec![],
            configs: vec![],
            endpoints: vec![],
        };
        scene.authenticated(true);
        scene
    }
}

impl Scene {
    fn authenticated(&mut self, yes: bool) {
        let condition = now_is(&[], AUTHENTICATED, yes, "Test", "", now());
        self.foreign_cluster.status.get_or_insert_default().conditions = vec![condition];
    }

    /// Merges the network part into the status, as the API server does.
    fn show(&mut self, status: &ForeignClusterStatus) {
        self.authenticated(true);
        let there = self.foreign_cluster.status.get_or_insert_default();
        there.network = status.network.clone();
        there.conditions.extend(status.conditions.clone());
    }

    fn state(&self) -> TenantState<'_> {
        TenantState {
            namespace: "liqo-tenant-milan",
            foreign_cluster: Some(&self.foreign_cluster),
            requests: self.requests.iter().map(Request::from_resource).collect(),
            configs: self.configs.iter().map(Config::from_resource).collect(),
            endpoints: self.endpoints.iter().map(Endpoint::from_resource).collect(),
        }
    }
}

/// Both NetworkConfigs are sent and answered.
fn peered() -> Scene {
    let local = rome();
    let mut ours =
        network_config(&local, local.gateway.as_ref().unwrap(), &milan(), "liqo-tenant-milan");
    ours.status = Some(NetworkConfigStatus {
        processed: true,
        pod_cidr_nat: Some("10.9.0.0/16".parse().unwrap()),
        external_cidr_nat: Some(NatCidr::None),
        ..NetworkConfigStatus::default()
    });
    let mut theirs = ours.clone();
    theirs.metadata.name = Some("milan".into());
    theirs.metadata.labels = None;
    theirs.spec.cluster_id = rome().cluster.cluster_id;
    theirs.status = None;
    Scene { requests: vec![accepted_by_milan()], configs: vec![ours, theirs], ..Scene::default() }
}

fn connected(status: ConnectionStatus) -> Scene {
    let mut scene = peered();
    let act = scene.state().tunnel_endpoint(&rome(), &milan(), Some(&subnets()));
    let Action::Apply(mut endpoint) = act else { panic!() };
    let endpoint_status = endpoint.status.as_mut().unwrap();
    endpoint_status.connection = Some(Connection { status: Some(status), ..Connection::default() });
    endpoint_status.gateway_ip = Some("192.0.2.1".parse().unwrap());
    scene.endpoints = vec![endpoint];
    scene
}

fn subnets() -> Subnets {
    Subnets {
        remote_pod_cidr: Some(cidr("10.0.0.0/16")),
        remote_external_cidr: Some(cidr("10.1.0.0/16")),
        remote_nat_pod_cidr: NatCidr::Remapped(cidr("10.8.0.0/16")),
        ..Subnets::default()
    }
}

fn request_to_milan() -> ResourceRequest {
    request("rome")
}

fn accepted_by_milan() -> ResourceRequest {
    let status = ResourceRequestStatus { state: RequestState::Accepted, ..Default::default() };
    ResourceRequest { status: Some(status), ..request_to_milan() }
}

fn request_from_milan() -> ResourceRequest {
    request("milan")
}

fn request(name: &str) -> ResourceRequest {
    let spec = ResourceRequestSpec {
        cluster_identity: identity(name),
        auth_url: "https://192.0.2.1".into(),
    };
    ResourceRequest::new(name, spec)
}

fn rome() -> Local {
    Local {
        cluster: identity("rome"),
        pod_cidr: cidr("10.0.0.0/16"),
        external_cidr: cidr("10.1.0.0/16"),
        gateway: Some(Gateway {
            endpoint_ip: "192.0.2.1".parse().unwrap(),
            port: 51840,
            public_key: "key".into(),
        }),
    }
}

fn milan() -> ClusterId {
    identity("milan").cluster_id
}

fn identity(name: &str) -> ClusterIdentity {
    ClusterIdentity {
        cluster_id: format!("{name}-id").parse().unwrap(),
        cluster_name: name.parse().unwrap(),
    }
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}
