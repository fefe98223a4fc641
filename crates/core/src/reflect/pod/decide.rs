//! The next actions for an offloaded pod in both clusters, from its current state.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use tombolo_api::{
    names::{
        DESTINATION_LABEL, GRACE_PERIOD_ANNOTATION, HOME_UID_ANNOTATION, ORIGIN_LABEL,
        POD_FAILURE_ANNOTATION, POD_FINISHED_ANNOTATION,
    },
    virtualkubelet::ShadowPod,
};

use super::{ClusterPair, RawPod, annotation, forge, map, restarts::Restarts};
use crate::{
    node::NotReady,
    reflect::pod_status::{self, StatusContext},
};

/// The state of one pod in both clusters.
#[derive(Clone, Copy, Debug)]
pub struct PodState<'a> {
    /// The home pod, on the virtual node.
    pub home: Option<&'a RawPod>,
    /// The twin of its namespace.
    pub twin: TwinState<'a>,
    /// The ShadowPod with the same name.
    pub shadow: Option<&'a ShadowPod>,
    /// The remote pod with the same name.
    pub remote: Option<&'a RawPod>,
}

/// The twin of a pod's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwinState<'a> {
    /// It exists, with this name.
    Present(&'a str),
    /// It is desired, but does not exist yet or is being deleted.
    Pending,
    /// The namespace is not offloaded to the remote cluster.
    NotOffloaded,
}

/// The next actions for a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Action in the remote cluster.
    pub remote: Remote,
    /// Action in the home cluster.
    pub home: Home,
    /// The record of restarts to write together with the status, if it changes.
    pub restarts: Option<Restarts>,
}

/// An action in the remote cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Remote {
    /// Nothing.
    #[default]
    Nothing,
    /// Apply the ShadowPod.
    Apply(Box<ShadowPod>),
    /// Delete the ShadowPod.
    Delete {
        /// Uid of the ShadowPod.
        uid: Option<String>,
        /// Grace period of its pod in seconds; `None` for the pod's own.
        grace: Option<i64>,
    },
}

/// An action in the home cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Home {
    /// Nothing.
    #[default]
    Nothing,
    /// Set the pod's status.
    Status(Value),
    /// Delete the pod without a grace period: it does not run any more.
    Remove,
    /// Delete the pod: it can't stay on this node.
    Evict,
}

/// Reasons for a Pending pod.
const DAEMON_SET: (&str, &str) =
    ("DaemonSetNotOffloaded", "pods of a DaemonSet are not offloaded to a virtual node");
const NOT_OFFLOADED: (&str, &str) = (
    "NamespaceNotOffloaded",
    "its namespace is not offloaded to this node's cluster: offload it, or keep the pod from \
     virtual nodes",
);
const NAMESPACE_PENDING: (&str, &str) =
    ("NamespaceNotReady", "the remote cluster has not created the twin namespace yet");
const REFUSED: &str = "RemotePodRefused";
const MISSING: (&str, &str) = ("RemotePodMissing", "the remote cluster is recreating the pod");

/// Decides on a pod. Without `home`, the pod is known to be gone.
pub fn decide(
    state: PodState<'_>,
    clusters: ClusterPair<'_>,
    context: StatusContext<'_>,
) -> Decision {
    let Some(home) = state.home else {
        let ours = state.shadow.filter(|shadow| is_from_to(&shadow.metadata, clusters));
        return Decision {
            remote: ours.map_or(Remote::Nothing, |s| delete(s, None)),
            ..Decision::default()
        };
    };
    if home.is_deleting() {
        return terminating(home, state, context);
    }
    let TwinState::Present(namespace) = state.twin else {
        return without_twin_namespace(home, state, context);
    };
    if home.is_of_daemon_set() {
        return Decision { home: stay_pending(home, DAEMON_SET), ..Decision::default() };
    }
    let forged = forge(home, namespace, clusters);
    let remote = match state.shadow {
        None if home.is_finished() => Remote::Nothing,
        None => Remote::Apply(Box::new(forged)),
        Some(shadow) if !stands_for(&shadow.metadata, home) => delete(shadow, None),
        Some(shadow) if shadow.metadata.deletion_timestamp.is_some() => Remote::Nothing,
        Some(shadow) if is_up_to_date(shadow, &forged) => Remote::Nothing,
        Some(_) => Remote::Apply(Box::new(forged)),
    };
    Decision { remote, ..status(home, state, context) }
}

