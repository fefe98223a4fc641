//! Reflection between two real API servers: what is in a home namespace is in its twin, follows,
//! is put right and goes.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    net::Ipv4Addr,
    sync::{Arc, LazyLock, Mutex},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Secret, Service},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    runtime::Runtime,
    sync::{OnceCell, watch},
};
use tombolo_api::{
    ipam::{
        GetHomePodIpBatchRequest, GetHomePodIpBatchResponse, GetHomePodIpRequest,
        GetHomePodIpResponse, GetRemotePodIpBatchRequest, GetRemotePodIpBatchResponse,
        GetRemotePodIpRequest, GetRemotePodIpResponse, MapBatchRequest, MapBatchResponse,
        MapRequest, MapResponse, MapResult, UnmapBatchRequest, UnmapBatchResponse, UnmapRequest,
        UnmapResponse,
        ipam_server::{Ipam, IpamServer},
        map_result,
    },
    virtualkubelet::ShadowEndpointSlice,
};
use tombolo_core::translate::Networks;
use tombolo_kubelet::{
    peer::Peer,
    reflection::{Homes, run_with},
};
use tombolo_runtime::{remote::Remote, settings::Settings, shutdown::Shutdown};
use tombolo_testbed::{ClusterSpec, Testbed};
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static BED: OnceCell<Testbed> = OnceCell::const_new();

#[test]
fn objects_appear_follow_are_put_right_and_go() {
    RUNTIME.block_on(async {
        let shop = Shop::new("follows").await;
        let web =
            json!({ "type": "NodePort", "selector": { "app": "web" }, "ports": [{ "port": 80 }] });
        shop.put::<Service>("web", json!({ "spec": web })).await;
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "1", "b": "2" } })).await;
        shop.put::<ConfigMap>("kube-root-ca.crt", json!({ "data": { "ca.crt": "x" } })).await;
        shop.put::<Secret>("login", json!({ "data": { "user": "YQ==" } })).await;
        let reflection = shop.reflect();

        let service = shop.there::<Service>("web", |_| true).await;
        let port = &service.spec.as_ref().unwrap().ports.as_ref().unwrap()[0];
        assert_eq!(port.port, 80);
        assert_eq!(service.labels()["virtualkubelet.liqo.io/origin"], "rome-id");
        assert_eq!(service.labels()["virtualkubelet.liqo.io/destination"], "milan-id");
        shop.there::<Secret>("login", |_| true).await;
        shop.there::<ConfigMap>("settings", |map| data(map, "b") == Some("2")).await;

        // It follows what changes at home, also what is no longer wanted.
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "3" } })).await;
        let is_followed = |map: &ConfigMap| data(map, "a") == Some("3") && data(map, "b").is_none();
        shop.there::<ConfigMap>("settings", is_followed).await;

        // What somebody changes or deletes over there is put right.
        let api: Api<ConfigMap> = shop.remote_api();
        let meddled = json!({ "data": { "a": "4" } });
        api.patch("settings", &PatchParams::default(), &Patch::Merge(meddled)).await.unwrap();
        shop.there::<ConfigMap>("settings", is_followed).await;
        let before = api.get("settings").await.unwrap().uid();
        api.delete("settings", &DeleteParams::default()).await.unwrap();
        shop.there::<ConfigMap>("settings", |map| map.uid() != before).await;

        // What can't be changed in place is made anew.
        shop.delete::<Service>("web").await;
        shop.put::<Service>(
            "web",
            json!({ "spec": { "clusterIP": "None", "selector": { "app": "db" } } }),
        )
        .await;
        shop.there::<Service>("web", |service| {
            service.spec.as_ref().unwrap().cluster_ip.as_deref() == Some("None")
        })
        .await;

        shop.delete::<Service>("web").await;
        shop.gone::<Service>("web").await;

        // What goes at home while nobody looks goes over there when somebody does.
        reflection.ask();
        shop.delete::<ConfigMap>("settings").await;
        let _reflection = shop.reflect();
        shop.gone::<ConfigMap>("settings").await;
        shop.there::<Secret>("login", |_| true).await;
        let root = Api::<ConfigMap>::namespaced(shop.milan.clone(), &shop.twin);
        let root = root.get("kube-root-ca.crt").await.unwrap();
        assert!(!root.labels().contains_key("virtualkubelet.liqo.io/origin"));
    });
}

