//! What the playground shows: Tombolo in every cluster, the first one peered with the others, and an
//! application that runs in all of them.

use std::time::Duration;

use anyhow::{Context, Result};
use futures::future::try_join_all;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};
use tombolo_api::discovery::ForeignCluster;
use tombolo_api::offloading::PodOffloadingStrategy;
use tombolo_testbed::{Cluster, Testbed};

use crate::bars::Bars;
use crate::connection::{Connection, Target};
use crate::install::{self, Installed};
use crate::watching::Watches;
use crate::{offload, peer};

const NAMESPACE: &str = "shop";
const SHOP: &str = include_str!("shop.yaml");
const PATIENCE: Duration = Duration::from_secs(90);

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
    bars.say(home.name(), "Deployment shop/web runs");
    Ok(())
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
    let is_other = |cluster: &ForeignCluster| {
        let identity = cluster.spec.cluster_identity.as_ref();
        identity.is_some_and(|identity| identity.cluster_id == other.installed.cluster_id)
    };
    let found = watches.until(PATIENCE, || {
        let state = store.state();
        state.iter().find(|cluster| is_other(cluster)).map(|cluster| cluster.name_any())
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
