//! Offloads the pods of a virtual node and copies back their status: reads the local pods, their
//! ShadowPods and the remote pods, and executes the decisions of `core`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    runtime::{reflector::Store, watcher},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tombolo_api::{
    names::{
        DESTINATION_LABEL, GRACE_PERIOD_ANNOTATION, MANAGED_BY_LABEL, ORIGIN_LABEL,
        RESTARTS_ANNOTATION, SHADOW_POD,
    },
    virtualkubelet::ShadowPod,
};
use tombolo_core::reflect::{
    pod::{
        ClusterPair, RawPod,
        decide::{self, Home, PodState, Remote, TwinState},
        restarts::Restarts,
    },
    pod_status::{self, StatusContext},
};
use tombolo_runtime::{
    events::Events,
    observe::{Changed, Object, Watched},
    queue::{self, Queue, Receiver, queue},
    writer,
};

use crate::{MANAGER, peer::Peer, virtual_node::PodInputs};

/// Namespace and name of a local pod.
type Key = (String, String);

/// The pods of one virtual node.
pub(crate) struct Pods {
    peer: Arc<Peer>,
    inputs: watch::Receiver<PodInputs>,
    events: Events,
    home: Watched<RawPod>,
    twins: Mutex<BTreeMap<String, Arc<TwinNamespace>>>,
    queue: Queue<Key>,
}

