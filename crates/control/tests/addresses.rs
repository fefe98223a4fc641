//! The address service and the joining of networks, on real API servers: what was answered
//! survives, what can't be answered says why, and no two clusters ever share a name.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    coordination::v1::Lease,
    core::v1::{Namespace, Node, Secret, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{Mutex, MutexGuard, OnceCell},
};
use tombolo_api::{
    Cidr, ClusterId, NatCidr,
    config::ClusterConfig,
    discovery::{ForeignCluster, ResourceRequest},
    ipam::{
        GetHomePodIpRequest, GetRemotePodIpRequest, MapBatchRequest, MapRequest, UnmapRequest,
        ipam_client::IpamClient, map_result,
    },
    names,
    net::{IpamStorage, NatMapping, NetworkConfig, TunnelEndpoint},
};
use tombolo_control::{context::Context, ipam::Ipam, network_config, replicator};
use tombolo_core::translate::{Networks, RealIp, overlap};
use tombolo_runtime::{
    events::Events, remote::Remotes, settings::Settings, shutdown::Shutdown, writer,
};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed};
use tonic::{Code, transport::Channel};

#[tokio::test(flavor = "multi_thread")]
async fn a_mapping_survives_a_restart() {
    let (rome, _alone) = Side::alone("rome").await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let node = "192.0.2.77";

    let (ipam, mut client, service) = rome.serve().await;
    ipam.reserve(turin.clone(), cidr("10.244.0.0/16"), cidr("10.245.0.0/16")).await.unwrap();
    let name = NatCidr::Remapped(cidr("10.60.0.0/16"));
    ipam.set_local_names(turin.clone(), NatCidr::None, name).await.unwrap();
    let mapped = map(&mut client, turin.as_str(), node).await.unwrap();
    assert!(mapped.starts_with("10.60."), "{mapped} is as turin calls it");
    assert_eq!(rome.nat_mappings().await[node], mapped, "the gateway is told");
    assert_eq!(map(&mut client, turin.as_str(), "10.244.1.7").await.unwrap(), "10.244.1.7");
    service.ask();

    let (_, mut client, service) = rome.serve().await;
    assert_eq!(remote(&mut client, turin.as_str(), node).await.unwrap(), mapped);
    assert_eq!(map(&mut client, turin.as_str(), node).await.unwrap(), mapped);
    let other = map(&mut client, turin.as_str(), "192.0.2.78").await.unwrap();
    assert_ne!(other, mapped);

    let unmap = UnmapRequest { cluster_id: turin.to_string(), ip: node.into() };
    client.unmap_endpoint_ip(unmap.clone()).await.unwrap();
    client.unmap_endpoint_ip(unmap).await.expect("what is not mapped can be unmapped");
    let gone = remote(&mut client, turin.as_str(), node).await.unwrap_err();
    assert_eq!(gone.code(), Code::NotFound);
    assert_eq!(rome.nat_mappings().await.keys().collect::<Vec<_>>(), ["192.0.2.78"]);
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cant_be_answered_says_why() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, mut client, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();

    let says = |error: tonic::Status, code, text: &str| {
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(text), "{error}");
    };
    let error = map(&mut client, "", "192.0.2.1").await.unwrap_err();
    says(error, Code::InvalidArgument, "clusterID");
    let error = map(&mut client, "id-of-turin", "192.0.2.256").await.unwrap_err();
    says(error, Code::InvalidArgument, "\"192.0.2.256\"");
    let error = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    says(error, Code::NotFound, "id-of-turin");

    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    let error = map(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    says(error, Code::Unavailable, "id-of-turin");
    ipam.set_local_names(turin, NatCidr::None, NatCidr::None).await.unwrap();
    let error = remote(&mut client, "id-of-turin", "192.0.2.1").await.unwrap_err();
    says(error, Code::NotFound, "192.0.2.1");
    let error = map(&mut client, "id-of-turin", "127.0.0.1").await.unwrap_err();
    says(error, Code::InvalidArgument, "127.0.0.1");
    let ask = |ip: &str| GetHomePodIpRequest { cluster_id: "id-of-turin".into(), ip: ip.into() };
    let error = client.get_home_pod_ip(ask("192.0.2.1")).await.unwrap_err();
    says(error, Code::NotFound, "10.20.0.0/16");
    let home = client.get_home_pod_ip(ask("10.20.3.4")).await.unwrap().into_inner();
    assert_eq!(home.home_ip, "10.20.3.4");

    let request = |ip: &str| MapRequest { cluster_id: "id-of-turin".into(), ip: ip.into() };
    let requests = vec![request("192.0.2.1"), request("nonsense"), request("192.0.2.2")];
    let batch = client.map_endpoint_ip_batch(MapBatchRequest { requests }).await.unwrap();
    let results: Vec<_> =
        batch.into_inner().results.into_iter().filter_map(|result| result.result).collect();
    let [first, wrong, second] = results.as_slice() else { panic!("{results:?}") };
    assert!(matches!(first, map_result::Result::Response(_)));
    assert!(matches!(second, map_result::Result::Response(_)));
    let map_result::Result::Failure(failure) = wrong else { panic!("{wrong:?}") };
    assert_eq!(Code::from_i32(failure.code), Code::InvalidArgument);
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_share_few_writes_and_no_address() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, client, service) = rome.serve().await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    ipam.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    ipam.set_local_names(turin, NatCidr::None, NatCidr::None).await.unwrap();

    let start = Instant::now();
    let tasks: Vec<_> = (0..5_u8)
        .map(|task| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let mut names = Vec::new();
                for n in 0..200 {
                    let ip = format!("198.51.{task}.{n}");
                    names.push(map(&mut client, "id-of-turin", &ip).await.unwrap());
                }
                names
            })
        })
        .collect();
    let mut names = Vec::new();
    for task in tasks {
        names.extend(task.await.unwrap());
    }
    println!("1000 mappings for 5 clients: {:?}", start.elapsed());
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 1000);
    assert_eq!(rome.nat_mappings().await.len(), 1000);
    let storages = Api::<IpamStorage>::all(rome.client.clone());
    let storages = storages.list(&ListParams::default()).await.unwrap();
    let most = storages.iter().map(|storage| storage.spec.endpoint_mappings.len()).max();
    assert!(most.unwrap() <= 128, "objects stay small");
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_deposed_cant_write() {
    let (rome, _alone) = Side::alone("rome").await;
    let turin: ClusterId = "id-of-turin".parse().unwrap();
    let (old, mut old_client, old_service) = rome.serve().await;
    old.reserve(turin.clone(), cidr("10.20.0.0/16"), cidr("10.21.0.0/16")).await.unwrap();
    old.set_local_names(turin, NatCidr::None, NatCidr::None).await.unwrap();
    let (_, mut new_client, new_service) = rome.serve().await;

    let first = map(&mut new_client, "id-of-turin", "192.0.2.1").await.unwrap();
    let error = map(&mut old_client, "id-of-turin", "192.0.2.2").await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    // It has looked again since.
    assert_eq!(remote(&mut old_client, "id-of-turin", "192.0.2.1").await.unwrap(), first);
    assert_eq!(rome.nat_mappings().await.len(), 1);
    old_service.ask();
    new_service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_of_nodes_and_reserved_ones_are_no_names() {
    let (rome, _alone) = Side::alone("rome").await;
    let (ipam, _, service) = rome.serve().await;
    let peers = std::sync::atomic::AtomicU32::new(0);
    let is_kept = async |wanted: &str| {
        let n = peers.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let peer: ClusterId = format!("peer-{n}").parse().unwrap();
        let names = ipam.reserve(peer.clone(), cidr(wanted), cidr("10.21.0.0/16")).await.unwrap();
        ipam.release(peer).await.unwrap();
        names.remote_nat_pod_cidr == NatCidr::None
    };
    assert!(is_kept("10.40.0.0/16").await);
    assert!(is_kept("10.50.0.0/16").await);

    let network = json!({ "reservedSubnets": ["10.40.0.0/14"] });
    let config = json!({ "metadata": { "name": "cluster" }, "spec": { "network": network } });
    rome.make::<ClusterConfig>(config).await;
    eventually("10.40.0.0/16 is reserved", async || is_kept("10.40.0.0/16").await, |it| !*it).await;

    rome.make::<Node>(json!({ "metadata": { "name": "one" } })).await;
    let address = json!({ "type": "InternalIP", "address": "10.50.7.7" });
    let status = json!({ "status": { "addresses": [address] } });
    let nodes = Api::<Node>::all(rome.client.clone());
    nodes.patch_status("one", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    eventually("a node is in 10.50.0.0/16", async || is_kept("10.50.0.0/16").await, |it| !*it)
        .await;

    rome.clear::<ClusterConfig>().await;
    eventually("10.40.0.0/16 is free", async || is_kept("10.40.0.0/16").await, |it| *it).await;
    rome.clear::<Node>().await;
    service.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn peers_with_the_same_networks_get_names_that_never_collide() {
    let (rome, _alone) = Side::alone("rome").await;
    let (_, controllers) = rome.start().await;
    let peers = ["turin", "genoa", "pisa"];
    for peer in peers {
        let namespace = format!("liqo-tenant-{peer}");
        rome.tenant(&namespace, &format!("id-of-{peer}")).await;
        let config = json!({
            "metadata": {
                "name": peer,
                "labels": { names::REPLICATED_FROM_LABEL: format!("id-of-{peer}") },
            },
            "spec": {
                "clusterID": "id-of-rome",
                "podCIDR": "10.244.0.0/16",
                "externalCIDR": "10.0.0.0/16",
                "endpointIP": "192.0.2.9",
                "backendType": "wireguard",
                "backend_config": {},
            },
        });
        rome.make_in::<NetworkConfig>(&namespace, config).await;
    }
    let mut taken: Vec<Cidr> = vec![cidr("10.244.0.0/16"), cidr("10.96.0.0/16")];
    for peer in peers {
        let config = rome
            .until::<NetworkConfig>(&format!("liqo-tenant-{peer}"), peer, |config| {
                config.status.as_ref().is_some_and(|status| status.processed)
            })
            .await;
        let status = config.status.unwrap();
        taken.push(status.pod_cidr_nat.unwrap().or(config.spec.pod_cidr));
        taken.push(status.external_cidr_nat.unwrap().or(config.spec.external_cidr));
    }
    for (n, one) in taken.iter().enumerate() {
        assert!(taken[n + 1..].iter().all(|other| !overlap(*one, *other)), "{taken:?}");
    }
    controllers.ask();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clusters_with_the_same_networks_join_them_and_part() {
    let (rome, _alone) = Side::alone("rome").await;
    let milan = Side::of("milan").await;
    rome.knows(&milan).await;
    milan.knows(&rome).await;
    let (ipam, at_rome) = rome.start().await;
    let (_, at_milan) = milan.start().await;

    // Rome wants a peering; there is no gateway yet.
    let identity = json!({ "clusterID": "id-of-rome", "clusterName": "rome" });
    let spec = json!({ "clusterIdentity": identity, "authUrl": "https://192.0.2.1" });
    let request = |label: &str, id: &str| json!({ "metadata": { "name": "rome", "labels": { label: id } }, "spec": spec });
    let wanted = request(names::REPLICATE_TO_LABEL, "id-of-milan");
    rome.make_in::<ResourceRequest>("liqo-tenant-milan", wanted).await;
    rome.says("milan", "WaitingForGateway").await;
    rome.gateway("192.0.2.1").await;
    milan.gateway("192.0.2.2").await;
    rome.says("milan", "WaitingForAcceptance").await;

    // The copy of the request is made by rome's replicator; milan accepts.
    milan.until::<ResourceRequest>("liqo-tenant-rome", "rome", |_| true).await;
    let requests = Api::<ResourceRequest>::namespaced(milan.client.clone(), "liqo-tenant-rome");
    let accepted = json!({ "state": "Accepted" });
    writer::apply_status(&requests, "test", "rome", &accepted).await.unwrap();

    let start = Instant::now();
    let known = |endpoint: &TunnelEndpoint| Networks::from_tunnel_endpoint(endpoint).is_some();
    let from_rome = rome.until::<TunnelEndpoint>("liqo-tenant-milan", "milan", known).await;
    let from_milan = milan.until::<TunnelEndpoint>("liqo-tenant-rome", "rome", known).await;
    println!("accepted → both tunnel endpoints: {:?}", start.elapsed());
    assert_eq!(from_rome.spec.endpoint_ip.to_string(), "192.0.2.2");
    assert_eq!(from_milan.spec.endpoint_ip.to_string(), "192.0.2.1");

    // What one calls the other is what the other hears.
    let here = Networks::from_tunnel_endpoint(&from_rome).unwrap();
    let there = Networks::from_tunnel_endpoint(&from_milan).unwrap();
    assert_eq!(here.local_pod, there.local_pod, "both have the same network");
    assert_eq!(here.our_name_for_pods, there.their_name_for_pods);
    assert_eq!(here.our_name_for_external, there.their_name_for_external);
    assert_eq!(here.their_name_for_pods, there.our_name_for_pods);
    assert_eq!(here.our_name_for_their_self(), there.their_name_for_self());
    assert!(!overlap(here.our_name_for_pods, here.local_pod));
    let pod = RealIp("10.244.3.4".parse().unwrap());
    assert_eq!(here.name_there(pod), there.name_here(pod));

    rome.says("milan", "WaitingForGateway").await;
    let endpoints = Api::<TunnelEndpoint>::namespaced(rome.client.clone(), "liqo-tenant-milan");
    let connection = json!({ "connection": { "status": "connected" } });
    writer::apply_status(&endpoints, "liqo-gateway", "milan", &connection).await.unwrap();
    rome.says("milan", "Connected").await;
    let cluster = rome.get::<ForeignCluster>("milan").await;
    let network = cluster.status.unwrap().network.unwrap();
    assert!(network.tunnel_endpoint.unwrap().available);
    assert!(network.local_network_config.unwrap().available);
    assert!(network.remote_network_config.unwrap().available);

    // The gateway moves.
    rome.gateway("192.0.2.11").await;
    milan
        .until::<TunnelEndpoint>("liqo-tenant-rome", "rome", |endpoint| {
            endpoint.spec.endpoint_ip == IpAddr::from([192, 0, 2, 11])
        })
        .await;

    // The peering ends, and nothing is left.
    let requests = Api::<ResourceRequest>::namespaced(rome.client.clone(), "liqo-tenant-milan");
    requests.delete("rome", &DeleteParams::default()).await.unwrap();
    for side in [&rome, &milan] {
        side.none::<NetworkConfig>().await;
        side.none::<TunnelEndpoint>().await;
    }
    rome.says("milan", "NoPeering").await;
    let freed = async || {
        let storages = Api::<IpamStorage>::all(rome.client.clone());
        let storage = storages.get("liqo-networks").await.unwrap();
        storage.spec.cluster_subnets.len()
    };
    eventually("no networks of peers", freed, |count| *count == 0).await;
    drop(ipam);
    at_rome.ask();
    at_milan.ask();
}

/// One cluster.
struct Side {
    client: Client,
    settings: Settings,
}

/// There is one bed; whoever uses it is alone with it.
static BED: OnceCell<Testbed> = OnceCell::const_new();
static ALONE: Mutex<()> = Mutex::const_new(());

async fn cluster(name: &str) -> &'static Cluster {
    let start = async || {
        let cluster = |name| ClusterSpec::new(name).control_plane_only();
        let bed = Testbed::builder("addresses").cluster(cluster("rome")).cluster(cluster("milan"));
        let bed = bed.start().await.expect("the API servers start");
        for name in ["rome", "milan"] {
            define(&bed.cluster(name).client().await.expect("a client")).await;
        }
        bed
    };
    BED.get_or_init(start).await.cluster(name)
}

impl Side {
    /// A cluster in which nothing is known of any other.
    async fn alone(name: &str) -> (Self, MutexGuard<'static, ()>) {
        let alone = ALONE.lock().await;
        let side = Self::of(name).await;
        side.clear::<NetworkConfig>().await;
        side.clear::<NatMapping>().await;
        side.clear::<IpamStorage>().await;
        (side, alone)
    }

    async fn of(name: &str) -> Self {
        let cluster = cluster(name).await;
        let settings = Settings {
            cluster_id: format!("id-of-{name}").parse().unwrap(),
            cluster_name: name.parse().unwrap(),
            api_server_url: format!("https://{}:6443", cluster.node(1).address()),
            pod_cidr: cidr("10.244.0.0/16"),
            service_cidr: cidr("10.96.0.0/16"),
            pod_name: "control".into(),
            pod_ip: "127.0.0.1".parse().unwrap(),
            node_name: String::new(),
            host_ip: "127.0.0.1".parse().unwrap(),
        };
        let side = Self { client: cluster.client().await.expect("a client"), settings };
        side.make::<Namespace>(json!({ "metadata": { "name": "liqo" } })).await;
        side
    }

    /// The address service, and a client of it.
    async fn serve(&self) -> (Ipam, IpamClient<Channel>, Shutdown) {
        let shutdown = Shutdown::new();
        let ipam = Ipam::start(self.client.clone(), &self.settings, &shutdown).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(ipam.clone().serve_on(listener, shutdown.clone()));
        let client = IpamClient::connect(format!("http://{address}")).await.unwrap();
        (ipam, client, shutdown)
    }

    /// What joins networks.
    async fn start(&self) -> (Ipam, Shutdown) {
        let shutdown = Shutdown::new();
        let context = Arc::new(Context {
            client: self.client.clone(),
            settings: self.settings.clone(),
            remotes: Remotes::new(self.client.clone()),
            shutdown: shutdown.clone(),
            events: Events::new(self.client.clone(), "test"),
        });
        let ipam = Ipam::start(self.client.clone(), &self.settings, &shutdown).await.unwrap();
        tokio::spawn(network_config::run(context.clone(), ipam.clone()));
        tokio::spawn(replicator::run(context));
        (ipam, shutdown)
    }

    /// What discovery and authentication would have brought about.
    async fn knows(&self, other: &Side) {
        let peer = &other.settings;
        let ours = names::tenant_namespace(&peer.cluster_name);
        let theirs = names::tenant_namespace(&self.settings.cluster_name);
        self.tenant(&ours, peer.cluster_id.as_str()).await;
        let kubeconfig = other.identity_for(self).await;
        let secret = json!({
            "metadata": { "name": names::IDENTITY_SECRET },
            "stringData": { "kubeconfig": kubeconfig },
        });
        self.make_in::<Secret>(&ours, secret).await;
        let identity = json!({ "clusterID": peer.cluster_id, "clusterName": peer.cluster_name });
        self.make::<ForeignCluster>(json!({
            "metadata": { "name": peer.cluster_name },
            "spec": { "authUrl": "https://192.0.2.1:443", "clusterIdentity": identity },
        }))
        .await;
        let status = json!({
            "authStatus": "Accepted",
            "tenantNamespace": { "local": ours, "remote": theirs },
            "conditions": [{
                "type": "Authenticated", "status": "True", "reason": "Accepted", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        });
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let name = peer.cluster_name.as_str();
        writer::apply_status(&clusters, "test", name, &status).await.expect("a status");
    }

    async fn identity_for(&self, other: &Side) -> String {
        let namespace = names::tenant_namespace(&other.settings.cluster_name);
        self.tenant(&namespace, other.settings.cluster_id.as_str()).await;
        let account = "liqo-cluster";
        self.make_in::<ServiceAccount>(&namespace, json!({ "metadata": { "name": account } }))
            .await;
        let role = json!({
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin",
        });
        let subject = json!({ "kind": "ServiceAccount", "name": account, "namespace": namespace });
        let binding = json!({
            "metadata": { "name": account }, "roleRef": role, "subjects": [subject],
        });
        self.make_in::<RoleBinding>(&namespace, binding).await;
        let accounts = Api::<ServiceAccount>::namespaced(self.client.clone(), &namespace);
        let spec = TokenRequestSpec { expiration_seconds: Some(3600), ..Default::default() };
        let request = TokenRequest { spec, ..Default::default() };
        let token =
            accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
        let context = json!({ "cluster": "it", "user": "it", "namespace": namespace });
        let server = json!({
            "server": self.settings.api_server_url, "insecure-skip-tls-verify": true,
        });
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{ "name": "it", "cluster": server }],
            "users": [{ "name": "it", "user": { "token": token.status.unwrap().token } }],
            "contexts": [{ "name": "it", "context": context }],
        })
        .to_string()
    }

    async fn tenant(&self, namespace: &str, peer: &str) {
        let labels = json!({ names::TENANT_LABEL: "true", names::CLUSTER_ID_LABEL: peer });
        self.make::<Namespace>(json!({ "metadata": { "name": namespace, "labels": labels } }))
            .await;
    }

    /// A gateway announces itself.
    async fn gateway(&self, ip: &str) {
        let annotations = json!({
            names::GATEWAY_ENDPOINT_ANNOTATION: ip,
            names::GATEWAY_PORT_ANNOTATION: "51840",
            names::GATEWAY_PUBLIC_KEY_ANNOTATION: format!("{}=", "A".repeat(43)),
        });
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": names::GATEWAY_LEASE, "annotations": annotations },
        });
        let leases = Api::<Lease>::namespaced(self.client.clone(), names::NAMESPACE);
        let params = PatchParams::apply("test");
        leases.patch(names::GATEWAY_LEASE, &params, &Patch::Apply(&lease)).await.unwrap();
    }

    /// All mappings that gateways are told, whatever the cluster.
    async fn nat_mappings(&self) -> BTreeMap<String, String> {
        let mappings = Api::<NatMapping>::all(self.client.clone());
        let mappings = mappings.list(&ListParams::default()).await.unwrap();
        let all = mappings.iter().flat_map(|mapping| &mapping.spec.cluster_mappings);
        all.map(|(from, to)| (from.to_string(), to.to_string())).collect()
    }

    async fn says(&self, peer: &str, reason: &str) {
        let ask = async || {
            let status = self.get::<ForeignCluster>(peer).await.status?;
            let found = status.conditions.into_iter().find(|it| it.type_ == "TunnelEndpoint")?;
            Some((found.reason, found.message))
        };
        let what = format!("{} says of the tunnel to {peer}", self.settings.cluster_name);
        eventually(&what, ask, |said| said.as_ref().is_some_and(|(said, _)| said == reason)).await;
    }

    async fn get<K>(&self, name: &str) -> K
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        Api::<K>::all(self.client.clone()).get(name).await.expect("it is there")
    }

    async fn until<K>(&self, namespace: &str, name: &str, wanted: impl Fn(&K) -> bool) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api = Api::<K>::namespaced(self.client.clone(), namespace);
        let ask = async || api.get_opt(name).await.expect("an answer");
        let is_wanted = |found: &Option<K>| found.as_ref().is_some_and(&wanted);
        let what = format!("{} {namespace}/{name}", K::kind(&()));
        eventually(&what, ask, is_wanted).await.expect("it was found")
    }

    async fn none<K>(&self)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api = Api::<K>::all(self.client.clone());
        let ask = async || {
            let list = api.list(&ListParams::default()).await.expect("a list");
            list.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        };
        eventually(&format!("no {}", K::kind(&())), ask, Vec::is_empty).await;
    }

    async fn clear<K>(&self)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let api = Api::<K>::all(self.client.clone());
        for object in api.list(&ListParams::default()).await.expect("a list") {
            let url = K::url_path(&(), object.namespace().as_deref());
            let request = kube::core::Request::new(url);
            let request =
                request.delete(&object.name_any(), &DeleteParams::default()).expect("a request");
            self.client.request_text(request).await.expect("it can be deleted");
        }
    }

    async fn make<K>(&self, object: Value)
    where
        K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
    {
        make(&Api::<K>::all(self.client.clone()), object).await;
    }

    async fn make_in<K>(&self, namespace: &str, object: Value)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + Serialize
            + DeserializeOwned,
    {
        make(&Api::<K>::namespaced(self.client.clone(), namespace), object).await;
    }
}