/// The action at home before the watches of the twin namespace have synced. If the remote cluster
/// is unreachable, a pod that has run is not ready. Otherwise the state is about to be known.
pub fn decide_before_sync(home: &RawPod, context: StatusContext<'_>) -> Home {
    let has_run = home.status.get("containerStatuses").is_some();
    match context.not_ready {
        Some(not_ready) if has_run && !home.is_finished() => unreachable(home, not_ready, context),
        _ => Home::Nothing,
    }
}

fn terminating(home: &RawPod, state: PodState<'_>, context: StatusContext<'_>) -> Decision {
    let shadow = state.shadow.filter(|shadow| stands_for(&shadow.metadata, home));
    let remote = state.remote.filter(|remote| stands_for(&remote.metadata, home));
    match (shadow, remote) {
        (None, None) => Decision { home: Home::Remove, ..Decision::default() },
        (None, Some(_)) => status(home, state, context),
        (Some(shadow), _) => {
            let own = home.spec["terminationGracePeriodSeconds"].as_i64();
            let grace = home.metadata.deletion_grace_period_seconds.filter(|s| Some(*s) != own);
            Decision { remote: delete(shadow, grace), ..status(home, state, context) }
        }
    }
}

/// Deletes a ShadowPod, unless that is done with the same grace period.
fn delete(shadow: &ShadowPod, grace: Option<i64>) -> Remote {
    let recorded = annotation(&shadow.metadata, GRACE_PERIOD_ANNOTATION);
    let is_new = grace.is_some_and(|seconds| recorded != Some(&seconds.to_string()));
    if shadow.metadata.deletion_timestamp.is_some() && !is_new {
        return Remote::Nothing;
    }
    Remote::Delete { uid: shadow.metadata.uid.clone(), grace }
}

fn without_twin_namespace(
    home: &RawPod,
    state: PodState<'_>,
    context: StatusContext<'_>,
) -> Decision {
    let has_run = home.status.get("containerStatuses").is_some();
    let at_home = match state.twin {
        _ if home.is_finished() => Home::Nothing,
        _ if home.is_of_daemon_set() => stay_pending(home, DAEMON_SET),
        TwinState::NotOffloaded if has_run => Home::Evict,
        TwinState::NotOffloaded => stay_pending(home, NOT_OFFLOADED),
        _ if has_run => return status(home, state, context),
        _ => stay_pending(home, NAMESPACE_PENDING),
    };
    Decision { home: at_home, ..Decision::default() }
}

fn stay_pending(home: &RawPod, (reason, message): (&str, &str)) -> Home {
    if_different(home, pod_status::pending(reason, message))
}

/// The status of the home pod, without an action in the remote cluster.
fn status(home: &RawPod, state: PodState<'_>, context: StatusContext<'_>) -> Decision {
    let known = home.status.get("containerStatuses").is_some();
    if let Some(remote) = state.remote.filter(|remote| stands_for(&remote.metadata, home)) {
        // A finished pod stays finished, even if the remote pod was recreated.
        if home.is_finished() && !remote.is_finished() {
            return Decision::default();
        }
        // A deleted remote pod ends as Failed, but it is recreated: the home pod continues.
        if remote.is_deleting() && !home.is_deleting() {
            let lost = || pod_status::lost(home, MISSING.0, MISSING.1, context.now);
            let stays = !known || home.is_finished();
            let at_home = if stays { Home::Nothing } else { if_different(home, lost()) };
            return Decision { home: at_home, ..Decision::default() };
        }
        let restarts = Restarts::with(home, remote);
        return Decision {
            home: if_different(home, pod_status::reflected(home, remote, context)),
            restarts: Some(restarts).filter(|now| Restarts::recorded(home).as_ref() != Some(now)),
            ..Decision::default()
        };
    }
    Decision { home: without_remote(home, state, context, known), ..Decision::default() }
}

