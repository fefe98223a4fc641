//! Offloading on a real API server, which is home and remote cluster at once: a namespace gets its
//! twin and loses it, pods are amended as the API server asks, and endpoints of other clusters go
//! out of service with these.

use std::{
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::Deref,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Namespace, Pod, Secret},
    discovery::v1::EndpointSlice,
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::{runtime::Runtime, sync::OnceCell};
use tombolo_api::{
    discovery::ForeignCluster,
    offloading::{NamespaceOffloading, OffloadingPhase},
    sharing::ResourceOffer,
    virtualkubelet::{NamespaceMap, ShadowEndpointSlice},
};
use tombolo_control::{
    context::Context, namespace_map, namespace_offloading, shadow_endpoint_slice, twin_namespace,
    webhook,
};
use tombolo_runtime::{shutdown::Shutdown, writer};
use tombolo_testbed::{ClusterSpec, Testbed, answer_to};
use tombolo_testing::{Side, condition, settings};

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static BED: OnceCell<(Testbed, World)> = OnceCell::const_new();

#[test]
fn the_label_offloads_a_namespace_and_its_removal_brings_it_back() {
    RUNTIME.block_on(async {
        let world = world().await;
        world
            .put::<Namespace>(
                "shop",
                json!({ "metadata": { "labels": { "liqo.io/enabled": "true" } } }),
            )
            .await;

        let offloading =
            world.offloading("shop", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let status = offloading.status.unwrap();
        assert_eq!(status.clusters[0].remote_namespace_name.as_deref(), Some("shop-rome"));
        assert_eq!(status.conditions[0].status, "True");
        let map = world.get_in::<NamespaceMap>("liqo-tenant-milan", "rome").await.unwrap();
        assert_eq!(map.spec.desired_mapping["shop"], "shop-rome");
        assert_eq!(map.labels()["liqo.io/replicate-to"], "id-of-milan");
        let shop = world.get::<Namespace>("shop").await.unwrap();
        assert_eq!(shop.labels()["liqo.io/scheduling"], "enabled");
        let binding = world.get_in::<RoleBinding>("shop", "liqo-kubelet").await.unwrap();
        assert_eq!(binding.role_ref.name, "liqo-kubelet-namespace");
        let twin = world.get::<Namespace>("shop-rome").await.unwrap();
        assert_eq!(twin.labels()["liqo.io/remote-cluster-id"], "id-of-rome");
        assert_eq!(twin.annotations()["liqo.io/home-namespace"], "shop");
        let binding = world.get_in::<RoleBinding>("shop-rome", "liqo-twin").await.unwrap();
        let subject = &binding.subjects.unwrap()[0];
        assert_eq!(
            (&*subject.name, subject.namespace.as_deref()),
            ("liqo-cluster", Some("liqo-tenant-rome"))
        );

        // Somebody deletes the twin: it is made again.
        let before = twin.uid();
        world.delete::<Namespace>("shop-rome").await;
        answer_to("the twin is made again", async || {
            world.get::<Namespace>("shop-rome").await.filter(|twin| twin.uid() != before).map(drop)
        })
        .await;
        world.offloading("shop", |o| phase(o) == Some(OffloadingPhase::Ready)).await;

        let unlabel = json!({ "metadata": { "labels": { "liqo.io/enabled": null } } });
        let api: Api<Namespace> = Api::all(world.client.clone());
        api.patch("shop", &PatchParams::default(), &Patch::Merge(unlabel)).await.unwrap();
        answer_to("all of it is gone", async || {
            let offloading = world.get_in::<NamespaceOffloading>("shop", "offloading").await;
            let twin = world.get::<Namespace>("shop-rome").await;
            let binding = world.get_in::<RoleBinding>("shop", "liqo-kubelet").await;
            (offloading.is_none() && twin.is_none() && binding.is_none()).then_some(())
        })
        .await;
        let shop = world.get::<Namespace>("shop").await.unwrap();
        assert!(!shop.labels().contains_key("liqo.io/scheduling"));
        let map = world.get_in::<NamespaceMap>("liqo-tenant-milan", "rome").await.unwrap();
        assert!(!map.spec.desired_mapping.contains_key("shop"));
    });
}

#[test]
fn what_a_user_made_stays_without_the_label() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.put::<Namespace>("mine", json!({})).await;
        let spec =
            json!({ "namespaceMappingStrategy": "SelectedName", "remoteNamespaceName": "yours" });
        world.put_in::<NamespaceOffloading>("mine", "offloading", json!({ "spec": spec })).await;
        world.offloading("mine", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let label =
            |value: Value| json!({ "metadata": { "labels": { "liqo.io/enabled": value } } });
        let api: Api<Namespace> = Api::all(world.client.clone());
        for value in [json!("true"), Value::Null] {
            api.patch("mine", &PatchParams::default(), &Patch::Merge(label(value))).await.unwrap();
        }
        // Controllers have seen the label go once they have seen what came after it.
        world
            .put::<Namespace>(
                "after",
                json!({ "metadata": { "labels": { "liqo.io/enabled": "true" } } }),
            )
            .await;
        world.offloading("after", |o| phase(o) == Some(OffloadingPhase::Ready)).await;
        let mine = world.get_in::<NamespaceOffloading>("mine", "offloading").await.unwrap();
        assert!(mine.metadata.deletion_timestamp.is_none());
        assert!(world.get::<Namespace>("yours").await.is_some());

        // With the namespace goes its twin.
        world.delete::<Namespace>("mine").await;
        for name in ["mine", "yours"] {
            world.until_gone::<Namespace>(name).await;
        }
    });
}