#[test]
fn what_is_somebody_elses_is_left_alone() {
    RUNTIME.block_on(async {
        let shop = Shop::new("taken").await;
        let theirs = json!({ "metadata": { "name": "settings" }, "data": { "a": "theirs" } });
        let api: Api<ConfigMap> = shop.remote_api();
        let theirs = serde_json::from_value(theirs).unwrap();
        api.create(&PostParams::default(), &theirs).await.unwrap();
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "ours" } })).await;
        shop.put::<ConfigMap>("other", json!({ "data": { "a": "ours" } })).await;
        let _reflection = shop.reflect();
        shop.there::<ConfigMap>("other", |_| true).await;
        let events: Api<k8s_openapi::api::events::v1::Event> =
            Api::namespaced(shop.rome.clone(), &shop.namespace);
        eventually("an event says so", async || {
            let events = events.list(&Default::default()).await.unwrap();
            let said = events.items.iter().any(|e| e.reason.as_deref() == Some("NotReflected"));
            said.then_some(())
        })
        .await;
        assert_eq!(data(&api.get("settings").await.unwrap(), "a"), Some("theirs"));
        assert!(api.get("settings").await.unwrap().labels().is_empty());

        // Once that one is gone there is room.
        api.delete("settings", &DeleteParams::default()).await.unwrap();
        shop.there::<ConfigMap>("settings", |map| data(map, "a") == Some("ours")).await;
    });
}

#[test]
fn endpoints_are_known_by_their_address_over_there() {
    RUNTIME.block_on(async {
        let shop = Shop::new("endpoints").await;
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [
                { "addresses": ["10.244.1.5"], "nodeName": "rome-1", "conditions": { "ready": true } },
                { "addresses": ["10.71.0.9"], "nodeName": "liqo-milan" },
                { "addresses": ["192.0.2.7"], "conditions": { "ready": false } },
            ],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        });
        shop.put::<EndpointSlice>("web-1", slice).await;
        let _reflection = shop.reflect();
        let nothing = shop.remote_api::<ShadowEndpointSlice>().get_opt("web-1").await.unwrap();
        assert_eq!(nothing, None, "the networks are not known yet");
        shop.networks.send_replace(Some(networks()));
        let shadow = shop.there::<ShadowEndpointSlice>("web-1", |shadow| {
            addresses(shadow) == ["10.71.1.5", "10.72.0.7"]
        });
        let shadow = shadow.await;
        assert_eq!(shadow.labels()["kubernetes.io/service-name"], "web");
        assert!(shadow.spec.template.endpoints.iter().all(|e| e.node_name.is_none()));

        // Readiness follows; an address that nobody uses any more is given back.
        let slice = json!({
            "metadata": { "labels": { "kubernetes.io/service-name": "web" } },
            "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.244.1.5"], "conditions": { "ready": false } }],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        });
        shop.put::<EndpointSlice>("web-1", slice).await;
        let shadow = shop.there::<ShadowEndpointSlice>("web-1", |shadow| {
            addresses(shadow) == ["10.71.1.5"]
        });
        let conditions = shadow.await.spec.template.endpoints[0].conditions.clone().unwrap();
        assert_eq!(conditions.ready, Some(false));
        eventually("it is given back", async || {
            shop.ipam.given_back.lock().unwrap().contains(&"192.0.2.7".to_owned()).then_some(())
        })
        .await;
        shop.delete::<EndpointSlice>("web-1").await;
        shop.gone::<ShadowEndpointSlice>("web-1").await;
    });
}

#[test]
fn a_namespace_that_leaves_the_map_is_left_as_it_is() {
    RUNTIME.block_on(async {
        let shop = Shop::new("leaves").await;
        shop.put::<ConfigMap>("settings", json!({ "data": { "a": "1" } })).await;
        let _reflection = shop.reflect();
        shop.there::<ConfigMap>("settings", |_| true).await;
        shop.namespaces.send_replace(BTreeMap::new());
        // The flows have heard of it once another namespace of the same send is reflected.
        let other = Shop::new("stays").await;
        other.put::<ConfigMap>("settings", json!({ "data": { "a": "1" } })).await;
        shop.namespaces.send_replace([(other.namespace.clone(), other.twin.clone())].into());
        other.there::<ConfigMap>("settings", |_| true).await;
        shop.delete::<ConfigMap>("settings").await;
        other.put::<ConfigMap>("settings", json!({ "data": { "a": "2" } })).await;
        other.there::<ConfigMap>("settings", |map| data(map, "a") == Some("2")).await;
        assert!(shop.remote_api::<ConfigMap>().get_opt("settings").await.unwrap().is_some());
    });
}

trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
{
}

/// A namespace of rome, its twin in milan, and what reflects between them.
struct Shop {
    rome: Client,
    milan: Client,
    namespace: String,
    twin: String,
    namespaces: watch::Sender<BTreeMap<String, String>>,
    networks: watch::Sender<Option<Networks>>,
    ipam: FixedIpam,
    channel: Channel,
}

impl Shop {
    async fn new(namespace: &str) -> Self {
        let bed = BED.get_or_init(start).await;
        let (rome, milan) = (bed.cluster("rome"), bed.cluster("milan"));
        let (rome, milan) = (rome.client().await.unwrap(), milan.client().await.unwrap());
        let twin = format!("{namespace}-rome");
        for (client, name) in [(&rome, namespace), (&milan, &twin)] {
            let namespace = json!({ "metadata": { "name": name } });
            let namespace: Namespace = serde_json::from_value(namespace).unwrap();
            let api: Api<Namespace> = Api::all(client.clone());
            api.create(&PostParams::default(), &namespace).await.unwrap();
        }
        let ipam = FixedIpam::default();
        let channel = ipam.clone().serve().await;
        let (namespaces, _) = watch::channel([(namespace.to_owned(), twin.clone())].into());
        let (networks, _) = watch::channel(None);
        let namespace = namespace.to_owned();
        Self { rome, milan, namespace, twin, namespaces, networks, ipam, channel }
    }

    /// Until the end is asked for.
    fn reflect(&self) -> Shutdown {
        let identity = |id: &str, name: &str| {
            serde_json::from_value(json!({ "clusterID": id, "clusterName": name })).unwrap()
        };
        let shutdown = Shutdown::new();
        let cluster: tombolo_api::ClusterIdentity = identity("milan-id", "milan");
        let peer = Peer {
            home: self.rome.clone(),
            settings: Arc::new(Settings {
                cluster_id: "rome-id".parse().unwrap(),
                cluster_name: "rome".parse().unwrap(),
                api_server_url: "https://192.0.2.1:6443".into(),
                pod_cidr: "10.244.0.0/16".parse().unwrap(),
                service_cidr: "10.96.0.0/16".parse().unwrap(),
                pod_name: "liqo-kubelet-0".into(),
                pod_ip: Ipv4Addr::LOCALHOST.into(),
                node_name: "rome-1".into(),
                host_ip: Ipv4Addr::LOCALHOST.into(),
            }),
            remote: Remote::new(
                self.milan.clone(),
                "liqo-tenant-rome".into(),
                cluster.clone(),
                "https://192.0.2.2:6443".into(),
            ),
            cluster,
            node: "liqo-milan".into(),
            tenant_namespace: "liqo-tenant-milan".into(),
            namespaces: self.namespaces.subscribe(),
            networks: self.networks.subscribe(),
            shutdown: shutdown.clone(),
        };
        let homes = Arc::new(Homes::new(self.rome.clone()));
        tokio::spawn(run_with(Arc::new(peer), homes, self.channel.clone()));
        shutdown
    }

    fn home_api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.rome.clone(), &self.namespace)
    }

    fn remote_api<K: Object>(&self) -> Api<K> {
        Api::namespaced(self.milan.clone(), &self.twin)
    }

    async fn put<K: Object>(&self, name: &str, mut object: Value) {
        object["apiVersion"] = K::api_version(&()).into();
        object["kind"] = K::kind(&()).into();
        object["metadata"]["name"] = name.into();
        let params = PatchParams::apply("test").force();
        self.home_api::<K>().patch(name, &params, &Patch::Apply(object)).await.unwrap();
    }

    async fn delete<K: Object>(&self, name: &str) {
        self.home_api::<K>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn there<K: Object>(&self, name: &str, is_as_wanted: impl Fn(&K) -> bool) -> K {
        let api = self.remote_api::<K>();
        let what = format!("{} {name} is there as wanted", K::kind(&()));
        eventually(&what, async || api.get_opt(name).await.unwrap().filter(&is_as_wanted)).await
    }

    async fn gone<K: Object>(&self, name: &str) {
        let api = self.remote_api::<K>();
        let what = format!("{} {name} is gone", K::kind(&()));
        eventually(&what, async || api.get_opt(name).await.unwrap().is_none().then_some(())).await;
    }
}