fn without_remote(
    home: &RawPod,
    state: PodState<'_>,
    context: StatusContext<'_>,
    known: bool,
) -> Home {
    let failure = state.shadow.and_then(|s| annotation(&s.metadata, POD_FAILURE_ANNOTATION));
    match (failure, context.not_ready) {
        _ if home.is_finished() => Home::Nothing,
        (Some(failure), _) if !known => stay_pending(home, (REFUSED, failure)),
        _ if !known => if_different(home, serde_json::json!({ "phase": "Pending" })),
        (Some(failure), _) => {
            if_different(home, pod_status::lost(home, REFUSED, failure, context.now))
        }
        (None, Some(not_ready)) => unreachable(home, not_ready, context),
        (None, None) => {
            if_different(home, pod_status::lost(home, MISSING.0, MISSING.1, context.now))
        }
    }
}

fn unreachable(home: &RawPod, not_ready: &NotReady, context: StatusContext<'_>) -> Home {
    let (reason, message) = (not_ready.reason, &not_ready.message);
    if_different(home, pod_status::lost(home, reason, message, context.now))
}

fn if_different(home: &RawPod, wanted: Value) -> Home {
    if pod_status::differs(&home.status, &wanted) { Home::Status(wanted) } else { Home::Nothing }
}

fn stands_for(metadata: &ObjectMeta, home: &RawPod) -> bool {
    annotation(metadata, HOME_UID_ANNOTATION) == home.metadata.uid.as_deref()
}

fn is_from_to(metadata: &ObjectMeta, clusters: ClusterPair<'_>) -> bool {
    let labels = map(metadata.labels.as_ref());
    labels.get(ORIGIN_LABEL) == Some(&clusters.home.as_str())
        && labels.get(DESTINATION_LABEL) == Some(&clusters.remote.as_str())
}