async fn make<K>(api: &Api<K>, object: Value)
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let object: K = serde_json::from_value(object).expect("a manifest");
    match api.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        other => drop(other.expect("it can be made")),
    }
}

async fn map(
    client: &mut IpamClient<Channel>,
    cluster: &str,
    ip: &str,
) -> Result<String, tonic::Status> {
    let request = MapRequest { cluster_id: cluster.into(), ip: ip.into() };
    Ok(client.map_endpoint_ip(request).await?.into_inner().ip)
}

async fn remote(
    client: &mut IpamClient<Channel>,
    cluster: &str,
    ip: &str,
) -> Result<String, tonic::Status> {
    let request = GetRemotePodIpRequest { cluster_id: cluster.into(), ip: ip.into() };
    Ok(client.get_remote_pod_ip(request).await?.into_inner().remote_ip)
}

async fn define(client: &Client) {
    let definitions = Api::all(client.clone());
    for definition in tombolo_api::crds() {
        let name = definition.name_any();
        definitions.create(&PostParams::default(), &definition).await.expect("it is valid");
        let established = kube::runtime::conditions::is_crd_established();
        kube::runtime::wait::await_condition(definitions.clone(), &name, established)
            .await
            .expect("it is established");
    }
}

async fn eventually<T: Debug>(
    what: &str,
    mut ask: impl AsyncFnMut() -> T,
    wanted: impl Fn(&T) -> bool,
) -> T {
    let start = Instant::now();
    loop {
        let answer = ask().await;
        if wanted(&answer) {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}
