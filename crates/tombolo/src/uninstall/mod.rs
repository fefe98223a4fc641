//! `tombolo uninstall`: removes everything that Tombolo has created in a cluster.

mod nodes;
mod remove;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use tombolo_api::discovery::{ForeignCluster, condition as conditions};
use tombolo_api::offloading::NamespaceOffloading;

use crate::bars::Bars;
use crate::connection::Target;
use crate::install;
use crate::unoffload::unoffload;
use crate::unpeer::unpeer;
use crate::watching::is_true;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Unoffload all namespaces and end all outgoing peerings first
    ///
    /// Pods that run in other clusters are stopped there.
    #[arg(long)]
    purge: bool,
    /// Timeout of each step, in seconds
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let connection = arguments.target.connect().await?;
        let client = &connection.client;
        if !remove::is_anything_left(client).await? {
            println!("Tombolo is not installed in the cluster at {}.", connection.url);
            return Ok(());
        }
        let known = install::identity(&connection).await.ok();
        let scope = known.map_or("uninstall".into(), |known| known.cluster_name.to_string());
        let bars = Bars::new();
        let timeout = Duration::from_secs(arguments.timeout);
        let done = uninstall(client, &scope, arguments.purge, timeout, &bars).await;
        bars.finish();
        done?;
        println!("Nothing of Tombolo is left in the cluster at {}.", connection.url);
        Ok(())
    })
}

async fn uninstall(
    client: &Client,
    scope: &str,
    purge: bool,
    timeout: Duration,
    bars: &Bars,
) -> Result<()> {
    let uses = Uses::of(client).await?;
    if purge {
        for namespace in &uses.namespaces {
            unoffload(client, namespace, timeout, bars).await?;
        }
        for peer in &uses.outgoing {
            unpeer(client, peer, timeout, bars).await?;
        }
    } else {
        uses.refuse()?;
    }
    let say = |what: &str| bars.say(scope, what);
    say("stopping discovery and the auth service");
    remove::discovery(client, timeout).await?;
    say("deleting ForeignClusters and identities");
    remove::foreign_clusters(client, timeout).await?;
    remove::identities(client).await?;
    remove::tenant_namespaces(client, timeout, &say).await?;
    say("cleaning up the nodes");
    nodes::clean(client, timeout, &say).await?;
    say("removing the components");
    remove::workloads(client, timeout).await?;
    remove::cluster_objects(client).await?;
    say("removing the CRDs");
    remove::definitions(client, timeout).await?;
    remove::namespaces(client, timeout, &say).await?;
    say("uninstalled");
    Ok(())
}

/// Peerings and namespaces that depend on the installation.
#[derive(Debug, Default)]
struct Uses {
    namespaces: Vec<String>,
    outgoing: Vec<String>,
    incoming: Vec<String>,
}

impl Uses {
    async fn of(client: &Client) -> Result<Self> {
        let offloadings: Api<NamespaceOffloading> = Api::all(client.clone());
        let offloadings = match offloadings.list(&ListParams::default()).await {
            Err(error) if install::is_missing(&error) => Vec::new(),
            other => other.context("list the NamespaceOffloadings")?.items,
        };
        let clusters: Api<ForeignCluster> = Api::all(client.clone());
        let clusters = match clusters.list(&ListParams::default()).await {
            Err(error) if install::is_missing(&error) => Vec::new(),
            other => other.context("list the ForeignClusters")?.items,
        };
        let named = |of: &dyn Fn(&ForeignCluster) -> bool| {
            clusters.iter().filter(|cluster| of(cluster)).map(ResourceExt::name_any).collect()
        };
        Ok(Self {
            namespaces: offloadings.iter().filter_map(ResourceExt::namespace).collect(),
            outgoing: named(&|cluster| {
                cluster.spec.join || has(cluster, conditions::OUTGOING_PEERING)
            }),
            incoming: named(&|cluster| has(cluster, conditions::INCOMING_PEERING)),
        })
    }

    fn refuse(&self) -> Result<()> {
        let mut why = Vec::new();
        if !self.namespaces.is_empty() {
            why.push(format!("offloaded namespaces: {}", self.namespaces.join(", ")));
        }
        if !self.outgoing.is_empty() {
            why.push(format!("peerings with: {}", self.outgoing.join(", ")));
        }
        if !self.incoming.is_empty() {
            why.push(format!(
                "clusters that run pods here (unpeer there first): {}",
                self.incoming.join(", ")
            ));
        }
        if why.is_empty() {
            return Ok(());
        }
        bail!(
            "this cluster is in use, and nothing was removed: {}. Run `tombolo unoffload` and \
             `tombolo unpeer`, or use --purge",
            why.join("; ")
        )
    }
}

fn has(cluster: &ForeignCluster, kind: &str) -> bool {
    cluster.status.as_ref().is_some_and(|status| is_true(&status.conditions, kind))
}
