//! One cluster with the controllers and the auth service under test.

use std::{
    fmt::Debug,
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tombolo_api::{
    ClusterIdentity,
    config::ClusterConfig,
    discovery::{ForeignCluster, condition::AUTHENTICATED},
};
use tombolo_control::{auth, context::Context, foreign_cluster, identity};
use tombolo_runtime::{
    events::Events,
    remote::{Remote, Remotes},
    settings::Settings,
    shutdown::Shutdown,
};
use tombolo_testbed::Cluster;

pub struct Side {
    pub client: Client,
    pub settings: Settings,
    /// Of the auth service.
    pub url: String,
    running: Shutdown,
}

impl Side {
    pub async fn start(cluster: &Cluster) -> Self {
        let client = cluster.client().await.expect("a client");
        define(&client).await;
        let settings = Settings {
            cluster_id: format!("id-of-{}", cluster.name()).parse().unwrap(),
            cluster_name: cluster.name().parse().unwrap(),
            api_server_url: format!("https://{}:6443", cluster.node(1).address()),
            pod_cidr: "10.244.0.0/16".parse().unwrap(),
            service_cidr: "10.96.0.0/16".parse().unwrap(),
            pod_name: "control".into(),
            pod_ip: "127.0.0.1".parse().unwrap(),
            node_name: String::new(),
            host_ip: "127.0.0.1".parse().unwrap(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("https://{}", listener.local_addr().unwrap());
        let side = Self { client, settings, url, running: Shutdown::new() };
        for namespace in ["liqo", "liqo-auth"] {
            side.apply_all::<Namespace>(json!({ "metadata": { "name": namespace } })).await;
        }
        side.control(&side.running);
        let (ready, mut is_ready) = watch::channel(false);
        let (client, settings) = (side.client.clone(), side.settings.clone());
        tokio::spawn(auth::serve(client, settings, listener, ready, side.running.clone()));
        is_ready.wait_for(|ready| *ready).await.expect("the auth service starts");
        side
    }

    fn control(&self, shutdown: &Shutdown) {
        let context = Arc::new(Context {
            client: self.client.clone(),
            settings: self.settings.clone(),
            remotes: Remotes::new(self.client.clone()),
            shutdown: shutdown.clone(),
            events: Events::new(self.client.clone(), "liqo-control"),
        });
        tokio::spawn(identity::run(context.clone()));
        tokio::spawn(foreign_cluster::run(context));
    }

    pub fn cluster(&self) -> ClusterIdentity {
        self.settings.cluster()
    }

    pub async fn takes_no_token(&self, none: bool) {
        let config = json!({ "metadata": { "name": "cluster" }, "spec": { "auth": { "emptyToken": none } } });
        self.apply_all::<ClusterConfig>(config).await;
    }

    /// A ForeignCluster with nothing but a URL.
    pub async fn meets(&self, name: &str, url: &str) {
        let entry = json!({ "metadata": { "name": name }, "spec": { "authUrl": url } });
        self.apply_all::<ForeignCluster>(entry).await;
    }

    /// What discovery does when a cluster is seen at another address.
    pub async fn moves(&self, name: &str, url: &str) {
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let patch = Patch::Merge(json!({ "spec": { "authUrl": url } }));
        clusters.patch(name, &PatchParams::default(), &patch).await.expect("it is changed");
    }

    /// A Secret as people make it, with the token for another cluster.
    pub async fn has_token(&self, name: &str, cluster: &ClusterIdentity, token: &str) {
        let secret = json!({
            "metadata": { "name": name, "labels": {
                "discovery.liqo.io/cluster-id": cluster.cluster_id,
                "discovery.liqo.io/auth-token": "",
            } },
            "stringData": { "token": token },
        });
        apply(&Api::<Secret>::namespaced(self.client.clone(), "liqo"), secret).await;
    }

    pub async fn token(&self) -> String {
        self.secret("liqo", "auth-token", "token").await
    }

    pub async fn secret(&self, namespace: &str, name: &str, key: &str) -> String {
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        let secret = secrets.get(name).await.expect("the Secret");
        let data = secret.data.unwrap_or_default();
        String::from_utf8(data[key].0.clone()).expect("a text")
    }

    pub async fn entry(&self, name: &str) -> ForeignCluster {
        Api::all(self.client.clone()).get(name).await.expect("the ForeignCluster")
    }

    /// Waits for what the condition Authenticated says, and returns its message.
    pub async fn says(&self, name: &str, reason: &str) -> String {
        let clusters = Api::<ForeignCluster>::all(self.client.clone());
        let ask = async || {
            let status = clusters.get_opt(name).await.ok()??.status?;
            let said = status.conditions.into_iter().find(|one| one.type_ == AUTHENTICATED)?;
            Some((said.reason, said.message))
        };
        let what = format!("{} says of {name}: {reason}", self.settings.cluster_name);
        let said =
            eventually(&what, ask, |said| said.as_ref().is_some_and(|(said, _)| said == reason));
        said.await.expect("it was said").1
    }

    /// This cluster's identity at another one.
    pub async fn identity_at(&self, other: &Side) -> Remote {
        let namespace = format!("liqo-tenant-{}", other.settings.cluster_name);
        let remotes = Remotes::new(self.client.clone());
        remotes.in_namespace(&namespace, other.cluster()).await.expect("an identity")
    }

    pub async fn apply_all<K>(&self, object: Value)
    where
        K: kube::Resource<DynamicType = ()>
            + Clone
            + Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        apply(&Api::<K>::all(self.client.clone()), object).await;
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.running.ask();
    }
}

pub async fn apply<K>(api: &Api<K>, mut object: Value)
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + serde::de::DeserializeOwned,
{
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
    let params = PatchParams::apply("kubectl").force();
    api.patch(&name, &params, &Patch::Apply(object)).await.expect("it is applied");
}

pub async fn eventually<T: Debug>(
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
        assert!(start.elapsed() < Duration::from_secs(40), "{what}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
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
