//! A cluster: its nodes, its API and its start.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::future::{try_join, try_join_all};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node as NodeObject, ServiceAccount};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{Condition, await_condition};
use kube::{Api, Client, Config};
use tokio::sync::watch;

use crate::active;
use crate::apply;
use crate::bed::Bed;
use crate::cache::Caller;
use crate::command::Cmd;
use crate::component::Component;
use crate::error::{Error, Result};
use crate::image::Image;
use crate::images;
use crate::node::Node;
use crate::pki::Pki;
use crate::spec::ClusterSpec;
use crate::wait::until;
use crate::wan;

const COREDNS: &str = include_str!("coredns.yaml");

/// Timeout of a start step: generous, because the machine may be busy.
const LIMIT: Duration = Duration::from_secs(180);

#[derive(Debug, Clone)]
pub struct Cluster {
    bed: Arc<Bed>,
    spec: Arc<ClusterSpec>,
    pki: Pki,
    nodes: Vec<Node>,
}

impl Cluster {
    pub(crate) fn new(bed: &Arc<Bed>, spec: &ClusterSpec, number: usize) -> Self {
        let spec = Arc::new(spec.clone());
        let node = |n| Node::new(Arc::clone(bed), Arc::clone(&spec), number, n);
        let nodes = if spec.control_plane_only { 1 } else { spec.nodes };
        Self {
            pki: Pki::at(bed.cluster_dir(&spec.name).join("pki")),
            nodes: (1..=nodes).map(node).collect(),
            bed: Arc::clone(bed),
            spec,
        }
    }

