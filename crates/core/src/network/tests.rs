use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tombolo_api::{
    NatCidr,
    discovery::{
        ForeignClusterSpec, ResourceRequest, ResourceRequestSpec, ResourceRequestStatus,
        condition::{AUTHENTICATED, TUNNEL_ENDPOINT},
    },
    names::REPLICATED_FROM_LABEL,
    net::Connection,
};

use super::*;
use crate::condition::now_is;

#[test]
fn a_config_is_sent_as_soon_as_the_request_is_accepted_and_there_is_an_identity() {
    let scene = Scene { requests: vec![accepted_by_milan()], ..Scene::default() };
    let Act::Apply(config) = scene.seen().own_config(&rome(), &milan()) else { panic!() };
    assert_eq!(config.name_any(), "rome");
    assert_eq!(config.namespace().as_deref(), Some("liqo-tenant-milan"));
    assert_eq!(config.labels()[REPLICATE_TO_LABEL], "milan-id");
    assert_eq!(config.spec.cluster_id, milan());
    assert_eq!(config.spec.backend_config["port"], "51840");

    let mut stranger = scene.clone();
    stranger.authenticated(false);
    assert_eq!(stranger.seen().own_config(&rome(), &milan()), Act::Nothing);
    let no_gateway = Local { gateway: None, ..rome() };
    assert_eq!(scene.seen().own_config(&no_gateway, &milan()), Act::Nothing);
    assert_eq!(Scene::default().seen().own_config(&rome(), &milan()), Act::Nothing);
}

#[test]
fn what_milan_would_not_take_yet_is_not_sent_and_what_it_refuses_is_taken_back() {
    let mut scene = Scene { requests: vec![request_to_milan()], ..Scene::default() };
    assert_eq!(scene.seen().own_config(&rome(), &milan()), Act::Nothing);
    scene.configs = peered().configs;
    assert_eq!(scene.seen().own_config(&rome(), &milan()), Act::Nothing, "it is there already");
    scene.requests[0].status =
        Some(ResourceRequestStatus { state: RequestState::Refused, ..Default::default() });
    assert!(matches!(scene.seen().own_config(&rome(), &milan()), Act::Delete(_)));
}

#[test]
fn a_request_from_there_counts_once_it_is_accepted() {
    let mut request = request_from_milan();
    let seen = |request: &ResourceRequest| {
        let scene = Scene { requests: vec![request.clone()], ..Scene::default() };
        matches!(scene.seen().own_config(&rome(), &milan()), Act::Apply(_))
    };
    assert!(!seen(&request));
    let status = |state| Some(ResourceRequestStatus { state, ..Default::default() });
    request.status = status(RequestState::Refused);
    assert!(!seen(&request));
    request.status = status(RequestState::Accepted);
    assert!(seen(&request));
    request.metadata.deletion_timestamp = Some(Time(now()));
    assert!(!seen(&request));
}

#[test]
fn a_config_that_is_right_is_left_alone_and_one_that_is_not_is_put_right() {
    let mut scene = peered();
    assert_eq!(scene.seen().own_config(&rome(), &milan()), Act::Nothing);
    scene.authenticated(false);
    let mut moved = rome();
    moved.gateway.as_mut().unwrap().endpoint_ip = "192.0.2.9".parse().unwrap();
    assert!(matches!(scene.seen().own_config(&moved, &milan()), Act::Apply(_)));
}

#[test]
fn without_a_peering_the_config_goes() {
    let scene = Scene { requests: vec![], ..peered() };
    let Act::Delete(meta) = scene.seen().own_config(&rome(), &milan()) else { panic!() };
    assert_eq!(meta.name.as_deref(), Some("rome"));
}

#[test]
fn a_tunnel_needs_both_answers() {
    let names = names();
    let scene = peered();
    let Act::Apply(endpoint) = scene.seen().tunnel_endpoint(&rome(), &milan(), Some(&names)) else {
        panic!()
    };
    assert_eq!(endpoint.name_any(), "milan");
    let networks = crate::translate::Networks::from_tunnel_endpoint(&endpoint).unwrap().unwrap();
    assert_eq!(networks.local_pods.real(), rome().pod_cidr);
    assert_eq!(networks.local_pods.name(), cidr("10.9.0.0/16"));
    assert_eq!(networks.remote_pods.name(), cidr("10.8.0.0/16"));
    assert_eq!(networks.remote_external.real(), cidr("10.1.0.0/16"));

    assert_eq!(scene.seen().tunnel_endpoint(&rome(), &milan(), None), Act::Nothing);
    let mut unanswered = peered();
    unanswered.configs[0].status = None;
    assert_eq!(unanswered.seen().tunnel_endpoint(&rome(), &milan(), Some(&names)), Act::Nothing);
    let mut unsent = peered();
    unsent.configs.pop();
    assert_eq!(unsent.seen().tunnel_endpoint(&rome(), &milan(), Some(&names)), Act::Nothing);
}

