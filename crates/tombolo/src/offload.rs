//! `tombolo offload`: extends a namespace to peered clusters.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{
    Namespace, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tombolo_api::offloading::{
    NamespaceMappingStrategy, NamespaceOffloading, NamespaceOffloadingSpec, PodOffloadingStrategy,
};
use tombolo_api::{ClusterId, names};

use crate::bars::Bars;
use crate::connection::{Connection, Target};
use crate::install::{self, MANAGER};
use crate::peers;
use crate::watching::{Watches, condition, is_true};

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Extend a namespace to peered clusters
    ///
    /// Each peered cluster gets a twin namespace. Pods can run there, and Services, endpoints,
    /// ConfigMaps and Secrets are reflected. Existing pods stay where they are. The same by hand:
    /// `kubectl label namespace NAMESPACE liqo.io/enabled=true`, with the default options.
    Namespace(Offload),
}

#[derive(Debug, Clone, clap::Args)]
pub struct Offload {
    #[command(flatten)]
    pub target: Target,
    /// Name of the namespace
    pub namespace: String,
    /// Use the same name for the twin namespaces in other clusters
    ///
    /// DNS names of Services are then the same in all clusters. It fails where that name is taken.
    #[arg(long, conflicts_with = "remote_name")]
    pub same_name: bool,
    /// Name of the twin namespaces in other clusters [default: NAMESPACE-CLUSTER]
    #[arg(long, value_name = "NAME")]
    pub remote_name: Option<String>,
    /// Where pods may run: Local, Remote or LocalAndRemote
    #[arg(long, default_value = "LocalAndRemote", value_parser = strategy)]
    pub pods: PodOffloadingStrategy,
    /// Offload only to clusters whose virtual node has this label
    ///
    /// When repeated, the node must have all of the labels.
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub cluster_selector: Vec<(String, String)>,
    /// Seconds to wait until all twin namespaces exist
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let What::Namespace(arguments) = &arguments.what;
    tokio::runtime::Runtime::new()?.block_on(async {
        let connection = arguments.target.connect().await?;
        install::identity(&connection).await?;
        let bars = Bars::new();
        let done = offload(arguments, &connection, &bars).await;
        bars.finish();
        println!("{}", done?);
        Ok(())
    })
}

/// Offloads the namespace and returns a summary of its twins.
pub async fn offload(arguments: &Offload, connection: &Connection, bars: &Bars) -> Result<String> {
    let (client, namespace) = (&connection.client, arguments.namespace.as_str());
    refuse_reserved(namespace)?;
    require_namespace(connection, namespace).await?;
    let object = NamespaceOffloading::new(names::NAMESPACE_OFFLOADING, spec(arguments));
    let api: Api<NamespaceOffloading> = Api::namespaced(client.clone(), namespace);
    let parameters = PatchParams::apply(MANAGER).force();
    let applied = api.patch(names::NAMESPACE_OFFLOADING, &parameters, &Patch::Apply(&object)).await;
    applied.with_context(|| format!("apply NamespaceOffloading {namespace}/offloading"))?;
    if !has_peers(client).await? {
        return Ok(format!(
            "Namespace {namespace} is offloaded, but no cluster is peered yet: run `tombolo peer \
             NAME`."
        ));
    }
    wait(client, namespace, Duration::from_secs(arguments.timeout), bars).await
}

