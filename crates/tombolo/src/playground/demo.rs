//! What the playground shows: Tombolo in every cluster, the first one peered with the others, and an
//! application that runs in all of them.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tombolo_api::discovery::ForeignCluster;
use tombolo_api::offloading::PodOffloadingStrategy;
use tombolo_core::tenant::id_of;
use tombolo_testbed::{Cluster, Testbed};

use crate::bars::Bars;
use crate::connection::{Connection, Target};
use crate::install::{self, Installed};
use crate::watching::Watches;
use crate::{offload, peer};

/// Where the application answers, for pods of all clusters.
pub const URL: &str = "http://web.shop.svc/cgi-bin/hello";

const NAMESPACE: &str = "shop";
const SHOP: &str = include_str!("shop.yaml");
const PATIENCE: Duration = Duration::from_secs(90);
const ASK_AGAIN: Duration = Duration::from_millis(300);

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
            timeout: PATIENCE.as_secs(),
        };
        peer::peer(&arguments, &home.connection, &home.installed, bars)
            .await
            .with_context(|| format!("peer {} with {}", home.name(), other.name()))?;
    }
    let first = testbed.cluster(home.name());
    // The namespace first: pods that are made before it is offloaded stay here.
    let (namespace, application) = SHOP.split_once("---\n").expect("there are several documents");
    first.apply(namespace).await.context("make namespace shop")?;
    if !others.is_empty() {
        let arguments = offload::Offload {
            target: Target::default(),
            namespace: NAMESPACE.into(),
            same_name: true,
            remote_name: None,
            pods: PodOffloadingStrategy::LocalAndRemote,
            cluster_selector: Vec::new(),
            timeout: PATIENCE.as_secs(),
        };
        offload::offload(&arguments, &home.connection, bars)
            .await
            .context("offload namespace shop")?;
    }
    bars.say(home.name(), "starting Deployment shop/web");
    first.apply(application).await.context("make Deployment and Service shop/web")?;
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

/// Waits until the Service answers to a pod: kube-proxy on its node takes a moment to know it.
async fn reaches_service(cluster: &Cluster, pod: &Pod) -> Result<()> {
    let name = pod.name_any();
    let curl = ["curl", "-sS", "-f", "-m", "2", "-o", "/dev/null", URL];
    let mut last = None;
    let asking = async {
        let mut turns = tokio::time::interval(ASK_AGAIN);
        loop {
            turns.tick().await;
            match cluster.exec(NAMESPACE, &name, &curl).await {
                Ok(_) => return,
                Err(error) => last = Some(error),
            }
        }
    };
    if tokio::time::timeout(PATIENCE, asking).await.is_ok() {
        return Ok(());
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("?");
    let why = last.map_or("nothing was heard".to_owned(), |error| error.to_string());
    bail!(
        "{URL} does not answer to pod {name} on node {node} within {} s ({why}): `tombolo status` and \
         `kubectl -n shop get pods,endpointslices` (tombolo playground shell {}) say more",
        PATIENCE.as_secs(),
        cluster.name()
    )
}

/// A cluster with Tombolo in it.
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
        timeout: PATIENCE.as_secs(),
    };
    let installed = install::install(&arguments, &connection, bars).await.with_context(failed)?;
    Ok(Side { connection, installed })
}

/// Waits until one cluster has found the other.
async fn discovered(home: &Side, other: &Side, bars: &Bars) -> Result<()> {
    bars.say(home.name(), format!("waiting until {} is discovered", other.name()));
    let mut watches = Watches::default();
    let api: Api<ForeignCluster> = Api::all(home.connection.client.clone());
    let store = watches.keep(api, watcher::Config::default());
    let id = &other.installed.cluster_id;
    let found = watches.until(PATIENCE, || {
        let state = store.state();
        state.iter().find(|cluster| id_of(cluster) == Some(id)).map(|cluster| cluster.name_any())
    });
    found.await?.map(drop).with_context(|| {
        format!(
            "{} has not found {} within {} s: `kubectl -n liqo logs deploy/liqo-discovery` in both \
             clusters (tombolo playground shell {}) says why",
            home.name(),
            other.name(),
            PATIENCE.as_secs(),
            home.name()
        )
    })
}