    pub fn name(&self) -> &str {
        &self.spec.name
    }

    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.pki.file("admin.conf")
    }

    /// Under sudo, gives the kubeconfig to the calling user.
    pub fn give_to_caller(&self) -> Result<()> {
        let Some(caller) = Caller::of_sudo() else {
            return Ok(());
        };
        let path = self.kubeconfig();
        std::os::unix::fs::chown(&path, Some(caller.user), Some(caller.group))
            .map_err(Error::file("give away", &path))
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The node with this number, as in its name. Node 1 is the control plane.
    pub fn node(&self, number: usize) -> &Node {
        let found = number.checked_sub(1).and_then(|index| self.nodes.get(index));
        found.unwrap_or_else(|| {
            let count = self.nodes.len();
            panic!("{} has nodes 1 to {count}, not {number}", self.name())
        })
    }

    /// An administrator's client, for the current runtime.
    pub async fn client(&self) -> Result<Client> {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig());
        let kubeconfig = kubeconfig.map_err(Error::api("read the kubeconfig", self.name()))?;
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        let config = config.map_err(Error::api("read the kubeconfig", self.name()))?;
        Client::try_from(config).map_err(Error::api("make a client", self.name()))
    }

    /// Runs kubectl as the administrator and returns its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_command().args(arguments).run_async().await
    }

    /// Like [`kubectl`](Self::kubectl), in the network namespace of a node.
    pub async fn kubectl_on(&self, node: usize, arguments: &[&str]) -> Result<String> {
        Cmd::new("ip")
            .args(["netns", "exec", &self.node(node).network_namespace()])
            .arg(self.bed.provisions.binaries.program("kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .args(arguments)
            .env("KUBECACHEDIR", self.bed.cluster_dir(self.name()).join("kubectl-cache"))
            .run_async()
            .await
    }

    /// Runs a command in a pod's (first) container, through the API server and the kubelet.
    pub async fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> Result<String> {
        self.kubectl_command()
            .args(["exec", "--namespace", namespace, pod, "--"])
            .args(command)
            .run_async()
            .await
    }

    /// Applies manifests (server-side, as field manager `testbed`).
    pub async fn apply(&self, manifests: &str) -> Result<()> {
        apply::apply(&self.client().await?, self.name(), manifests).await
    }

    /// Makes an image available on all nodes.
    pub async fn load(&self, image: &Image) -> Result<()> {
        let tar = image.cached(&self.bed.provisions.cache)?;
        try_join_all(self.nodes.iter().map(|node| node.import(&tar))).await.map(drop)
    }

    /// Waits until a Deployment has all its replicas available.
    pub async fn deployed(&self, namespace: &str, name: &str) -> Result<()> {
        let api = Api::namespaced(self.client().await?, namespace);
        let what = format!("Deployment {namespace}/{name}");
        self.reaches(api, name, is_available, &what).await.map(drop)
    }

    /// The names of the Ready nodes; None when the API server does not answer.
    pub async fn ready_nodes(&self) -> Option<Vec<String>> {
        let ask = async {
            let nodes: Api<NodeObject> = Api::all(self.client().await.ok()?);
            nodes.list(&kube::api::ListParams::default()).await.ok()
        };
        let nodes = tokio::time::timeout(Duration::from_secs(3), ask).await.ok()??;
        let ready = nodes.into_iter().filter(|node| is_ready(Some(node)));
        Some(ready.filter_map(|node| node.metadata.name).collect())
    }

    pub(crate) fn control_node(&self) -> &Node {
        self.node(1)
    }

    pub(crate) fn kubectl_command(&self) -> Cmd {
        Cmd::new(self.bed.provisions.binaries.program("kubectl"))
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .env("KUBECACHEDIR", self.bed.cluster_dir(self.name()).join("kubectl-cache"))
    }

    pub(crate) fn set_images(&mut self, images: &[Image]) {
        Arc::make_mut(&mut self.spec).images = images.to_vec();
    }

    /// Its addresses and ports, for the network between the clusters.
    pub(crate) fn side(&self) -> wan::Side {
        let nodes = self.nodes.iter().map(|node| (node.port(), node.address()));
        wan::Side { pod_cidr: self.spec.pod_cidr, nodes: nodes.collect() }
    }

    /// Starts the cluster and waits until it works.
    pub(crate) async fn start(&self) -> Result<()> {
        let addresses: Vec<(String, Ipv4Addr)> =
            self.nodes.iter().map(|node| (node.name().to_owned(), node.address())).collect();
        let api_server = self.control_node().address();
        self.pki.make(self.name(), api_server, self.spec.api_service(), &addresses)?;
        self.say("certificates made");
        for node in &self.nodes {
            active::make(|| node.create())?;
            node.boot()?;
        }
        self.say("nodes booted");
        self.restart().await
    }

    /// Boots a node after a power cut, with its disk, and waits until it works again.
    pub(crate) async fn boot_node(&self, node: &Node) -> Result<()> {
        node.forget_network()?;
        node.boot()?;
        if node.name() == self.control_node().name() {
            self.start_control_plane().await?;
            self.await_controllers().await?;
        }
        if !self.spec.control_plane_only {
            self.start_worker(node).await?;
            self.set_up_routes().await?;
        }
        Ok(())
    }

    /// Starts a component and waits until it works.
    pub(crate) async fn start_component(&self, node: &Node, component: Component) -> Result<()> {
        match component {
            Component::Containerd => return node.start_runtime().await,
            _ => node.start(component)?,
        }
        match component {
            Component::ApiServer | Component::Etcd => self.await_api_server().await,
            Component::Kubelet => self.await_ready(node).await,
            _ => Ok(()),
        }
    }

    /// Starts all components that do not run, and waits until they work.
    pub(crate) async fn restart(&self) -> Result<()> {
        self.start_components().await?;
        if self.spec.control_plane_only {
            return Ok(());
        }
        self.set_up_routes().await?;
        self.deployed("kube-system", "coredns").await?;
        self.say("DNS answers");
        Ok(())
    }

    async fn start_components(&self) -> Result<()> {
        let (api_is_ready, api_ready) = watch::channel(false);
        let control = async {
            self.start_control_plane().await?;
            api_is_ready.send_replace(true);
            if !self.spec.control_plane_only {
                self.apply(&self.dns_manifests()).await?;
            }
            self.await_controllers().await
        };
        let worker = async |node| {
            self.start_node_runtime(node).await?;
            // The sender is dropped early only if the control plane fails, which fails this too.
            let _ = api_ready.clone().wait_for(|ready| *ready).await;
            self.start_worker(node).await
        };
        let workers = if self.spec.control_plane_only { &[] } else { self.nodes.as_slice() };
        try_join(control, try_join_all(workers.iter().map(worker))).await.map(drop)
    }

    async fn start_control_plane(&self) -> Result<()> {
        let node = self.control_node();
        let running = node.running();
        let start_missing = |component| {
            if running.contains_key(&component) {
                return Ok(());
            }
            node.start(component)
        };
        start_missing(Component::Etcd)?;
        start_missing(Component::ApiServer)?;
        self.await_api_server().await?;
        self.say("API server answers");
        // Started before the API server is ready, the controller manager exits.
        start_missing(Component::ControllerManager)?;
        start_missing(Component::Scheduler)
    }

    pub(crate) async fn await_api_server(&self) -> Result<()> {
        let client = self.client().await?;
        let node = self.control_node();
        let (client, what) = (&client, format!("the API server of {}", self.name()));
        until(&what, LIMIT, async || {
            node.must_run(Component::Etcd)?;
            node.must_run(Component::ApiServer)?;
            let request = http::Request::get("/readyz").body(Vec::new());
            let request = request.expect("a constant request is valid");
            Ok(client.request_text(request).await.ok())
        })
        .await
        .map(drop)
    }

    async fn await_controllers(&self) -> Result<()> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        let exists = |account: Option<&ServiceAccount>| account.is_some();
        let what = "the default service account";
        self.reaches(api, "default", exists, what).await?;
        self.say("controllers work");
        Ok(())
    }

    /// Starts containerd and imports the images.
    async fn start_node_runtime(&self, node: &Node) -> Result<()> {
        if node.running().contains_key(&Component::Containerd) {
            return Ok(());
        }
        node.start_runtime().await?;
        let tars = self.image_tars()?;
        try_join_all(tars.iter().map(|tar| node.import(tar))).await?;
        self.say(format!("{}: images loaded", node.name()));
        Ok(())
    }

    async fn start_worker(&self, node: &Node) -> Result<()> {
        self.start_node_runtime(node).await?;
        let running = node.running();
        for component in [Component::Kubelet, Component::KubeProxy] {
            if !running.contains_key(&component) {
                node.start(component)?;
            }
        }
        let objects: Api<NodeObject> = Api::all(self.client().await?);
        let what = format!("the PodCIDR of node {}", node.name());
        let has_part = |node: Option<&NodeObject>| pod_cidr(node).is_some();
        let found = self.reaches(objects, node.name(), has_part, &what).await?;
        node.set_up_pod_network(pod_cidr(found.as_ref()).unwrap_or_default())?;
        self.await_ready(node).await?;
        self.say(format!("{}: Ready", node.name()));
        Ok(())
    }

    async fn await_ready(&self, node: &Node) -> Result<()> {
        let objects: Api<NodeObject> = Api::all(self.client().await?);
        let what = format!("node {} Ready", node.name());
        self.reaches(objects, node.name(), is_ready, &what).await.map(drop)
    }

    async fn set_up_routes(&self) -> Result<()> {
        let objects: Api<NodeObject> = Api::all(self.client().await?);
        let found = objects.list(&kube::api::ListParams::default()).await;
        let found = found.map_err(Error::api("list the nodes", self.name()))?;
        for to in &self.nodes {
            let object = found.iter().find(|o| o.metadata.name.as_deref() == Some(to.name()));
            let Some(part) = pod_cidr(object) else {
                continue;
            };
            for from in self.nodes.iter().filter(|node| node.name() != to.name()) {
                from.add_route(part, to.address())?;
            }
        }
        Ok(())
    }

    fn dns_manifests(&self) -> String {
        COREDNS
            .replace("@ADDRESS@", &self.spec.dns_service().to_string())
            .replace("@IMAGE@", &images::coredns_name())
    }

    fn image_tars(&self) -> Result<Vec<PathBuf>> {
        let own = [
            images::pause(&self.bed.provisions.cache)?,
            images::coredns(&self.bed.provisions.binaries),
        ];
        let all = own.iter().chain(&self.spec.images);
        all.map(|image| image.cached(&self.bed.provisions.cache)).collect()
    }

    async fn reaches<K>(
        &self,
        api: Api<K>,
        name: &str,
        condition: impl Condition<K> + Clone,
        what: &str,
    ) -> Result<Option<K>>
    where
        K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + 'static,
    {
        let deadline = tokio::time::Instant::now() + LIMIT;
        let late = || Error::Late {
            what: format!("{what} in {}", self.name()),
            limit: LIMIT,
            hint: format!("; see the logs in {}", self.logs().display()),
        };
        loop {
            let wait = await_condition(api.clone(), name, condition.clone());
            match tokio::time::timeout_at(deadline, wait).await {
                Ok(Ok(found)) => return Ok(found),
                // A watch ends with its API server: start another.
                Ok(Err(_)) => tokio::time::sleep(Duration::from_millis(200)).await,
                Err(_) => return Err(late()),
            }
        }
    }

    fn logs(&self) -> PathBuf {
        self.bed.cluster_dir(self.name())
    }

    fn say(&self, what: impl Into<String>) {
        self.bed.progress.step(self.name(), what);
    }
}

fn pod_cidr(node: Option<&NodeObject>) -> Option<&str> {
    node?.spec.as_ref()?.pod_cidr.as_deref()
}

fn is_ready(node: Option<&NodeObject>) -> bool {
    let conditions = node.and_then(|node| node.status.as_ref()?.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether all replicas of the latest generation are available.
fn is_available(deployment: Option<&Deployment>) -> bool {
    let Some((deployment, status)) = deployment.and_then(|d| Some((d, d.status.as_ref()?))) else {
        return false;
    };
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    status.observed_generation == deployment.metadata.generation
        && status.updated_replicas.unwrap_or(0) == wanted
        && status.available_replicas.unwrap_or(0) == wanted
        && status.replicas.unwrap_or(0) == wanted
}
