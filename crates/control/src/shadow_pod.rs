//! Keeps offloaded pods running: the pod of a ShadowPod exists as long as the ShadowPod, even while
//! the home cluster is unreachable.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use tombolo_api::{
    names::{FINALIZER, POD_FAILURE_ANNOTATION, POD_FINISHED_ANNOTATION},
    virtualkubelet::ShadowPod,
};
use tombolo_core::{
    reflect::pod::RawPod,
    shadow_pod::{self, Next},
};
use tombolo_runtime::{
    events::Events,
    finalizer,
    observe::{Watches, key},
    queue::{self, queue},
    shutdown::Shutdown,
    writer,
};

use crate::context::{Context, MANAGER};

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let keeper = Keeper { client: context.client.clone(), events: context.events.clone() };
    keeper.run(&context.watches, &context.shutdown).await;
}

/// The same without a `Context`.
pub async fn keep_up(client: Client, events: Events, shutdown: &Shutdown) {
    let watches = Watches::new(client.clone());
    Keeper { client, events }.run(&watches, shutdown).await;
}

struct Keeper {
    client: Client,
    events: Events,
}

#[derive(Debug, thiserror::Error)]
enum KeepError {
    #[error("read pod {0}")]
    Get(String, #[source] kube::Error),
    #[error("apply pod {0}")]
    Apply(String, #[source] kube::Error),
    #[error("delete pod {0}")]
    Delete(String, #[source] kube::Error),
    #[error("remove the finalizer from ShadowPod {0}")]
    Release(String, #[source] kube::Error),
    #[error("annotate ShadowPod {0} with the outcome of its pod")]
    Annotate(String, #[source] kube::Error),
}

async fn reconcile(shadow: &ShadowPod, keeper: &Keeper) -> Result<(), KeepError> {
    let (namespace, name) = key(shadow);
    let full = format!("{namespace}/{name}");
    let pods: Api<RawPod> = Api::namespaced(keeper.client.clone(), &namespace);
    let pod = pods.get_opt(&name).await.map_err(|e| KeepError::Get(full.clone(), e))?;
    match shadow_pod::next(shadow, pod.as_ref()) {
        Next::Nothing => {}
        Next::Apply(pod) => match writer::apply(&pods, MANAGER, &pod).await {
            Ok(_) => keeper.annotate_failure(shadow, None).await?,
            Err(error) => {
                keeper.refused(shadow, &error).await?;
                return Err(KeepError::Apply(full, error));
            }
        },
        Next::Delete { uid, grace } => {
            let params = DeleteParams {
                grace_period_seconds: grace.and_then(|seconds| seconds.try_into().ok()),
                preconditions: Some(Preconditions { uid, resource_version: None }),
                ..DeleteParams::default()
            };
            writer::absent_is_fine(pods.delete(&name, &params).await.map(drop))
                .map_err(|error| KeepError::Delete(full, error))?;
        }
        Next::RemoveFinalizer => {
            let shadows: Api<ShadowPod> = Api::namespaced(keeper.client.clone(), &namespace);
            finalizer::remove(&shadows, shadow, FINALIZER)
                .await
                .map_err(|error| KeepError::Release(full, error))?;
        }
        Next::RecordFinished(phase) => {
            keeper.annotate(shadow, &json!({ POD_FINISHED_ANNOTATION: phase })).await?;
        }
        Next::Conflict => {
            let why = format!("pod {name} already exists and is not an offloaded pod: delete it");
            keeper.annotate_failure(shadow, Some(&why)).await?;
        }
    }
    Ok(())
}

impl Keeper {
    /// Reconciles ShadowPods when they or pods of the same name change.
    async fn run(self, watches: &Watches, shutdown: &Shutdown) {
        let (queue, receiver) = queue();
        let shadows = watches.of::<ShadowPod>();
        shadows.enqueue(&queue, |shadow| [key(shadow)]);
        let known = shadows.clone();
        watches.of::<Pod>().enqueue(&queue, move |pod| {
            let (namespace, name) = key(pod);
            known.get(&namespace, &name).map(|_| (namespace, name))
        });
        let work = queue::run("shadow-pod", receiver, async |(namespace, name)| {
            match shadows.get(&namespace, &name) {
                Some(shadow) => reconcile(&shadow, &self).await,
                None => Ok(()),
            }
        });
        shutdown.or(work).await;
    }

    /// Annotates the ShadowPod with the refusal of the API server, for the home cluster.
    async fn refused(&self, shadow: &ShadowPod, error: &kube::Error) -> Result<(), KeepError> {
        let kube::Error::Api(status) = error else {
            return Ok(());
        };
        self.annotate_failure(shadow, Some(&status.message)).await
    }

    async fn annotate_failure(
        &self,
        shadow: &ShadowPod,
        why: Option<&str>,
    ) -> Result<(), KeepError> {
        let current = shadow.annotations().get(POD_FAILURE_ANNOTATION).map(String::as_str);
        if current == why {
            return Ok(());
        }
        if let Some(why) = why {
            self.events.warning(shadow, "PodNotCreated", why).await;
        }
        self.annotate(shadow, &json!({ POD_FAILURE_ANNOTATION: why })).await
    }

    async fn annotate(
        &self,
        shadow: &ShadowPod,
        annotations: &serde_json::Value,
    ) -> Result<(), KeepError> {
        let name = shadow.name_any();
        let api: Api<ShadowPod> =
            Api::namespaced(self.client.clone(), &shadow.namespace().unwrap_or_default());
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let patch = json!({ "metadata": { "uid": shadow.uid(), "annotations": annotations } });
        let done = api.patch(&name, &params, &Patch::Merge(patch)).await.map(drop);
        writer::absent_is_fine(done).map_err(|error| KeepError::Annotate(name, error))
    }
}
