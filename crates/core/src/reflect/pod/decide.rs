//! What an offloaded pod needs next, on either side, from what is there now.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;
use tombolo_api::{
    names::{
        DESTINATION_LABEL, GRACE_PERIOD_ANNOTATION, HOME_UID_ANNOTATION, ORIGIN_LABEL,
        POD_FAILURE_ANNOTATION, POD_FINISHED_ANNOTATION,
    },
    virtualkubelet::ShadowPod,
};

use super::{RawPod, Route, annotation, forge, map, restarts::Restarts};
use crate::{
    node::NotReady,
    reflect::pod_status::{self, Viewpoint},
};

/// All that is known of one pod.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The pod on the virtual node, if there is one.
    pub home: Option<&'a RawPod>,
    /// The namespace that its own has become in the remote cluster.
    pub twin: Twin<'a>,
    /// The ShadowPod of its name.
    pub shadow: Option<&'a ShadowPod>,
    /// The remote pod of its name.
    pub remote: Option<&'a RawPod>,
}

/// What has become of the pod's namespace in the remote cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin<'a> {
    /// It is there, with this name.
    There(&'a str),
    /// It is wanted, but not there yet, or on its way out.
    Awaited,
    /// Nobody wants it to reach there.
    Unwanted,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// In the remote cluster.
    pub remote: Remote,
    /// In the home cluster.
    pub home: Home,
    /// What the pod at home has to record, together with its status, where it is something new.
    pub restarts: Option<Restarts>,
}

/// What to do in the remote cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Remote {
    /// Nothing.
    #[default]
    Nothing,
    /// Apply the ShadowPod.
    Apply(Box<ShadowPod>),
    /// Delete the ShadowPod, whose pod gets so many seconds if they are said.
    Delete {
        /// The one that was seen.
        uid: Option<String>,
        /// Seconds for its pod to end, unless its own.
        grace: Option<i64>,
    },
}

/// What to do in the home cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Home {
    /// Nothing.
    #[default]
    Nothing,
    /// Set the pod's status, which is another.
    Status(Value),
    /// Delete the pod for good: nothing of it runs any more.
    Remove,
    /// Ask the pod to end: it can't be on this node any more.
    Evict,
}

/// Why a pod stays Pending.
const DAEMON_SET: (&str, &str) =
    ("DaemonSetNotOffloaded", "pods of a DaemonSet do not run on a virtual node");
const NOT_OFFLOADED: (&str, &str) = (
    "NamespaceNotOffloaded",
    "its namespace is not offloaded to this node's cluster: offload it, or keep the pod from \
     virtual nodes",
);
const NAMESPACE_AWAITED: (&str, &str) =
    ("NamespaceNotReady", "the remote cluster has not made its namespace yet");
const REFUSED: &str = "RemotePodRefused";
const MISSING: (&str, &str) = ("RemotePodMissing", "the remote cluster is making the pod anew");

/// What a pod needs next. `None` for `home` means that it is known not to be there.
pub fn decide(seen: Seen<'_>, route: Route<'_>, from: Viewpoint<'_>) -> Decision {
    let Some(home) = seen.home else {
        let ours = seen.shadow.filter(|shadow| is_from_to(&shadow.metadata, route));
        return Decision {
            remote: ours.map_or(Remote::Nothing, |s| delete(s, None)),
            ..Decision::default()
        };
    };
    if home.is_deleting() {
        return ending(home, seen, from);
    }
    let Twin::There(namespace) = seen.twin else {
        return nowhere(home, seen, from);
    };
    if home.is_of_daemon_set() {
        return Decision { home: stay_pending(home, DAEMON_SET), ..Decision::default() };
    }
    let forged = forge(home, namespace, route);
    let remote = match seen.shadow {
        None if home.is_finished() => Remote::Nothing,
        None => Remote::Apply(Box::new(forged)),
        Some(shadow) if !stands_for(&shadow.metadata, home) => delete(shadow, None),
        Some(shadow) if shadow.metadata.deletion_timestamp.is_some() => Remote::Nothing,
        Some(shadow) if is_as_forged(shadow, &forged) => Remote::Nothing,
        Some(_) => Remote::Apply(Box::new(forged)),
    };
    Decision { remote, ..status(home, seen, from) }
}

/// What a pod gets at home while nothing is known of its twin namespace: when the remote cluster
/// can't be asked, a pod that has run is not ready. Otherwise an answer is about to come.
pub fn while_blind(home: &RawPod, from: Viewpoint<'_>) -> Home {
    let has_run = home.status.get("containerStatuses").is_some();
    match from.not_ready {
        Some(not_ready) if has_run && !home.is_finished() => out_of_reach(home, not_ready, from),
        _ => Home::Nothing,
    }
}