#[test]
fn names_that_dont_fit_make_no_tunnel_and_are_shown() {
    let mut scene = peered();
    let answer = scene.configs[0].status.as_mut().unwrap();
    answer.pod_cidr_nat = Some("10.8.0.0/15".parse().unwrap());
    let seen = scene.seen();
    assert_eq!(seen.tunnel_endpoint(&rome(), &milan(), Some(&names())), Act::Nothing);
    let status = seen.foreign_cluster_status(&rome(), &milan(), now()).unwrap();
    let condition = &status.conditions[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "Error"));
    assert_eq!(
        condition.message,
        "milan has given this cluster's networks names that don't fit: 10.0.0.0/16 can't be called \
         10.8.0.0/15: a prefix of 16 bits of IPv4 is no prefix of 15 bits of IPv4, and addresses \
         would lose their host part"
    );
}

#[test]
fn what_the_gateway_says_in_the_tunnel_endpoint_is_none_of_our_business() {
    let names = names();
    let mut scene = connected(ConnectionStatus::Connected);
    assert_eq!(scene.seen().tunnel_endpoint(&rome(), &milan(), Some(&names)), Act::Nothing);
    scene.configs[1].spec.endpoint_ip = "192.0.2.77".parse().unwrap();
    let act = scene.seen().tunnel_endpoint(&rome(), &milan(), Some(&names));
    assert!(matches!(act, Act::Apply(_)));
}

#[test]
fn the_tunnel_goes_with_the_second_config() {
    let mut scene = connected(ConnectionStatus::Connected);
    scene.configs.remove(0);
    assert_eq!(scene.seen().tunnel_endpoint(&rome(), &milan(), Some(&names())), Act::Nothing);
    assert!(!scene.seen().is_over(&rome(), &milan()));
    scene.configs[0].metadata.deletion_timestamp = Some(Time(now()));
    assert!(scene.seen().is_over(&rome(), &milan()));
    let seen = scene.seen();
    let Act::Delete(meta) = seen.tunnel_endpoint(&rome(), &milan(), None) else { panic!() };
    assert_eq!(meta.name.as_deref(), Some("milan"));
}

#[test]
fn a_config_for_another_cluster_is_not_ours_to_answer() {
    let mut scene = peered();
    scene.configs[1].spec.cluster_id = "turin-id".parse().unwrap();
    assert_eq!(scene.seen().their_config(&rome(), &milan()), None);
}

#[test]
fn an_answer_to_other_networks_is_none() {
    let mut scene = peered();
    let sent = scene.configs[0].spec.clone();
    let say = |scene: &mut Scene, pods: Option<&str>, external: Option<&str>| {
        let status = scene.configs[0].status.as_mut().unwrap();
        status.pod_cidr = pods.map(|text| text.parse().unwrap());
        status.external_cidr = external.map(|text| text.parse().unwrap());
    };
    assert!(scene.seen().answer(&milan()).is_some(), "it does not say to which");
    let (pods, external) = (sent.pod_cidr.to_string(), sent.external_cidr.to_string());
    say(&mut scene, Some(&pods), Some(&external));
    assert!(scene.seen().answer(&milan()).is_some());
    for (pods, external) in [("10.99.0.0/16", external.as_str()), (&pods, "10.99.0.0/16")] {
        say(&mut scene, Some(pods), Some(external));
        assert_eq!(scene.seen().answer(&milan()), None);
        let act = scene.seen().tunnel_endpoint(&rome(), &milan(), Some(&names()));
        assert_eq!(act, Act::Nothing, "the tunnel waits for the new answer");
    }
}

#[test]
fn an_answer_is_given_once() {
    let mut config = peered().configs.remove(1);
    let answer = answer_to(&config, &names()).unwrap();
    assert!(answer.processed);
    assert_eq!(answer.pod_cidr_nat, Some("10.8.0.0/16".parse().unwrap()));
    assert_eq!(answer.external_cidr_nat, Some(NatCidr::None));
    assert_eq!(answer.pod_cidr, Some(config.spec.pod_cidr), "it says to which network");
    assert_eq!(answer.external_cidr, Some(config.spec.external_cidr));
    config.status = Some(answer);
    assert_eq!(answer_to(&config, &names()), None);
    config.spec.pod_cidr = "10.99.0.0/16".parse().unwrap();
    assert!(answer_to(&config, &names()).is_some(), "another network is answered again");
}

