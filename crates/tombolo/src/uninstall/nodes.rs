//! Lets agents and gateways remove their interfaces, routes and rules from the nodes. A component
//! can't distinguish a restart from an uninstall, so a ConfigMap signals it, and each reports in
//! there.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tombolo_api::names;

use crate::install::MANAGER;
use crate::watching::Watches;

const CLEAN: &str = "clean";

pub async fn clean(client: &Client, timeout: Duration, say: &dyn Fn(&str)) -> Result<()> {
    let expected = reporters(client).await?;
    if expected.is_empty() {
        return Ok(());
    }
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), names::NAMESPACE);
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": names::UNINSTALL,
            "labels": {"app.kubernetes.io/part-of": "liqo"},
        },
    });
    let parameters = PatchParams::apply(MANAGER).force();
    maps.patch(names::UNINSTALL, &parameters, &Patch::Apply(&map))
        .await
        .context("create ConfigMap liqo/liqo-uninstall")?;
    let mut watches = Watches::default();
    let only = watcher::Config::default().fields(&format!("metadata.name={}", names::UNINSTALL));
    let store = watches.keep(maps, only);
    let missing = || -> Vec<String> {
        let state = store.state();
        let data = state.first().and_then(|map| map.data.clone()).unwrap_or_default();
        let clean = |name: &&String| data.get(*name).is_some_and(|report| report == CLEAN);
        expected.iter().filter(|name| !clean(name)).map(|name| in_words(name)).collect()
    };
    let done = watches.until(timeout, || {
        let missing = missing();
        if !missing.is_empty() {
            say(&format!("waiting for the report of {}", missing.join(", ")));
        }
        missing.is_empty().then_some(())
    });
    if done.await?.is_some() {
        return Ok(());
    }
    bail!(
        "no clean-up report after {} s from {}. The components keep running, so that the \
         report can follow. If the node is up, see `kubectl -n liqo logs` of its pods, then run \
         `tombolo uninstall` again. If the node is gone for good, run `kubectl delete node` first",
        timeout.as_secs(),
        missing().join(", ")
    )
}

/// `agent.rome-1` → `the agent on node rome-1`.
fn in_words(reporter: &str) -> String {
    match reporter.split_once('.') {
        Some((component, node)) => format!("the {component} on node {node}"),
        None => reporter.to_owned(),
    }
}

/// The expected reports: one of every running agent and gateway.
async fn reporters(client: &Client) -> Result<BTreeSet<String>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), names::NAMESPACE);
    let selected = "app.kubernetes.io/name in (liqo-agent, liqo-gateway)";
    let found = pods.list(&ListParams::default().labels(selected)).await;
    let found = found.context("list the pods of agents and gateways")?;
    Ok(found.iter().filter_map(reporter).collect())
}

/// The key of a pod's report, if the pod runs: evicted and failed pods never report.
fn reporter(pod: &Pod) -> Option<String> {
    let component = pod.labels().get("app.kubernetes.io/name")?.strip_prefix("liqo-")?;
    let node = pod.spec.as_ref()?.node_name.as_ref()?;
    let runs = pod.status.as_ref()?.phase.as_ref()? == "Running";
    runs.then(|| format!("{component}.{node}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_running_pods_report() {
        let pod = |phase: &str| {
            let labels = json!({ "app.kubernetes.io/name": "liqo-gateway" });
            let pod = json!({
                "metadata": { "name": "gateway", "labels": labels },
                "spec": { "nodeName": "rome-1", "containers": [] },
                "status": { "phase": phase },
            });
            serde_json::from_value::<Pod>(pod).unwrap()
        };
        assert_eq!(reporter(&pod("Running")).as_deref(), Some("gateway.rome-1"));
        assert_eq!(reporter(&pod("Failed")), None);
        assert_eq!(reporter(&pod("Succeeded")), None);
    }
}