#[test]
fn a_namespace_that_was_there_is_no_twin_and_stays() {
    RUNTIME.block_on(async {
        let world = world().await;
        // It is home and remote cluster at once, so the name is taken.
        world.put::<Namespace>("taken", json!({})).await;
        let spec = json!({ "namespaceMappingStrategy": "EnforceSameName" });
        world.put_in::<NamespaceOffloading>("taken", "offloading", json!({ "spec": spec })).await;
        let offloading =
            world.offloading("taken", |o| phase(o) == Some(OffloadingPhase::Failed)).await;
        let status = offloading.status.unwrap();
        assert!(status.clusters[0].message.as_ref().unwrap().contains("taken"));
        assert_eq!(status.conditions[0].reason, "Refused");
        world.delete_in::<NamespaceOffloading>("taken", "offloading").await;
        world.until_gone_in::<NamespaceOffloading>("taken", "offloading").await;
        let taken = world.get::<Namespace>("taken").await.unwrap();
        assert!(taken.metadata.deletion_timestamp.is_none());
    });
}

#[test]
fn the_api_server_asks_the_webhook_about_pods() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.put::<Namespace>("amended", json!({})).await;
        let selector = json!({ "nodeSelectorTerms": [{ "matchExpressions": [
            { "key": "region", "operator": "In", "values": ["north"] },
        ] }] });
        let spec = json!({ "podOffloadingStrategy": "Remote", "clusterSelector": selector });
        world.put_in::<NamespaceOffloading>("amended", "offloading", json!({ "spec": spec })).await;
        let api: Api<Pod> = Api::namespaced(world.client.clone(), "amended");
        let pod: Pod = serde_json::from_value(json!({
            "metadata": { "generateName": "pod-" },
            "spec": { "containers": [{ "name": "c", "image": "none" }] },
        }))
        .unwrap();
        // Until the namespace has its label and its account, and the webhook its certificate.
        let amended = answer_to("a pod is amended", async || {
            let pod = api.create(&PostParams::default(), &pod).await.ok()?;
            pod.spec.unwrap().affinity
        })
        .await;
        let required = amended.node_affinity.unwrap();
        let required = required.required_during_scheduling_ignored_during_execution.unwrap();
        assert_eq!(
            serde_json::to_value(&required.node_selector_terms).unwrap(),
            json!([{ "matchExpressions": [
                { "key": "region", "operator": "In", "values": ["north"] },
                { "key": "liqo.io/type", "operator": "In", "values": ["virtual-node"] },
            ] }])
        );
        let pod = api.create(&PostParams::default(), &pod).await.unwrap();
        let tolerations = pod.spec.unwrap().tolerations.unwrap();
        let ours = tolerations
            .iter()
            .find(|t| t.key.as_deref() == Some("virtual-node.liqo.io/not-allowed"))
            .unwrap();
        assert_eq!(ours.toleration_seconds, None);

        // A lost certificate is made anew, and the API server learns of it.
        world.delete_in::<Secret>("liqo", "liqo-webhook-cert").await;
        answer_to("the API server trusts another certificate", async || {
            let secret = world.get_in::<Secret>("liqo", "liqo-webhook-cert").await?;
            let hooks = world.get::<MutatingWebhookConfiguration>("liqo").await?;
            let bundle = hooks.webhooks?[0].client_config.ca_bundle.clone();
            (bundle.as_ref() == secret.data?.get("tls.crt")).then_some(())
        })
        .await;
    });
}

