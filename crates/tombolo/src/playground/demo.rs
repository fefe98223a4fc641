//! The demo of the playground: Tombolo in every cluster, the first one peered with the others, and
//! an application that runs in all of them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tombolo_api::discovery::ForeignCluster;
use tombolo_api::offloading::PodOffloadingStrategy;
use tombolo_core::view::Peer;
use tombolo_testbed::{Cluster, Testbed};

use crate::bars::Bars;
use crate::connection::{Connection, Target};
use crate::install::{self, Installed};
use crate::watching::Watches;
use crate::{offload, peer};

/// URL of the application, for pods of all clusters.
pub const URL: &str = "http://web.shop.svc/cgi-bin/hello";

const NAMESPACE: &str = "shop";
const SHOP: &str = include_str!("shop.yaml");
const TIMEOUT: Duration = Duration::from_secs(90);
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

pub async fn show(testbed: &Testbed, bars: &Bars) -> Result<()> {
    let sides = try_join_all(testbed.clusters().iter().map(|cluster| install(cluster, bars)));
    let sides = sides.await?;
    let Some((home, others)) = sides.split_first() else {
        return Ok(());
    };
    for other in others {
        discovered(home, other, bars).await?;
        let arguments = peer::Arguments {
            target: Target::default(),
            cluster: other.name().to_owned(),
            token_file: None,
            name: None,
            fingerprint: None,
            timeout: TIMEOUT.as_secs(),
        };
        peer::peer(&arguments, &home.connection, &home.installed, bars)
            .await
            .with_context(|| format!("peer {} with {}", home.name(), other.name()))?;
    }
    let first = testbed.cluster(home.name());
    // The namespace first: pods created before it is offloaded stay in this cluster.
    let (namespace, application) = SHOP.split_once("---\n").expect("there are several documents");
    first.apply(namespace).await.context("create namespace shop")?;
    if !others.is_empty() {
        let arguments = offload::Offload {
            target: Target::default(),
            namespace: NAMESPACE.into(),
            same_name: true,
            remote_name: None,
            pods: PodOffloadingStrategy::LocalAndRemote,
            cluster_selector: Vec::new(),
            timeout: TIMEOUT.as_secs(),
        };
        offload::offload(&arguments, &home.connection, bars)
            .await
            .context("offload namespace shop")?;
    }
    bars.say(home.name(), "starting Deployment shop/web");
    first.apply(application).await.context("create Deployment and Service shop/web")?;
    first.deployed(NAMESPACE, "web").await.context("wait for Deployment shop/web")?;
    bars.say(home.name(), "Deployment shop/web runs; waiting until all its pods reach the Service");
    let pods: Api<Pod> = Api::namespaced(home.connection.client.clone(), NAMESPACE);
    let pods = pods.list(&ListParams::default().labels("app=web")).await;
    let pods = pods.context("list the pods of Deployment shop/web")?;
    let staying = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    try_join_all(staying.map(|pod| reaches_service(first, pod))).await?;
    bars.say(home.name(), "Deployment shop/web runs, and its Service answers in all clusters");
    Ok(())
}

/// Waits until a pod reaches the Service: kube-proxy on its node needs a moment.
async fn reaches_service(cluster: &Cluster, pod: &Pod) -> Result<()> {
    let name = pod.name_any();
    let curl = ["curl", "-sS", "-f", "-m", "2", "-o", "/dev/null", URL];
    let mut last = None;
    let attempts = async {
        let mut turns = tokio::time::interval(RETRY_INTERVAL);
        loop {
            turns.tick().await;
            match cluster.exec(NAMESPACE, &name, &curl).await {
                Ok(_) => return,
                Err(error) => last = Some(error),
            }
        }
    };
    if tokio::time::timeout(TIMEOUT, attempts).await.is_ok() {
        return Ok(());
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("?");
    let why = last.map_or("no response".to_owned(), |error| error.to_string());
    bail!(
        "{URL} does not answer pod {name} on node {node} within {} s ({why}): see `tombolo status` \
         and `kubectl -n shop get pods,endpointslices` (tombolo playground shell {})",
        TIMEOUT.as_secs(),
        cluster.name()
    )
}

/// A cluster and its installation of Tombolo.
struct Side {
    connection: Connection,
    installed: Installed,
}

impl Side {
    fn name(&self) -> &str {
        self.installed.cluster_name.as_str()
    }
}

async fn install(cluster: &Cluster, bars: &Bars) -> Result<Side> {
    let failed = || format!("install Tombolo in {}", cluster.name());
    let target = Target { kubeconfig: Some(cluster.kubeconfig()), context: None };
    let connection = target.connect().await.with_context(failed)?;
    let arguments = install::Arguments {
        target,
        cluster_name: Some(cluster.name().parse().with_context(failed)?),
        cluster_id: None,
        pod_cidr: None,
        service_cidr: None,
        api_server_url: None,
        empty_token: Some(true),
        auth: Default::default(),
        ipam_mtls: None,
        image: "localhost/tombolo:dev".into(),
        print: false,
        timeout: TIMEOUT.as_secs(),
    };
    let installed = install::install(&arguments, &connection, bars).await.with_context(failed)?;
    Ok(Side { connection, installed })
}

/// Waits until one cluster has discovered the other.
async fn discovered(home: &Side, other: &Side, bars: &Bars) -> Result<()> {
    bars.say(home.name(), format!("waiting until {} is discovered", other.name()));
    let mut watches = Watches::default();
    let api: Api<ForeignCluster> = Api::all(home.connection.client.clone());
    let store = watches.keep(api, watcher::Config::default());
    let id = &other.installed.cluster_id;
    let found = watches.until(TIMEOUT, || {
        let state = store.state();
        let found = state.iter().find(|cluster| Peer::from_resource(cluster).id() == Some(id));
        found.map(|cluster| cluster.name_any())
    });
    found.await?.map(drop).with_context(|| {
        format!(
            "{} has not discovered {} within {} s: see `kubectl -n liqo logs deploy/liqo-discovery` \
             in both clusters (tombolo playground shell {})",
            home.name(),
            other.name(),
            TIMEOUT.as_secs(),
            home.name()
        )
    })
}