/// Compares all but the status annotations of the ShadowPod.
fn is_up_to_date(shadow: &ShadowPod, forged: &ShadowPod) -> bool {
    let mut annotations = map(shadow.metadata.annotations.as_ref());
    for name in [POD_FAILURE_ANNOTATION, POD_FINISHED_ANNOTATION, GRACE_PERIOD_ANNOTATION] {
        annotations.remove(name);
    }
    shadow.spec == forged.spec
        && annotations == map(forged.metadata.annotations.as_ref())
        && map(shadow.metadata.labels.as_ref()) == map(forged.metadata.labels.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{ClusterId, names::RESTARTS_ANNOTATION};

    use super::*;

    fn id(text: &str) -> ClusterId {
        text.parse().unwrap()
    }

    fn pod(more: &Value) -> RawPod {
        let mut pod = json!({
            "metadata": { "name": "web", "namespace": "shop", "uid": "u1" },
            "spec": { "terminationGracePeriodSeconds": 30, "containers": [{ "name": "web" }] },
            "status": { "phase": "Pending" },
        });
        for part in ["metadata", "spec", "status"] {
            for (name, value) in more[part].as_object().into_iter().flatten() {
                pod[part][name] = value.clone();
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    fn shadow_of(home: &RawPod) -> ShadowPod {
        let clusters = ClusterPair { home: &id("rome"), remote: &id("milan") };
        let mut shadow = forge(home, "shop-rome", clusters);
        shadow.metadata.uid = Some("s1".into());
        shadow
    }

    fn remote_of(shadow: &ShadowPod, status: Value) -> RawPod {
        RawPod { metadata: shadow.metadata.clone(), status, spec: shadow.spec.pod.clone() }
    }

    fn running() -> Value {
        json!({ "phase": "Running", "containerStatuses": [{ "name": "web" }],
                "conditions": [{ "type": "Ready", "status": "True" }] })
    }

    fn deleting(grace: i64) -> Value {
        json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace } })
    }

    fn context(not_ready: Option<&NotReady>) -> StatusContext<'_> {
        StatusContext {
            networks: None,
            node_address: "10.0.0.1".parse().unwrap(),
            not_ready,
            now: "2026-01-02T00:00:00Z".parse().unwrap(),
        }
    }

    fn after(state: PodState<'_>, not_ready: Option<&NotReady>) -> Decision {
        decide(state, ClusterPair { home: &id("rome"), remote: &id("milan") }, context(not_ready))
    }

    fn state<'a>(
        home: Option<&'a RawPod>,
        shadow: Option<&'a ShadowPod>,
        remote: Option<&'a RawPod>,
    ) -> PodState<'a> {
        PodState { home, twin: TwinState::Present("shop-rome"), shadow, remote }
    }

    fn gone(grace: Option<i64>) -> Remote {
        Remote::Delete { uid: Some("s1".into()), grace }
    }

    #[test]
    fn a_new_pod_gets_a_shadow_pod_once() {
        let home = pod(&json!({}));
        let shadow = shadow_of(&home);
        let decision = after(state(Some(&home), None, None), None);
        assert!(matches!(decision.remote, Remote::Apply(_)));
        assert_eq!(after(state(Some(&home), Some(&shadow), None), None), Decision::default());
    }

    #[test]
    fn changed_and_removed_labels_are_reflected() {
        let home = pod(&json!({ "metadata": { "labels": { "app": "web" } } }));
        let shadow =
            shadow_of(&pod(&json!({ "metadata": { "labels": { "app": "web", "b": "c" } } })));
        let decision = after(state(Some(&home), Some(&shadow), None), None);
        assert!(matches!(decision.remote, Remote::Apply(_)));
    }

    #[test]
    fn a_status_is_reflected_once() {
        let mut home = pod(&json!({}));
        let shadow = shadow_of(&home);
        let remote = remote_of(&shadow, running());
        let decision = after(state(Some(&home), Some(&shadow), Some(&remote)), None);
        let Home::Status(status) = decision.home else { panic!("no status was reflected") };
        home.status = status;
        let restarts = decision.restarts.expect("the remote pod is recorded").annotation();
        home.metadata.annotations = Some([(RESTARTS_ANNOTATION.to_owned(), restarts)].into());
        let decision = after(state(Some(&home), Some(&shadow), Some(&remote)), None);
        assert_eq!(decision, Decision::default());
    }

    #[test]
    fn a_pod_whose_remote_pod_is_deleted_has_not_failed() {
        let home = pod(&json!({ "status": running() }));
        let shadow = shadow_of(&home);
        let mut remote = remote_of(&shadow, json!({ "phase": "Failed" }));
        remote.metadata.deletion_timestamp = pod(&deleting(1)).metadata.deletion_timestamp;
        let Home::Status(status) =
            after(state(Some(&home), Some(&shadow), Some(&remote)), None).home
        else {
            panic!("it is still ready")
        };
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["conditions"][0]["reason"], MISSING.0);
    }

    #[test]
    fn a_shadow_pod_is_deleted_after_its_pod() {
        let shadow = shadow_of(&pod(&json!({})));
        assert_eq!(after(state(None, Some(&shadow), None), None).remote, gone(None));
        let mut other = shadow.clone();
        other.metadata.labels.as_mut().unwrap().insert(ORIGIN_LABEL.into(), "paris".into());
        assert_eq!(after(state(None, Some(&other), None), None).remote, Remote::Nothing);
    }

    #[test]
    fn a_shadow_pod_of_an_earlier_pod_is_deleted_first() {
        let shadow = shadow_of(&pod(&json!({})));
        let remote = remote_of(&shadow, running());
        let home = pod(&json!({ "metadata": { "uid": "u2" } }));
        let decision = after(state(Some(&home), Some(&shadow), Some(&remote)), None);
        assert_eq!(decision, Decision { remote: gone(None), ..Decision::default() });
    }

    #[test]
    fn a_pod_is_removed_when_shadow_pod_and_remote_pod_are_gone() {
        let home = pod(&deleting(30));
        let shadow = shadow_of(&home);
        let remote = remote_of(&shadow, running());
        assert_eq!(after(state(Some(&home), Some(&shadow), None), None).remote, gone(None));
        let decision = after(state(Some(&home), None, Some(&remote)), None);
        assert!(matches!(decision.home, Home::Status(_)), "{decision:?}");
        assert_eq!(after(state(Some(&home), None, None), None).home, Home::Remove);
    }

    #[test]
    fn a_shorter_grace_period_is_passed_on() {
        let home = pod(&deleting(2));
        let mut shadow = shadow_of(&home);
        assert_eq!(after(state(Some(&home), Some(&shadow), None), None).remote, gone(Some(2)));
        let since = pod(&deleting(2)).metadata.deletion_timestamp;
        shadow.metadata.deletion_timestamp = since;
        assert_eq!(after(state(Some(&home), Some(&shadow), None), None).remote, gone(Some(2)));
        let annotations = shadow.metadata.annotations.as_mut().unwrap();
        annotations.insert(GRACE_PERIOD_ANNOTATION.into(), "2".into());
        assert_eq!(after(state(Some(&home), Some(&shadow), None), None).remote, Remote::Nothing);
    }

    #[test]
    fn pods_of_a_daemon_set_stay_pending() {
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
        let home = pod(&json!({ "metadata": { "ownerReferences": owner } }));
        let decision = after(state(Some(&home), None, None), None);
        assert_eq!(decision.remote, Remote::Nothing);
        assert_eq!(decision.home, Home::Status(pod_status::pending(DAEMON_SET.0, DAEMON_SET.1)));
    }

    #[test]
    fn without_its_twin_namespace_a_new_pod_stays_pending_and_one_that_ran_is_evicted() {
        let fresh = pod(&json!({}));
        let ran = pod(&json!({ "status": running() }));
        let in_twin = |home, twin| {
            after(PodState { home: Some(home), twin, shadow: None, remote: None }, None)
        };
        let decision = in_twin(&fresh, TwinState::NotOffloaded);
        assert!(matches!(decision.home, Home::Status(status) if status["phase"] == "Pending"));
        let Home::Status(lost) = in_twin(&ran, TwinState::Pending).home else {
            panic!("it is still ready, in a namespace that does not exist")
        };
        assert_eq!(lost["conditions"][0]["status"], "False");
        assert_eq!(in_twin(&ran, TwinState::NotOffloaded).home, Home::Evict);
    }

    #[test]
    fn before_sync_a_pod_that_has_run_is_not_ready_if_its_node_is_not() {
        let down = NotReady { reason: "TunnelDown", message: "no answer".into() };
        let mut ran = pod(&json!({ "status": running() }));
        assert_eq!(
            decide_before_sync(&ran, context(None)),
            Home::Nothing,
            "its state is about to be known"
        );
        let Home::Status(lost) = decide_before_sync(&ran, context(Some(&down))) else {
            panic!("it is still ready")
        };
        assert_eq!(lost["conditions"][0]["reason"], "TunnelDown");
        ran.status = lost;
        assert_eq!(
            decide_before_sync(&ran, context(Some(&down))),
            Home::Nothing,
            "it needs no change"
        );
        let new = pod(&json!({}));
        assert_eq!(decide_before_sync(&new, context(Some(&down))), Home::Nothing);
        let finished = pod(&json!({
            "status": { "phase": "Succeeded", "containerStatuses": [{ "name": "web" }] },
        }));
        assert_eq!(decide_before_sync(&finished, context(Some(&down))), Home::Nothing);
    }

    #[test]
    fn a_finished_pod_is_not_created_again() {
        let home = pod(&json!({ "status": { "phase": "Succeeded" } }));
        assert_eq!(after(state(Some(&home), None, None), None), Decision::default());
    }

    #[test]
    fn a_refused_pod_reports_the_reason() {
        let home = pod(&json!({}));
        let mut shadow = shadow_of(&home);
        let annotations = shadow.metadata.annotations.as_mut().unwrap();
        annotations.insert(POD_FAILURE_ANNOTATION.into(), "exceeded quota".into());
        let decision = after(state(Some(&home), Some(&shadow), None), None);
        assert_eq!(decision.remote, Remote::Nothing);
        assert_eq!(decision.home, Home::Status(pod_status::pending(REFUSED, "exceeded quota")));
    }

    #[test]
    fn a_pod_of_an_unreachable_cluster_is_not_ready() {
        let home = pod(&json!({ "status": running() }));
        let down = NotReady { reason: "APIServerUnreachable", message: "no answer".into() };
        let Home::Status(status) = after(state(Some(&home), None, None), Some(&down)).home else {
            panic!("it is still ready")
        };
        assert_eq!(status["conditions"][0]["reason"], "APIServerUnreachable");
        assert_eq!(status["phase"], "Running");
    }
}