/// An address service that has 10.72.0.x for whatever ends in x.
#[derive(Clone, Default)]
struct FixedIpam {
    given_back: Arc<Mutex<Vec<String>>>,
}

impl FixedIpam {
    async fn serve(self) -> Channel {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let incoming = tonic::transport::server::TcpIncoming::from(listener);
        let server = Server::builder().add_service(IpamServer::new(self));
        tokio::spawn(server.serve_with_incoming(incoming));
        Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
    }
}

type Answer<T> = Result<Response<T>, Status>;

fn unused<T>() -> Answer<T> {
    Err(Status::unimplemented("nobody asks for this"))
}

#[tonic::async_trait]
impl Ipam for FixedIpam {
    async fn map_endpoint_ip_batch(
        &self,
        request: Request<MapBatchRequest>,
    ) -> Answer<MapBatchResponse> {
        let map = |request: &MapRequest| {
            assert_eq!(request.cluster_id, "milan-id");
            let last = request.ip.rsplit('.').next().unwrap();
            let response = MapResponse { ip: format!("10.72.0.{last}") };
            MapResult { result: Some(map_result::Result::Response(response)) }
        };
        let results = request.get_ref().requests.iter().map(map).collect();
        Ok(Response::new(MapBatchResponse { results }))
    }

    async fn unmap_endpoint_ip_batch(
        &self,
        request: Request<UnmapBatchRequest>,
    ) -> Answer<UnmapBatchResponse> {
        let back = request.get_ref().requests.iter().map(|request| request.ip.clone());
        self.given_back.lock().unwrap().extend(back);
        Ok(Response::new(UnmapBatchResponse { results: Vec::new() }))
    }

    async fn map_endpoint_ip(&self, _: Request<MapRequest>) -> Answer<MapResponse> {
        unused()
    }

    async fn unmap_endpoint_ip(&self, _: Request<UnmapRequest>) -> Answer<UnmapResponse> {
        unused()
    }

    async fn get_remote_pod_ip(
        &self,
        _: Request<GetRemotePodIpRequest>,
    ) -> Answer<GetRemotePodIpResponse> {
        unused()
    }

    async fn get_home_pod_ip(
        &self,
        _: Request<GetHomePodIpRequest>,
    ) -> Answer<GetHomePodIpResponse> {
        unused()
    }

    async fn get_remote_pod_ip_batch(
        &self,
        _: Request<GetRemotePodIpBatchRequest>,
    ) -> Answer<GetRemotePodIpBatchResponse> {
        unused()
    }

    async fn get_home_pod_ip_batch(
        &self,
        _: Request<GetHomePodIpBatchRequest>,
    ) -> Answer<GetHomePodIpBatchResponse> {
        unused()
    }
}

async fn start() -> Testbed {
    let cluster = |name: &str| ClusterSpec::new(name).control_plane_only();
    let bed = Testbed::builder("reflection").cluster(cluster("rome")).cluster(cluster("milan"));
    let bed = bed.start().await.expect("the control planes start");
    let milan = bed.cluster("milan").client().await.unwrap();
    for crd in tombolo_api::crds() {
        let name = crd.name_any();
        let api = Api::all(milan.clone());
        api.create(&PostParams::default(), &crd).await.unwrap();
        let established = kube::runtime::conditions::is_crd_established();
        kube::runtime::wait::await_condition(api, &name, established).await.unwrap();
    }
    bed
}

fn networks() -> Networks {
    let cidr = |text: &str| text.parse().unwrap();
    Networks {
        local_pod: cidr("10.244.0.0/16"),
        local_external: cidr("10.70.0.0/16"),
        their_name_for_pods: cidr("10.71.0.0/16"),
        their_name_for_external: cidr("10.72.0.0/16"),
        remote_pod: cidr("10.244.0.0/16"),
        remote_external: cidr("10.70.0.0/16"),
        our_name_for_pods: cidr("10.71.0.0/16"),
        our_name_for_external: cidr("10.72.0.0/16"),
    }
}

fn addresses(shadow: &ShadowEndpointSlice) -> Vec<&str> {
    let endpoints = shadow.spec.template.endpoints.iter();
    endpoints.flat_map(|endpoint| &endpoint.addresses).map(String::as_str).collect()
}

fn data<'a>(map: &'a ConfigMap, key: &str) -> Option<&'a str> {
    map.data.as_ref()?.get(key).map(String::as_str)
}

async fn eventually<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "not after 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
