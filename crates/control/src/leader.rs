//! Labels the leader's pod, and no other, for the selector of the address service's Service.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{reflector::Store, watcher},
};
use serde_json::json;
use tombolo_api::names::{COMPONENT_LABEL, CONTROL_ACCOUNT, LEADER, LEADER_LABEL, NAMESPACE};
use tombolo_runtime::{lease::Leading, observe::Observer};
use tracing::info;

use crate::context::Context;

/// Maintains the label while this replica leads.
pub async fn run(ctx: Arc<Context>, leading: Leading) {
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), NAMESPACE);
    let mut observer = Observer::new();
    let replicas = format!("{COMPONENT_LABEL}={CONTROL_ACCOUNT}");
    let pods = observer.watch(api.clone(), watcher::Config::default().labels(&replicas));
    let label = Label { api, pods, own: ctx.settings.pod_name.clone(), leading };
    observer.run("leader", &ctx.shutdown, || label.reconcile()).await;
}

/// A label could not be written.
#[derive(Debug, thiserror::Error)]
#[error("set or remove the label {LEADER_LABEL} of Pod {NAMESPACE}/{0}")]
struct Error(String, #[source] kube::Error);

struct Label {
    api: Api<Pod>,
    pods: Store<Pod>,
    /// Name of this pod.
    own: String,
    leading: Leading,
}

impl Label {
    async fn reconcile(&self) -> Result<(), Error> {
        for pod in self.pods.state() {
            let wanted = (pod.name_any() == self.own).then_some(LEADER);
            if pod.labels().get(LEADER_LABEL).map(String::as_str) != wanted {
                self.label(&pod, wanted).await?;
            }
        }
        Ok(())
    }

    /// With the resource version of the watch: a former leader is stopped by its lease's clock or
    /// by a conflict.
    async fn label(&self, pod: &Pod, value: Option<&str>) -> Result<(), Error> {
        if self.leading.is_over() {
            return Ok(());
        }
        let name = pod.name_any();
        let patch = json!({ "metadata": {
            "resourceVersion": pod.resource_version(),
            "labels": { LEADER_LABEL: value },
        } });
        let patched = self.api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match patched {
            Ok(_) => info!(pod = name, leads = value.is_some(), "updated the leader label"),
            // The pod has changed or is gone: the watch triggers a retry.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => return Err(Error(name, error)),
        }
        Ok(())
    }
}