fn ending(home: &RawPod, seen: Seen<'_>, from: Viewpoint<'_>) -> Decision {
    let shadow = seen.shadow.filter(|shadow| stands_for(&shadow.metadata, home));
    let remote = seen.remote.filter(|remote| stands_for(&remote.metadata, home));
    match (shadow, remote) {
        (None, None) => Decision { home: Home::Remove, ..Decision::default() },
        (None, Some(_)) => status(home, seen, from),
        (Some(shadow), _) => {
            let own = home.spec["terminationGracePeriodSeconds"].as_i64();
            let grace = home.metadata.deletion_grace_period_seconds.filter(|s| Some(*s) != own);
            Decision { remote: delete(shadow, grace), ..status(home, seen, from) }
        }
    }
}

/// Deletes a ShadowPod, unless that is done.
fn delete(shadow: &ShadowPod, grace: Option<i64>) -> Remote {
    let told = annotation(&shadow.metadata, GRACE_PERIOD_ANNOTATION);
    let news = grace.is_some_and(|seconds| told != Some(&seconds.to_string()));
    if shadow.metadata.deletion_timestamp.is_some() && !news {
        return Remote::Nothing;
    }
    Remote::Delete { uid: shadow.metadata.uid.clone(), grace }
}

fn nowhere(home: &RawPod, seen: Seen<'_>, from: Viewpoint<'_>) -> Decision {
    let has_run = home.status.get("containerStatuses").is_some();
    let at_home = match seen.twin {
        _ if home.is_finished() => Home::Nothing,
        _ if home.is_of_daemon_set() => stay_pending(home, DAEMON_SET),
        Twin::Unwanted if has_run => Home::Evict,
        Twin::Unwanted => stay_pending(home, NOT_OFFLOADED),
        _ if has_run => return status(home, seen, from),
        _ => stay_pending(home, NAMESPACE_AWAITED),
    };
    Decision { home: at_home, ..Decision::default() }
}

fn stay_pending(home: &RawPod, (reason, message): (&str, &str)) -> Home {
    if_different(home, pod_status::pending(reason, message))
}

/// What the pod at home gets, with nothing to do in the remote cluster.
fn status(home: &RawPod, seen: Seen<'_>, from: Viewpoint<'_>) -> Decision {
    let known = home.status.get("containerStatuses").is_some();
    if let Some(remote) = seen.remote.filter(|remote| stands_for(&remote.metadata, home)) {
        // What has ended for good stays so, whatever was made anew over there.
        if home.is_finished() && !remote.is_finished() {
            return Decision::default();
        }
        // A pod that is deleted over there ends as Failed, but it is made anew: at home it goes on.
        if remote.is_deleting() && !home.is_deleting() {
            let lost = || pod_status::lost(home, MISSING.0, MISSING.1, from.now);
            let stays = !known || home.is_finished();
            let at_home = if stays { Home::Nothing } else { if_different(home, lost()) };
            return Decision { home: at_home, ..Decision::default() };
        }
        let restarts = Restarts::with(home, remote);
        return Decision {
            home: if_different(home, pod_status::absorb(home, remote, from)),
            restarts: Some(restarts).filter(|now| Restarts::recorded(home).as_ref() != Some(now)),
            ..Decision::default()
        };
    }
    Decision { home: without_remote(home, seen, from, known), ..Decision::default() }
}

fn without_remote(home: &RawPod, seen: Seen<'_>, from: Viewpoint<'_>, known: bool) -> Home {
    let failure = seen.shadow.and_then(|s| annotation(&s.metadata, POD_FAILURE_ANNOTATION));
    match (failure, from.not_ready) {
        _ if home.is_finished() => Home::Nothing,
        (Some(failure), _) if !known => stay_pending(home, (REFUSED, failure)),
        _ if !known => if_different(home, serde_json::json!({ "phase": "Pending" })),
        (Some(failure), _) => {
            if_different(home, pod_status::lost(home, REFUSED, failure, from.now))
        }
        (None, Some(not_ready)) => out_of_reach(home, not_ready, from),
        (None, None) => if_different(home, pod_status::lost(home, MISSING.0, MISSING.1, from.now)),
    }
}

fn out_of_reach(home: &RawPod, not_ready: &NotReady, from: Viewpoint<'_>) -> Home {
    let (reason, message) = (not_ready.reason, &not_ready.message);
    if_different(home, pod_status::lost(home, reason, message, from.now))
}

fn if_different(home: &RawPod, wanted: Value) -> Home {
    if pod_status::differs(&home.status, &wanted) { Home::Status(wanted) } else { Home::Nothing }
}

fn stands_for(metadata: &ObjectMeta, home: &RawPod) -> bool {
    annotation(metadata, HOME_UID_ANNOTATION) == home.metadata.uid.as_deref()
}