#[test]
fn endpoints_go_out_of_service_with_their_cluster() {
    RUNTIME.block_on(async {
        let world = world().await;
        world.put::<Namespace>("endpoints", json!({})).await;
        world.foreign_cluster("paris", json!({})).await;
        world.paris("True", "True").await;
        let shadow = json!({
            "metadata": { "labels": {
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice.reflection.liqo.io",
                "virtualkubelet.liqo.io/origin": "id-of-paris",
                "virtualkubelet.liqo.io/destination": "id-of-rome",
            } },
            "spec": { "template": {
                "addressType": "IPv4", "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
                "endpoints": [
                    { "addresses": ["10.71.0.1"], "conditions": { "ready": true } },
                    { "addresses": ["10.71.0.2"], "conditions": { "ready": false } },
                ],
            } },
        });
        world.put_in::<ShadowEndpointSlice>("endpoints", "web-1", shadow).await;
        let is_ready = async |wanted: [bool; 2]| {
            let since = Instant::now();
            answer_to(&format!("readiness is {wanted:?}"), async || {
                let slice = world.get_in::<EndpointSlice>("endpoints", "web-1").await?;
                let ready = slice.endpoints.iter().map(|e| e.conditions.as_ref()?.ready);
                let ready: Vec<bool> = ready.collect::<Option<_>>()?;
                (ready == wanted).then_some(())
            })
            .await;
            since.elapsed()
        };
        is_ready([true, false]).await;
        let slice = world.get_in::<EndpointSlice>("endpoints", "web-1").await.unwrap();
        assert_eq!(slice.labels()["kubernetes.io/service-name"], "web");
        assert_eq!(slice.owner_references()[0].kind, "ShadowEndpointSlice");
        for (tunnel, api_server) in [("False", "True"), ("True", "Unknown")] {
            world.paris(tunnel, api_server).await;
            let took = is_ready([false, false]).await;
            assert!(took < Duration::from_secs(1), "out of service after {took:?}");
            world.paris("True", "True").await;
            let took = is_ready([true, false]).await;
            assert!(took < Duration::from_secs(1), "in service again after {took:?}");
        }

        // It is put right, and goes with the shadow.
        let before = slice.uid();
        world.delete_in::<EndpointSlice>("endpoints", "web-1").await;
        let is_another = |slice: &EndpointSlice| slice.uid() != before;
        world.until_in("endpoints", "web-1", is_another).await;
        world.delete_in::<ShadowEndpointSlice>("endpoints", "web-1").await;
        world.until_gone_in::<EndpointSlice>("endpoints", "web-1").await;
    });
}

/// The cluster, with all controllers of both sides, and somebody who carries NamespaceMaps from
/// one tenant namespace to the other.
struct World(Side);

impl Deref for World {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.0
    }
}

async fn world() -> &'static World {
    &BED.get_or_init(start).await.1
}

