//! Readiness of the components, and the reasons why pods are not ready.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::stream::{self, StreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use tombolo_api::names;

/// Selects all objects of Tombolo.
pub const SELECTOR: &str = "app.kubernetes.io/part-of=liqo";

/// A component and the number of its ready pods.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Component {
    pub name: String,
    pub ready: i32,
    pub wanted: i32,
    /// Whether the ready pods are of the latest generation.
    #[serde(skip)]
    pub current: bool,
}

impl Component {
    pub fn is_ready(&self) -> bool {
        self.current && self.ready >= self.wanted
    }
}

/// The current state of the components.
pub async fn components(client: &Client) -> Result<Vec<Component>> {
    let selected = ListParams::default().labels(SELECTOR);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), names::NAMESPACE);
    let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), names::NAMESPACE);
    let deployments = deployments.list(&selected).await.context("list the Deployments in liqo")?;
    let daemons = daemons.list(&selected).await.context("list the DaemonSets in liqo")?;
    let mut all: Vec<Component> = deployments.iter().map(of_deployment).collect();
    all.extend(daemons.iter().map(of_daemon_set));
    all.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(all)
}

/// Waits until all components are ready.
pub async fn wait(client: &Client, timeout: Duration, say: impl Fn(String)) -> Result<()> {
    let waiting = async {
        let mut changes = changes(client);
        while changes.next().await.is_some() {
            let all = components(client).await?;
            let missing = all.iter().filter(|c| !c.is_ready());
            let missing: Vec<String> =
                missing.map(|c| format!("{} {}/{}", short(&c.name), c.ready, c.wanted)).collect();
            if missing.is_empty() && !all.is_empty() {
                say(format!("ready: {}", list(&all)));
                return Ok(());
            }
            say(format!(
                "{} of {} components ready; waiting for {}",
                all.len() - missing.len(),
                all.len(),
                missing.join(", ")
            ));
        }
        bail!("the watch of the components ended")
    };
    match tokio::time::timeout(timeout, waiting).await {
        Ok(done) => done,
        Err(_) => {
            let reasons = reasons(client).await.unwrap_or_default();
            bail!(
                "not all components became ready within {} s:\n{}\nsee `kubectl -n liqo describe \
                 pods` and `kubectl -n liqo logs`, then run `tombolo install` again",
                timeout.as_secs(),
                reasons.join("\n")
            )
        }
    }
}

fn list(all: &[Component]) -> String {
    all.iter().map(|c| short(&c.name)).collect::<Vec<_>>().join(", ")
}

fn short(name: &str) -> &str {
    name.strip_prefix("liqo-").unwrap_or(name)
}

/// An item for every change of a workload.
fn changes(client: &Client) -> stream::BoxStream<'static, ()> {
    let config = watcher::Config::default().labels(SELECTOR);
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), names::NAMESPACE);
    let daemons: Api<DaemonSet> = Api::namespaced(client.clone(), names::NAMESPACE);
    let deployments =
        watcher(deployments, config.clone()).default_backoff().applied_objects().map(drop);
    let daemons = watcher(daemons, config).default_backoff().applied_objects().map(drop);
    stream::select(deployments, daemons).boxed()
}

fn of_deployment(deployment: &Deployment) -> Component {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    Component {
        name: deployment.name_any(),
        ready: status.ready_replicas.unwrap_or(0),
        wanted,
        current: status.observed_generation == deployment.metadata.generation
            && status.updated_replicas.unwrap_or(0) >= wanted
            && status.replicas.unwrap_or(0) == status.updated_replicas.unwrap_or(0),
    }
}

fn of_daemon_set(daemons: &DaemonSet) -> Component {
    let status = daemons.status.clone().unwrap_or_default();
    let wanted = status.desired_number_scheduled;
    Component {
        name: daemons.name_any(),
        ready: status.number_ready,
        wanted,
        current: status.observed_generation == daemons.metadata.generation
            && wanted > 0
            && status.updated_number_scheduled.unwrap_or(0) >= wanted,
    }
}

/// The reason for each pod that is not ready.
async fn reasons(client: &Client) -> Result<Vec<String>> {
    let api: Api<Pod> = Api::namespaced(client.clone(), names::NAMESPACE);
    let pods = api.list(&ListParams::default().labels(SELECTOR)).await?;
    let found: BTreeMap<String, String> =
        pods.iter().filter_map(|pod| Some((pod.name_any(), reason(pod)?))).collect();
    Ok(found.into_iter().map(|(pod, reason)| format!("  {pod}: {reason}")).collect())
}

fn reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    let condition = |kind: &str| {
        status.conditions.iter().flatten().find(|c| c.type_ == kind && c.status != "True")
    };
    if let Some(unscheduled) = condition("PodScheduled") {
        return Some(format!(
            "not scheduled: {}",
            unscheduled.message.clone().unwrap_or_else(|| "no node assigned yet".into())
        ));
    }
    condition("Ready")?;
    for container in status.container_statuses.iter().flatten() {
        let state = container.state.clone().unwrap_or_default();
        if let Some(waiting) = state.waiting {
            let reason = waiting.reason.unwrap_or_else(|| "waiting".into());
            let hint = if reason.contains("Image") {
                format!(
                    ": node {} can't pull the image {} (set --image)",
                    pod.spec.as_ref()?.node_name.as_deref().unwrap_or("?"),
                    container.image
                )
            } else {
                waiting.message.map(|message| format!(": {message}")).unwrap_or_default()
            };
            return Some(format!("{reason}{hint}"));
        }
        if let Some(ended) = state.terminated {
            return Some(format!("terminated with exit code {}", ended.exit_code));
        }
        if !container.ready {
            return Some("running, but its readiness probe fails".into());
        }
    }
    Some("not started yet".into())
}