fn is_from_to(metadata: &ObjectMeta, route: Route<'_>) -> bool {
    let labels = map(metadata.labels.as_ref());
    labels.get(ORIGIN_LABEL) == Some(&route.home.as_str())
        && labels.get(DESTINATION_LABEL) == Some(&route.remote.as_str())
}

/// What the remote cluster notes on a ShadowPod, or we do when it is to go, is none of the pod's.
fn is_as_forged(shadow: &ShadowPod, forged: &ShadowPod) -> bool {
    let mut annotations = map(shadow.metadata.annotations.as_ref());
    for notes in [POD_FAILURE_ANNOTATION, POD_FINISHED_ANNOTATION, GRACE_PERIOD_ANNOTATION] {
        annotations.remove(notes);
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
        let route = Route { home: &id("rome"), remote: &id("milan") };
        let mut shadow = forge(home, "shop-rome", route);
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

    fn from(not_ready: Option<&NotReady>) -> Viewpoint<'_> {
        Viewpoint {
            networks: None,
            node_address: "10.0.0.1".parse().unwrap(),
            not_ready,
            now: "2026-01-02T00:00:00Z".parse().unwrap(),
        }
    }

    fn after(seen: Seen<'_>, not_ready: Option<&NotReady>) -> Decision {
        decide(seen, Route { home: &id("rome"), remote: &id("milan") }, from(not_ready))
    }

    fn seen<'a>(
        home: Option<&'a RawPod>,
        shadow: Option<&'a ShadowPod>,
        remote: Option<&'a RawPod>,
    ) -> Seen<'a> {
        Seen { home, twin: Twin::There("shop-rome"), shadow, remote }
    }

    fn gone(grace: Option<i64>) -> Remote {
        Remote::Delete { uid: Some("s1".into()), grace }
    }

    #[test]
    fn a_new_pod_gets_a_shadow_and_then_nothing_more() {
        let home = pod(&json!({}));
        let shadow = shadow_of(&home);
        let decision = after(seen(Some(&home), None, None), None);
        assert!(matches!(decision.remote, Remote::Apply(_)));
        assert_eq!(after(seen(Some(&home), Some(&shadow), None), None), Decision::default());
    }

    #[test]
    fn a_label_that_changes_or_goes_follows() {
        let home = pod(&json!({ "metadata": { "labels": { "app": "web" } } }));
        let shadow =
            shadow_of(&pod(&json!({ "metadata": { "labels": { "app": "web", "b": "c" } } })));
        let decision = after(seen(Some(&home), Some(&shadow), None), None);
        assert!(matches!(decision.remote, Remote::Apply(_)));
    }

    #[test]
    fn a_status_comes_back_once() {
        let mut home = pod(&json!({}));
        let shadow = shadow_of(&home);
        let remote = remote_of(&shadow, running());
        let decision = after(seen(Some(&home), Some(&shadow), Some(&remote)), None);
        let Home::Status(status) = decision.home else { panic!("no status came back") };
        home.status = status;
        let restarts = decision.restarts.expect("the remote pod is recorded").annotation();
        home.metadata.annotations = Some([(RESTARTS_ANNOTATION.to_owned(), restarts)].into());
        let decision = after(seen(Some(&home), Some(&shadow), Some(&remote)), None);
        assert_eq!(decision, Decision::default());
    }

    #[test]
    fn a_pod_that_is_deleted_over_there_has_not_failed() {
        let home = pod(&json!({ "status": running() }));
        let shadow = shadow_of(&home);
        let mut remote = remote_of(&shadow, json!({ "phase": "Failed" }));
        remote.metadata.deletion_timestamp = pod(&deleting(1)).metadata.deletion_timestamp;
        let Home::Status(status) =
            after(seen(Some(&home), Some(&shadow), Some(&remote)), None).home
        else {
            panic!("it is still ready")
        };
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["conditions"][0]["reason"], MISSING.0);
    }

    #[test]
    fn a_pod_that_went_takes_its_shadow_along() {
        let shadow = shadow_of(&pod(&json!({})));
        assert_eq!(after(seen(None, Some(&shadow), None), None).remote, gone(None));
        let mut other = shadow.clone();
        other.metadata.labels.as_mut().unwrap().insert(ORIGIN_LABEL.into(), "paris".into());
        assert_eq!(after(seen(None, Some(&other), None), None).remote, Remote::Nothing);
    }

    #[test]
    fn a_shadow_of_an_earlier_pod_goes_first() {
        let shadow = shadow_of(&pod(&json!({})));
        let remote = remote_of(&shadow, running());
        let home = pod(&json!({ "metadata": { "uid": "u2" } }));
        let decision = after(seen(Some(&home), Some(&shadow), Some(&remote)), None);
        assert_eq!(decision, Decision { remote: gone(None), ..Decision::default() });
    }

    #[test]
    fn a_pod_ends_when_nothing_of_it_is_left_there() {
        let home = pod(&deleting(30));
        let shadow = shadow_of(&home);
        let remote = remote_of(&shadow, running());
        assert_eq!(after(seen(Some(&home), Some(&shadow), None), None).remote, gone(None));
        let decision = after(seen(Some(&home), None, Some(&remote)), None);
        assert!(matches!(decision.home, Home::Status(_)), "{decision:?}");
        assert_eq!(after(seen(Some(&home), None, None), None).home, Home::Remove);
    }

    #[test]
    fn whoever_is_in_a_hurry_is_heard() {
        let home = pod(&deleting(2));
        let mut shadow = shadow_of(&home);
        assert_eq!(after(seen(Some(&home), Some(&shadow), None), None).remote, gone(Some(2)));
        let since = pod(&deleting(2)).metadata.deletion_timestamp;
        shadow.metadata.deletion_timestamp = since;
        assert_eq!(after(seen(Some(&home), Some(&shadow), None), None).remote, gone(Some(2)));
        let annotations = shadow.metadata.annotations.as_mut().unwrap();
        annotations.insert(GRACE_PERIOD_ANNOTATION.into(), "2".into());
        assert_eq!(after(seen(Some(&home), Some(&shadow), None), None).remote, Remote::Nothing);
    }

    #[test]
    fn pods_of_a_daemon_set_wait_for_ever() {
        let owner = json!([{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true }]);
        let home = pod(&json!({ "metadata": { "ownerReferences": owner } }));
        let decision = after(seen(Some(&home), None, None), None);
        assert_eq!(decision.remote, Remote::Nothing);
        assert_eq!(decision.home, Home::Status(pod_status::pending(DAEMON_SET.0, DAEMON_SET.1)));
    }

    #[test]
    fn without_its_namespace_a_pod_waits_and_one_that_ran_goes() {
        let fresh = pod(&json!({}));
        let ran = pod(&json!({ "status": running() }));
        let in_twin =
            |home, twin| after(Seen { home: Some(home), twin, shadow: None, remote: None }, None);
        let decision = in_twin(&fresh, Twin::Unwanted);
        assert!(matches!(decision.home, Home::Status(status) if status["phase"] == "Pending"));
        let Home::Status(lost) = in_twin(&ran, Twin::Awaited).home else {
            panic!("it is still ready, in a namespace that is not there")
        };
        assert_eq!(lost["conditions"][0]["status"], "False");
        assert_eq!(in_twin(&ran, Twin::Unwanted).home, Home::Evict);
    }

    #[test]
    fn a_pod_that_nobody_can_ask_about_is_not_ready_if_it_has_run() {
        let down = NotReady { reason: "TunnelDown", message: "no answer".into() };
        let mut ran = pod(&json!({ "status": running() }));
        assert_eq!(while_blind(&ran, from(None)), Home::Nothing, "an answer is about to come");
        let Home::Status(lost) = while_blind(&ran, from(Some(&down))) else {
            panic!("it is still ready")
        };
        assert_eq!(lost["conditions"][0]["reason"], "TunnelDown");
        ran.status = lost;
        assert_eq!(while_blind(&ran, from(Some(&down))), Home::Nothing, "it is so already");
        let new = pod(&json!({}));
        assert_eq!(while_blind(&new, from(Some(&down))), Home::Nothing);
        let finished = pod(&json!({
            "status": { "phase": "Succeeded", "containerStatuses": [{ "name": "web" }] },
        }));
        assert_eq!(while_blind(&finished, from(Some(&down))), Home::Nothing);
    }

    #[test]
    fn a_finished_pod_is_not_run_again() {
        let home = pod(&json!({ "status": { "phase": "Succeeded" } }));
        assert_eq!(after(seen(Some(&home), None, None), None), Decision::default());
    }

    #[test]
    fn a_refused_pod_says_why() {
        let home = pod(&json!({}));
        let mut shadow = shadow_of(&home);
        let annotations = shadow.metadata.annotations.as_mut().unwrap();
        annotations.insert(POD_FAILURE_ANNOTATION.into(), "exceeded quota".into());
        let decision = after(seen(Some(&home), Some(&shadow), None), None);
        assert_eq!(decision.remote, Remote::Nothing);
        assert_eq!(decision.home, Home::Status(pod_status::pending(REFUSED, "exceeded quota")));
    }

    #[test]
    fn a_pod_that_nobody_tells_about_is_not_ready() {
        let home = pod(&json!({ "status": running() }));
        let down = NotReady { reason: "APIServerUnreachable", message: "no answer".into() };
        let Home::Status(status) = after(seen(Some(&home), None, None), Some(&down)).home else {
            panic!("it is still ready")
        };
        assert_eq!(status["conditions"][0]["reason"], "APIServerUnreachable");
        assert_eq!(status["phase"], "Running");
    }
}