async fn start() -> (Testbed, World) {
    let cluster = ClusterSpec::new("rome").control_plane_only();
    let bed = Testbed::builder("offloading").cluster(cluster).start().await;
    let bed = bed.expect("the control plane starts");
    let world = World(Side::new(bed.cluster("rome")).await);
    for peer in ["rome", "milan"] {
        world.tenant(&format!("liqo-tenant-{peer}"), &format!("id-of-{peer}")).await;
    }
    let tenant = json!({ "tenantNamespace": { "local": "liqo-tenant-milan" } });
    world.foreign_cluster("milan", tenant).await;
    let offer = json!({
        "metadata": { "labels": { "liqo.io/replicated-from": "id-of-milan" } },
        "spec": { "clusterID": "id-of-milan", "resourceQuota": { "hard": { "cpu": "4" } } },
    });
    world.put_in::<ResourceOffer>("liqo-tenant-milan", "milan", offer).await;
    let accepted = json!({ "phase": "Accepted" });
    world.put_status_in::<ResourceOffer>("liqo-tenant-milan", "milan", accepted).await;

    let address = world.cluster.node(1).address();
    let context = |name: &str| {
        let settings = settings(name, address);
        Arc::new(Context::new(world.client.clone(), settings, Shutdown::new()))
    };
    let (rome, milan) = (context("rome"), context("milan"));
    tokio::spawn(namespace_offloading::run(rome.clone()));
    tokio::spawn(namespace_map::run(rome.clone()));
    tokio::spawn(twin_namespace::run(milan.clone()));
    tokio::spawn(shadow_endpoint_slice::run(milan));
    tokio::spawn(carry(world.client.clone()));
    world.serve_webhook(rome, address).await;
    (bed, world)
}

/// What the replicator does, with less care.
async fn carry(client: Client) {
    let here: Api<NamespaceMap> = Api::namespaced(client.clone(), "liqo-tenant-milan");
    let there: Api<NamespaceMap> = Api::namespaced(client, "liqo-tenant-rome");
    loop {
        if let Ok(Some(original)) = here.get_opt("rome").await {
            let mut copy = NamespaceMap::new("rome", original.spec.clone());
            let label = ("liqo.io/replicated-from".to_owned(), "id-of-rome".to_owned());
            copy.metadata.labels = Some([label].into());
            if let Ok(copy) = writer::apply(&there, "test", &copy).await
                && let Some(status) = &copy.status
                && original.status.as_ref() != Some(status)
            {
                let _ = writer::apply_status(&here, "test", "rome", status).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

impl World {
    /// The NamespaceOffloading of a namespace, once it is as wanted.
    async fn offloading(
        &self,
        namespace: &str,
        is_as_wanted: impl Fn(&NamespaceOffloading) -> bool,
    ) -> NamespaceOffloading {
        self.until_in(namespace, "offloading", is_as_wanted).await
    }

    async fn foreign_cluster(&self, name: &str, status: Value) {
        let identity = json!({ "clusterID": format!("id-of-{name}"), "clusterName": name });
        let spec = json!({ "authUrl": "https://192.0.2.1", "clusterIdentity": identity });
        self.put::<ForeignCluster>(name, json!({ "spec": spec })).await;
        self.put_status::<ForeignCluster>(name, status).await;
    }

    async fn paris(&self, tunnel: &str, api_server: &str) {
        let conditions = [condition("TunnelEndpoint", tunnel), condition("APIServer", api_server)];
        self.put_status::<ForeignCluster>("paris", json!({ "conditions": conditions })).await;
    }

    /// The API server finds the webhook at an address of this machine, not by a Service.
    async fn serve_webhook(&self, ctx: Arc<Context>, api_server: Ipv4Addr) {
        let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        route.connect((api_server, 6443)).unwrap();
        let host = route.local_addr().unwrap().ip();
        let listener = TcpListener::bind((host, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let hook = json!({
            "name": "pods.liqo.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail",
            "clientConfig": { "url": format!("https://{address}/mutate") },
            "namespaceSelector": { "matchLabels": { "liqo.io/scheduling": "enabled" } },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
                "operations": ["CREATE"],
            }],
        });
        self.put::<MutatingWebhookConfiguration>("liqo", json!({ "webhooks": [hook] })).await;
        let certificate = rcgen::generate_simple_self_signed([host.to_string()]).unwrap();
        let pair = json!({
            "tls.crt": certificate.cert.pem(), "tls.key": certificate.signing_key.serialize_pem(),
        });
        let secret = json!({ "type": "kubernetes.io/tls", "stringData": pair });
        self.put_in::<Secret>("liqo", "liqo-webhook-cert", secret).await;
        tokio::spawn(async move { webhook::serve(ctx, listener).await.expect("it serves") });
    }
}

fn phase(offloading: &NamespaceOffloading) -> Option<OffloadingPhase> {
    Some(offloading.status.as_ref()?.clusters.first()?.phase)
}