#[test]
fn people_are_told_what_the_tunnel_waits_for() {
    let reason = |scene: &Scene, local: &Local| {
        let status = scene.seen().foreign_cluster_status(local, &milan(), now()).unwrap();
        let [condition] = status.conditions.as_slice() else { panic!() };
        assert_eq!(condition.type_, TUNNEL_ENDPOINT);
        (condition.status.clone(), condition.reason.clone())
    };
    let expect = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    let mut scene = Scene::default();
    let status = scene.foreign_cluster.status.take();
    let told = scene.seen().foreign_cluster_status(&rome(), &milan(), now());
    assert_eq!(told, None, "first whether it is known");
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
    let first = scene.seen().foreign_cluster_status(&rome(), &milan(), now()).unwrap();
    let network = first.network.clone().unwrap();
    assert!(network.tunnel_endpoint.unwrap().available);
    scene.show(&first);
    let later = now() + jiff::SignedDuration::from_secs(60);
    assert_eq!(scene.seen().foreign_cluster_status(&rome(), &milan(), later), None);
    scene.endpoints = connected(ConnectionStatus::Error).endpoints;
    let second = scene.seen().foreign_cluster_status(&rome(), &milan(), later).unwrap();
    assert_eq!(second.conditions[0].last_transition_time, Time(later));
    scene.show(&second);
    scene.endpoints = connected(ConnectionStatus::Connecting).endpoints;
    let even_later = later + jiff::SignedDuration::from_secs(60);
    let third = scene.seen().foreign_cluster_status(&rome(), &milan(), even_later).unwrap();
    assert_eq!(third.conditions[0].last_transition_time, Time(later), "False all the time");
}

#[test]
fn a_gateway_is_known_once_its_lease_says_everything() {
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

/// What rome sees of milan.
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

    /// As the API server merges what one controller says of the network.
    fn show(&mut self, status: &ForeignClusterStatus) {
        self.authenticated(true);
        let there = self.foreign_cluster.status.get_or_insert_default();
        there.network = status.network.clone();
        there.conditions.extend(status.conditions.clone());
    }

    fn seen(&self) -> Seen<'_> {
        Seen {
            namespace: "liqo-tenant-milan",
            foreign_cluster: Some(&self.foreign_cluster),
            requests: self.requests.iter().map(Request::from_resource).collect(),
            configs: self.configs.iter().collect(),
            endpoints: self.endpoints.iter().collect(),
        }
    }
}

/// Both have sent their NetworkConfig and got an answer.
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
    theirs.metadata.labels = Some([(REPLICATED_FROM_LABEL.into(), "milan-id".into())].into());
    theirs.spec.cluster_id = rome().cluster.cluster_id;
    theirs.status = None;
    Scene { requests: vec![accepted_by_milan()], configs: vec![ours, theirs], ..Scene::default() }
}

fn connected(status: ConnectionStatus) -> Scene {
    let mut scene = peered();
    let act = scene.seen().tunnel_endpoint(&rome(), &milan(), Some(&names()));
    let Act::Apply(mut endpoint) = act else { panic!() };
    let endpoint_status = endpoint.status.as_mut().unwrap();
    endpoint_status.connection = Some(Connection { status: Some(status), ..Connection::default() });
    endpoint_status.gateway_ip = Some("192.0.2.1".parse().unwrap());
    scene.endpoints = vec![endpoint];
    scene
}

fn names() -> Subnets {
    Subnets {
        remote_pod_cidr: Some(cidr("10.0.0.0/16")),
        remote_external_cidr: Some(cidr("10.1.0.0/16")),
        remote_nat_pod_cidr: NatCidr::Remapped(cidr("10.8.0.0/16")),
        ..Subnets::default()
    }
}

fn request_to_milan() -> ResourceRequest {
    request("rome", REPLICATE_TO_LABEL)
}

fn accepted_by_milan() -> ResourceRequest {
    let status = ResourceRequestStatus { state: RequestState::Accepted, ..Default::default() };
    ResourceRequest { status: Some(status), ..request_to_milan() }
}

fn request_from_milan() -> ResourceRequest {
    request("milan", REPLICATED_FROM_LABEL)
}

fn request(name: &str, label: &str) -> ResourceRequest {
    let spec = ResourceRequestSpec {
        cluster_identity: identity(name),
        auth_url: "https://192.0.2.1".into(),
    };
    let mut request = ResourceRequest::new(name, spec);
    request.metadata.labels = Some([(label.to_owned(), "milan-id".to_owned())].into());
    request
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