async fn wait(client: &Client, namespace: &str, timeout: Duration, bars: &Bars) -> Result<String> {
    let clusters = peers::list(client).await?;
    let name_of = |id: &ClusterId| peers::name_of(&clusters, id);
    let api: Api<NamespaceOffloading> = Api::namespaced(client.clone(), namespace);
    let mut watches = Watches::default();
    let store = watches.keep(api, kube::runtime::watcher::Config::default());
    let ready = watches.until(timeout, || {
        let state = store.state();
        let status = state.first()?.status.clone()?;
        let twins: Vec<String> = status
            .clusters
            .iter()
            .map(|cluster| {
                let there = cluster.remote_namespace_name.as_deref().unwrap_or("?");
                format!("{there} in {} is {:?}", name_of(&cluster.cluster_id), cluster.phase)
            })
            .collect();
        if !twins.is_empty() {
            bars.say(namespace, twins.join(", "));
        }
        is_true(&status.conditions, "Ready").then_some(status.clusters)
    });
    if let Some(clusters) = ready.await? {
        let twins = clusters.iter().map(|cluster| {
            let there = cluster.remote_namespace_name.as_deref().unwrap_or(namespace);
            format!("{there} in {}", name_of(&cluster.cluster_id))
        });
        let twins: Vec<String> = twins.collect();
        return Ok(format!("Namespace {namespace} is offloaded: {}.", twins.join(", ")));
    }
    let state = store.state();
    let status = state.first().and_then(|object| object.status.clone()).unwrap_or_default();
    let mut why: Vec<String> = status
        .clusters
        .iter()
        .filter_map(|c| Some(format!("{}: {}", name_of(&c.cluster_id), c.message.as_ref()?)))
        .collect();
    if let Some(ready) = condition(&status.conditions, "Ready") {
        why.push(format!(
            "condition Ready is {} ({}): {}",
            ready.status, ready.reason, ready.message
        ));
    }
    if why.is_empty() {
        why.push("no controller has processed it: is `liqo-control` running?".to_owned());
    }
    bail!(
        "namespace {namespace} is not offloaded to all clusters after {} s: {}. The controllers \
         keep trying; `tombolo unoffload namespace {namespace}` ends the attempt",
        timeout.as_secs(),
        why.join("; ")
    )
}

pub async fn require_namespace(connection: &Connection, name: &str) -> Result<Namespace> {
    let api: Api<Namespace> = Api::all(connection.client.clone());
    let found = api.get_opt(name).await.with_context(|| format!("read namespace {name}"))?;
    found.with_context(|| {
        format!(
            "there is no namespace {name} in the cluster at {}: nothing was changed. Create it \
             with `kubectl create namespace {name}`",
            connection.url
        )
    })
}

fn refuse_reserved(namespace: &str) -> Result<()> {
    if namespace.starts_with("kube-") || namespace == "liqo" || namespace.starts_with("liqo-") {
        bail!("namespace {namespace} belongs to Kubernetes or to Tombolo and can't be offloaded");
    }
    Ok(())
}

/// Whether this cluster has an outgoing peering.
async fn has_peers(client: &Client) -> Result<bool> {
    Ok(peers::list(client).await?.iter().any(|cluster| cluster.spec.join))
}

fn spec(arguments: &Offload) -> NamespaceOffloadingSpec {
    let naming = match (&arguments.remote_name, arguments.same_name) {
        (Some(_), _) => NamespaceMappingStrategy::SelectedName,
        (None, true) => NamespaceMappingStrategy::EnforceSameName,
        (None, false) => NamespaceMappingStrategy::DefaultName,
    };
    let requirements =
        arguments.cluster_selector.iter().map(|(key, value)| NodeSelectorRequirement {
            key: key.clone(),
            operator: "In".into(),
            values: Some(vec![value.clone()]),
        });
    let requirements: Vec<NodeSelectorRequirement> = requirements.collect();
    let term = |requirements| NodeSelectorTerm {
        match_expressions: Some(requirements),
        match_fields: None,
    };
    NamespaceOffloadingSpec {
        namespace_mapping_strategy: naming,
        remote_namespace_name: arguments.remote_name.clone(),
        pod_offloading_strategy: arguments.pods,
        cluster_selector: (!requirements.is_empty())
            .then(|| NodeSelector { node_selector_terms: vec![term(requirements)] }),
    }
}

fn strategy(text: &str) -> Result<PodOffloadingStrategy, String> {
    match text.to_ascii_lowercase().as_str() {
        "local" => Ok(PodOffloadingStrategy::Local),
        "remote" => Ok(PodOffloadingStrategy::Remote),
        "localandremote" => Ok(PodOffloadingStrategy::LocalAndRemote),
        _ => Err("expected Local, Remote or LocalAndRemote".into()),
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
