//! `tombolo unoffload`: restricts an offloaded namespace to this cluster again.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tombolo_api::names;
use tombolo_api::offloading::NamespaceOffloading;

use crate::bars::Bars;
use crate::connection::Target;
use crate::install::{self, MANAGER, is_missing};
use crate::offload::require_namespace;
use crate::peers;
use crate::watching::Watches;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Restrict an offloaded namespace to this cluster again
    ///
    /// Its pods in other clusters are stopped, and the twin namespaces are deleted with everything
    /// in them.
    Namespace(Unoffload),
}

#[derive(Debug, clap::Args)]
struct Unoffload {
    #[command(flatten)]
    target: Target,
    /// Name of the namespace
    namespace: String,
    /// Seconds to wait until all twin namespaces are deleted
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let What::Namespace(arguments) = &arguments.what;
    tokio::runtime::Runtime::new()?.block_on(async {
        let connection = arguments.target.connect().await?;
        install::identity(&connection).await?;
        let (client, namespace) = (&connection.client, arguments.namespace.as_str());
        require_namespace(&connection, namespace).await?;
        let api: Api<NamespaceOffloading> = Api::namespaced(client.clone(), namespace);
        let found = api.get_opt(names::NAMESPACE_OFFLOADING).await;
        if found.with_context(|| format!("read the NamespaceOffloading in {namespace}"))?.is_none()
        {
            bail!("namespace {namespace} is not offloaded: nothing was changed");
        }
        let bars = Bars::new();
        let timeout = Duration::from_secs(arguments.timeout);
        let done = unoffload(client, namespace, timeout, &bars).await;
        bars.finish();
        done?;
        println!("Namespace {namespace} is not offloaded any more.");
        Ok(())
    })
}

pub async fn unoffload(
    client: &Client,
    namespace: &str,
    timeout: Duration,
    bars: &Bars,
) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = namespaces.get_opt(namespace).await?;
    if found.is_some_and(|found| found.labels().contains_key(names::ENABLED_LABEL)) {
        // The label would create the NamespaceOffloading again.
        let patch = json!({"metadata": {"labels": {names::ENABLED_LABEL: null}}});
        let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..Default::default() };
        let patched = namespaces.patch(namespace, &parameters, &Patch::Merge(patch)).await;
        patched.with_context(|| format!("remove the label of namespace {namespace}"))?;
    }
    let api: Api<NamespaceOffloading> = Api::namespaced(client.clone(), namespace);
    match api.delete(names::NAMESPACE_OFFLOADING, &DeleteParams::default()).await {
        Err(error) if is_missing(&error) => {}
        other => {
            other.with_context(|| format!("delete NamespaceOffloading {namespace}/offloading"))?;
        }
    }
    let known = peers::list(client).await?;
    let mut watches = Watches::default();
    let store = watches.keep(api, watcher::Config::default());
    let gone = watches.until(timeout, || {
        let state = store.state();
        let Some(object) = state.first() else {
            return Some(());
        };
        let clusters = object.status.iter().flat_map(|status| &status.clusters);
        let left: Vec<String> = clusters.map(|c| peers::name_of(&known, &c.cluster_id)).collect();
        if !left.is_empty() {
            bars.say(namespace, format!("waiting until it is deleted in {}", left.join(", ")));
        }
        None
    });
    if gone.await?.is_some() {
        bars.say(namespace, "not offloaded any more");
        return Ok(());
    }
    bail!(
        "namespace {namespace} is still offloaded after {} s: see `kubectl -n {namespace} \
         describe namespaceoffloading`. The controllers keep trying",
        timeout.as_secs()
    )
}