/// The pods of a twin namespace.
struct TwinNamespace {
    name: String,
    shadows: Watched<ShadowPod>,
    pods: Watched<RawPod>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    #[error("apply ShadowPod {0}/{1} in the remote cluster")]
    ApplyShadow(String, String, #[source] kube::Error),
    #[error("delete ShadowPod {0}/{1} in the remote cluster")]
    DeleteShadow(String, String, #[source] kube::Error),
    #[error("set the status of pod {0}/{1}")]
    SetStatus(String, String, #[source] kube::Error),
    #[error("delete pod {0}/{1}")]
    Delete(String, String, #[source] kube::Error),
}

impl Pods {
    /// Starts the watches.
    pub(crate) fn new(
        peer: Arc<Peer>,
        inputs: watch::Receiver<PodInputs>,
    ) -> (Arc<Self>, Receiver<Key>) {
        let (queue, receiver) = queue();
        let of_node = watcher::Config::default().fields(&format!("spec.nodeName={}", peer.node));
        let pods = Arc::new_cyclic(|pods| Self {
            inputs,
            events: Events::new(peer.home.clone(), MANAGER),
            home: Watched::notifying(
                Api::all(peer.home.clone()),
                of_node,
                enqueue_pods(pods.clone(), key::<RawPod>),
            ),
            twins: Mutex::default(),
            queue,
            peer,
        });
        (pods, receiver)
    }

    /// Reconciles pods until the shutdown of the peer.
    pub(crate) async fn run(self: Arc<Self>, receiver: Receiver<Key>) {
        let name = format!("pods of {}", self.peer.node);
        let working = queue::run(&name, receiver, |key| self.reconcile(key));
        let shutdown = &self.peer.shutdown;
        tokio::join!(shutdown.or(working), shutdown.or(self.follow()));
    }

    /// The local pods.
    pub(crate) fn at_home(&self) -> Vec<Arc<RawPod>> {
        self.home.all()
    }

    /// A local pod, and the name of its twin namespace.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<(Arc<RawPod>, String)> {
        let twin = self.peer.namespaces.borrow().get(namespace).cloned()?;
        Some((self.home.get(namespace, name)?, twin))
    }

    /// Whether the local pods have been listed.
    pub(crate) fn is_synced(&self) -> bool {
        self.home.is_synced()
    }

    /// Number of changes of the local pods: wakes its receivers at each.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.home.changes()
    }

    /// Enqueues all pods when an input that they share changes.
    async fn follow(self: &Arc<Self>) {
        let mut inputs = self.inputs.clone();
        let mut namespaces = self.peer.namespaces.clone();
        let mut networks = self.peer.networks.clone();
        loop {
            self.watch_twins();
            self.enqueue_all();
            let changed = tokio::select! {
                changed = inputs.changed() => changed,
                changed = namespaces.changed() => changed,
                changed = networks.changed() => changed,
            };
            if changed.is_err() {
                return;
            }
        }
    }

    fn watch_twins(self: &Arc<Self>) {
        let mut wanted = self.inputs.borrow().leaving_namespaces.clone();
        wanted.extend(self.peer.namespaces.borrow().clone());
        let mut twins = self.twins.lock().unwrap_or_else(PoisonError::into_inner);
        twins.retain(|home, twin| wanted.get(home) == Some(&twin.name));
        for (home, name) in wanted {
            let twin = || Arc::new(self.watch_twin(&home, &name));
            twins.entry(home.clone()).or_insert_with(twin);
        }
    }

    fn watch_twin(self: &Arc<Self>, home: &str, name: &str) -> TwinNamespace {
        let client = &self.peer.remote.client;
        let ours = format!(
            "{ORIGIN_LABEL}={},{DESTINATION_LABEL}={}",
            self.peer.settings.cluster_id, self.peer.cluster.cluster_id
        );
        let pods = format!("{MANAGED_BY_LABEL}={SHADOW_POD},{ours}");
        let (of_shadow, of_pod) = (home.to_owned(), home.to_owned());
        TwinNamespace {
            name: name.to_owned(),
            shadows: Watched::notifying(
                Api::namespaced(client.clone(), name),
                watcher::Config::default().labels(&ours),
                enqueue_pods(Arc::downgrade(self), move |it: &ShadowPod| {
                    (of_shadow.clone(), it.name_any())
                }),
            ),
            pods: Watched::notifying(
                Api::namespaced(client.clone(), name),
                watcher::Config::default().labels(&pods),
                enqueue_pods(Arc::downgrade(self), move |it: &RawPod| {
                    (of_pod.clone(), it.name_any())
                }),
            ),
        }
    }

    /// Enqueues all pods, local and remote ones.
    fn enqueue_all(&self) {
        for pod in self.home.all() {
            self.queue.enqueue(key(&*pod));
        }
        let twins = self.twins.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (home, twin) in twins {
            for shadow in twin.shadows.all() {
                self.queue.enqueue((home.clone(), shadow.name_any()));
            }
        }
    }

    async fn reconcile(&self, (namespace, name): Key) -> Result<(), PodError> {
        if !self.home.is_synced() {
            return Ok(());
        }
        let home = self.home.get(&namespace, &name);
        let twins = self.twins.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let twin = twins.get(&namespace);
        let inputs = self.inputs.borrow().clone();
        let networks = *self.peer.networks.borrow();
        let there = self.peer.namespaces.borrow().get(&namespace).cloned();
        let from = StatusContext {
            networks: networks.as_ref(),
            node_address: self.peer.settings.pod_ip,
            not_ready: inputs.not_ready.as_ref(),
            now: Timestamp::now(),
        };
        let blind = twin.is_some_and(|t| !t.shadows.is_synced() || !t.pods.is_synced());
        if blind {
            return match home.as_deref() {
                Some(pod) => {
                    self.do_at_home(pod, decide::decide_before_sync(pod, from), None).await
                }
                None => Ok(()),
            };
        }
        let (shadow, remote) = twin.map_or((None, None), |twin| {
            (twin.shadows.get(&twin.name, &name), twin.pods.get(&twin.name, &name))
        });
        let seen = PodState {
            home: home.as_deref(),
            twin: match twin {
                Some(twin) if there.as_ref() == Some(&twin.name) => TwinState::Present(&twin.name),
                _ if inputs.wanted_namespaces.contains(&namespace) => TwinState::Pending,
                _ => TwinState::NotOffloaded,
            },
            shadow: shadow.as_deref(),
            remote: remote.as_deref(),
        };
        let clusters = ClusterPair {
            home: &self.peer.settings.cluster_id,
            remote: &self.peer.cluster.cluster_id,
        };
        let decision = decide::decide(seen, clusters, from);
        // The local status is updated even if the remote cluster is unreachable.
        let at_home = match home.as_deref() {
            Some(pod) => self.do_at_home(pod, decision.home, decision.restarts.as_ref()).await,
            None => Ok(()),
        };
        if let Some(twin) = twin {
            self.do_there(&twin.name, &name, decision.remote).await?;
        }
        at_home
    }

    async fn do_there(&self, twin: &str, name: &str, what: Remote) -> Result<(), PodError> {
        let api: Api<ShadowPod> = Api::namespaced(self.peer.remote.client.clone(), twin);
        let names = || (twin.to_owned(), name.to_owned());
        match what {
            Remote::Nothing => Ok(()),
            Remote::Apply(shadow) => {
                writer::apply(&api, MANAGER, &shadow).await.map(drop).map_err(|source| {
                    let (twin, name) = names();
                    PodError::ApplyShadow(twin, name, source)
                })
            }
            Remote::Delete { uid, grace } => {
                delete_shadow(&api, name, uid, grace).await.map_err(|source| {
                    let (twin, name) = names();
                    PodError::DeleteShadow(twin, name, source)
                })
            }
        }
    }

    async fn do_at_home(
        &self,
        pod: &RawPod,
        what: Home,
        restarts: Option<&Restarts>,
    ) -> Result<(), PodError> {
        let (namespace, name) = key(pod);
        let api: Api<RawPod> = Api::namespaced(self.peer.home.clone(), &namespace);
        match what {
            Home::Nothing if restarts.is_none() => Ok(()),
            Home::Nothing => self.set_status(&api, pod, &Value::Null, restarts).await,
            Home::Status(status) => {
                self.record_reason(pod, &status).await;
                self.set_status(&api, pod, &status, restarts).await
            }
            Home::Remove => delete_pod(&api, pod, Some(0))
                .await
                .map_err(|source| PodError::Delete(namespace, name, source)),
            Home::Evict => {
                let note = "the namespace is no longer offloaded to the cluster of this node";
                self.events.normal(pod, "Evicted", note).await;
                delete_pod(&api, pod, None)
                    .await
                    .map_err(|source| PodError::Delete(namespace, name, source))
            }
        }
    }

    async fn set_status(
        &self,
        api: &Api<RawPod>,
        pod: &RawPod,
        status: &Value,
        restarts: Option<&Restarts>,
    ) -> Result<(), PodError> {
        let mut patch = status_patch(pod, status);
        if let Some(restarts) = restarts {
            let metadata = &mut patch["metadata"];
            metadata["annotations"] = json!({ RESTARTS_ANNOTATION: restarts.annotation() });
            // The earlier restarts are computed from the status of the pod, which must be current.
            if Restarts::recorded(pod).is_some() {
                metadata["resourceVersion"] = json!(pod.metadata.resource_version);
            }
        }
        let (namespace, name) = key(pod);
        let params = PatchParams { field_manager: Some(MANAGER.into()), ..PatchParams::default() };
        let done = api.patch_status(&name, &params, &Patch::Strategic(patch)).await;
        stale_is_fine(done.map(drop)).map_err(|source| PodError::SetStatus(namespace, name, source))
    }

    async fn record_reason(&self, pod: &RawPod, status: &Value) {
        let text = |field: &str| status[field].as_str();
        if let (Some("Pending"), Some(reason), Some(message)) =
            (text("phase"), text("reason"), text("message"))
        {
            self.events.warning(pod, reason, message).await;
        }
    }
}

/// Deletes a pod, with this grace period in seconds instead of its own.
pub(crate) async fn delete_pod(
    api: &Api<RawPod>,
    pod: &RawPod,
    grace: Option<u32>,
) -> kube::Result<()> {
    let params = DeleteParams {
        grace_period_seconds: grace,
        preconditions: Some(Preconditions { uid: pod.uid(), resource_version: None }),
        ..DeleteParams::default()
    };
    writer::absent_is_fine(api.delete(&pod.name_any(), &params).await.map(drop))
}

async fn delete_shadow(
    api: &Api<ShadowPod>,
    name: &str,
    uid: Option<String>,
    grace: Option<i64>,
) -> kube::Result<()> {
    if let Some(seconds) = grace {
        let patch = json!({ "metadata": {
            "uid": uid,
            "annotations": { GRACE_PERIOD_ANNOTATION: seconds.to_string() },
        } });
        let done = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        match stale_is_fine(done.map(drop)) {
            // After the end of a peering the tenant may delete ShadowPods but not patch them.
            Err(kube::Error::Api(status)) if status.code == 403 => {}
            patched => patched?,
        }
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    };
    writer::absent_is_fine(api.delete(name, &params).await.map(drop))
}

/// A strategic merge patch, as a real kubelet sends it. Lists with merge keys are merged item by
/// item, so absent fields need an explicit null, and lists of addresses a replace directive.
fn status_patch(pod: &RawPod, status: &Value) -> Value {
    let mut fields = serde_json::Map::new();
    let ours: &[&str] = if status.is_null() { &[] } else { &pod_status::OWNED_FIELDS };
    for field in ours {
        let value = match status.get(field) {
            Some(Value::Array(items)) if field.ends_with("IPs") => {
                let mut items = items.clone();
                items.insert(0, json!({ "$patch": "replace" }));
                items.into()
            }
            Some(value) => value.clone(),
            None if pod.status.get(field).is_some() => Value::Null,
            None => continue,
        };
        fields.insert((*field).into(), value);
    }
    if let Some(Value::Array(conditions)) = status.get("conditions") {
        let mut conditions = conditions.clone();
        for condition in conditions.iter_mut().filter_map(Value::as_object_mut) {
            for field in ["reason", "message"] {
                condition.entry(field).or_insert(Value::Null);
            }
        }
        fields.insert("conditions".into(), conditions.into());
    }
    json!({ "metadata": { "uid": pod.metadata.uid }, "status": fields })
}

/// Treats an object that is gone, recreated or changed as success: its watch enqueues it again.
fn stale_is_fine(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(kube::Error::Api(status))
            if status.code == 422 && status.message.contains("metadata.uid") =>
        {
            Ok(())
        }
        other => writer::absent_is_fine(other),
    }
}

/// A listener that enqueues the pods of a change.
fn enqueue_pods<K>(
    pods: Weak<Pods>,
    key_of: impl Fn(&K) -> Key + Send + 'static,
) -> impl FnMut(Changed<'_, K>, &Store<K>) + Send + 'static
where
    K: Object,
{
    move |changed, _| {
        // `Pods` is not constructed yet. Its start enqueues all pods.
        let Some(pods) = pods.upgrade() else { return };
        match changed {
            Changed::One(object) => pods.queue.enqueue(key_of(object)),
            Changed::Any => pods.enqueue_all(),
        }
    }
}

fn key<K: ResourceExt>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}
