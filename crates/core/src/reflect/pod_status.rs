//! The status of a home pod, from that of its remote pod: with translated addresses, the virtual
//! node instead of the remote one, and not Ready while the remote cluster is unreachable.

use std::net::IpAddr;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::{
    node::NotReady,
    reflect::pod::{RawPod, restarts::Restarts},
    translate::Networks,
};

/// The inputs of a status besides the two pods.
#[derive(Clone, Copy, Debug)]
pub struct StatusContext<'a> {
    /// The networks of the two clusters, once negotiated.
    pub networks: Option<&'a Networks>,
    /// Address of the virtual node.
    pub node_address: IpAddr,
    /// Why the virtual node is not ready, if it is not.
    pub not_ready: Option<&'a NotReady>,
    /// Current time.
    pub now: Timestamp,
}

/// Fields that are copied from the remote status.
const REFLECTED_FIELDS: [&str; 6] =
    ["phase", "reason", "message", "startTime", "initContainerStatuses", "containerStatuses"];

/// All fields of a status that the virtual kubelet writes, except `conditions`.
pub const OWNED_FIELDS: [&str; 10] = [
    "phase",
    "reason",
    "message",
    "startTime",
    "initContainerStatuses",
    "containerStatuses",
    "podIP",
    "podIPs",
    "hostIP",
    "hostIPs",
];

/// Set by the scheduler of each cluster.
const SCHEDULED: &str = "PodScheduled";
const READY: &str = "Ready";

/// The status of the home pod. It includes the restarts of earlier remote pods.
pub fn reflected(home: &RawPod, remote: &RawPod, context: StatusContext<'_>) -> Value {
    let mut status = Map::new();
    for field in REFLECTED_FIELDS {
        if let Some(value) = remote.status.get(field) {
            status.insert(field.into(), value.clone());
        }
    }
    let restarts = Restarts::with(home, remote);
    for field in ["initContainerStatuses", "containerStatuses"] {
        if let Some(statuses) = status.get_mut(field) {
            restarts.add_to(statuses);
        }
    }
    let addresses = addresses(&remote.status, context.networks);
    if let Some(first) = addresses.first() {
        status.insert("podIP".into(), first.to_string().into());
        let all: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip })).collect();
        status.insert("podIPs".into(), all.into());
    }
    if remote.status.get("hostIP").is_some() {
        status.insert("hostIP".into(), context.node_address.to_string().into());
        status.insert("hostIPs".into(), json!([{ "ip": context.node_address }]));
    }
    if let Some(why) = unscheduled(&remote.status) {
        status.insert("reason".into(), "Unschedulable".into());
        status.insert("message".into(), format!("in the remote cluster: {why}").into());
    }
    let theirs = conditions(&remote.status).filter(|condition| condition["type"] != SCHEDULED);
    let mut ours: Vec<Value> = theirs.map(without_generation).collect();
    if let Some(not_ready) = context.not_ready {
        set_not_ready(&mut ours, home, not_ready.reason, &not_ready.message, context.now);
    } else if let Some(gate) = unready_gate(home) {
        let message = format!("the readiness gate {gate} is not True");
        set_not_ready(&mut ours, home, "ReadinessGatesNotReady", &message, context.now);
    }
    status.insert("conditions".into(), ours.into());
    status.into()
}

/// The status of a pod that is missing in the remote cluster, or whose remote cluster is
/// unreachable: the last known status, but not Ready.
pub fn lost(home: &RawPod, reason: &str, message: &str, now: Timestamp) -> Value {
    let mut status = Map::new();
    for field in OWNED_FIELDS {
        if let Some(value) = home.status.get(field) {
            status.insert(field.into(), value.clone());
        }
    }
    let known = conditions(&home.status).filter(|condition| condition["type"] != SCHEDULED);
    let mut ours: Vec<Value> = known.map(without_generation).collect();
    set_not_ready(&mut ours, home, reason, message, now);
    status.insert("conditions".into(), ours.into());
    status.into()
}

/// The status of a pod that has not started, with the reason.
pub fn pending(reason: &str, message: &str) -> Value {
    json!({ "phase": "Pending", "reason": reason, "message": message })
}

/// Whether the fields and conditions that the virtual kubelet writes differ.
pub fn differs(has: &Value, wanted: &Value) -> bool {
    OWNED_FIELDS.iter().any(|field| has.get(field) != wanted.get(field))
        || conditions(wanted).any(|want| {
            condition(has, &want["type"]).map(without_generation).as_ref() != Some(want)
        })
}

fn addresses(remote: &Value, networks: Option<&Networks>) -> Vec<IpAddr> {
    let listed =
        remote["podIPs"].as_array().into_iter().flatten().filter_map(|ip| ip["ip"].as_str());
    listed.filter_map(|ip| networks?.local_address(ip.parse().ok()?, |_| None)).collect()
}

fn unscheduled(remote: &Value) -> Option<&str> {
    let scheduled = condition(remote, &SCHEDULED.into())?;
    (scheduled["status"] == "False").then(|| scheduled["message"].as_str()).flatten()
}

/// The first readiness gate that is not True. Gates are set in the home cluster.
fn unready_gate(home: &RawPod) -> Option<&str> {
    let gates = home.spec["readinessGates"].as_array().into_iter().flatten();
    gates.filter_map(|gate| gate["conditionType"].as_str()).find(|gate| {
        condition(&home.status, &Value::from(*gate)).is_none_or(|c| c["status"] != "True")
    })
}

fn set_not_ready(
    conditions: &mut Vec<Value>,
    home: &RawPod,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    let before = condition(&home.status, &READY.into());
    let since = before
        .filter(|ready| ready["status"] == "False")
        .and_then(|ready| ready["lastTransitionTime"].as_str().map(str::to_owned))
        .unwrap_or_else(|| to_the_second(now));
    conditions.retain(|condition| condition["type"] != READY);
    conditions.push(json!({
        "type": READY, "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": since,
    }));
}

fn to_the_second(now: Timestamp) -> String {
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

fn conditions(status: &Value) -> impl Iterator<Item = &Value> {
    status["conditions"].as_array().into_iter().flatten()
}

fn condition<'a>(status: &'a Value, kind: &Value) -> Option<&'a Value> {
    conditions(status).find(|condition| condition["type"] == *kind)
}

/// Removes the generation, which each cluster counts separately.
fn without_generation(condition: &Value) -> Value {
    let mut condition = condition.clone();
    if let Some(fields) = condition.as_object_mut() {
        fields.remove("observedGeneration");
        fields.retain(|_, value| !value.is_null());
    }
    condition
}

#[cfg(test)]
mod tests {
    use tombolo_api::names::RESTARTS_ANNOTATION;

    use super::*;
    use crate::translate::CidrTranslation;

    const NOW: &str = "2026-01-02T03:04:05.6Z";

    fn networks() -> Networks {
        let named = |real: &str, name: &str| {
            CidrTranslation::new(real.parse().unwrap(), name.parse().unwrap()).unwrap()
        };
        Networks {
            local_pods: named("10.244.0.0/16", "10.71.0.0/16"),
            local_external: named("10.70.0.0/16", "10.72.0.0/16"),
            remote_pods: named("10.244.0.0/16", "10.81.0.0/16"),
            remote_external: named("10.70.0.0/16", "10.82.0.0/16"),
        }
    }

    fn context<'a>(networks: &'a Networks, not_ready: Option<&'a NotReady>) -> StatusContext<'a> {
        StatusContext {
            networks: Some(networks),
            node_address: "10.244.1.7".parse().unwrap(),
            not_ready,
            now: NOW.parse().unwrap(),
        }
    }

    fn with_status(status: Value) -> RawPod {
        RawPod { status, ..RawPod::default() }
    }

    fn running() -> RawPod {
        with_status(json!({
            "phase": "Running",
            "qosClass": "BestEffort",
            "observedGeneration": 3,
            "startTime": "2026-01-01T00:00:00Z",
            "hostIP": "172.30.0.34", "hostIPs": [{ "ip": "172.30.0.34" }],
            "podIP": "10.244.0.9", "podIPs": [{ "ip": "10.244.0.9" }],
            "conditions": [
                { "type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z" },
                { "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z",
                  "observedGeneration": 3 },
            ],
            "containerStatuses": [{ "name": "web", "ready": true, "restartCount": 2, "later": 1 }],
        }))
    }

    fn down() -> NotReady {
        NotReady { reason: "TunnelDown", message: "no answer through the tunnel".into() }
    }

    #[test]
    fn a_running_pod_has_its_translated_address() {
        let networks = networks();
        let status = reflected(&RawPod::default(), &running(), context(&networks, None));
        insta::assert_yaml_snapshot!(status);
    }

    #[test]
    fn a_reflected_status_does_not_differ_and_generations_are_ignored() {
        let networks = networks();
        let mut status = reflected(&RawPod::default(), &running(), context(&networks, None));
        let mut has = status.clone();
        has["conditions"].as_array_mut().unwrap().insert(0, json!({ "type": "PodScheduled" }));
        has["conditions"][1]["observedGeneration"] = 9.into();
        has["qosClass"] = "BestEffort".into();
        assert!(!differs(&has, &status));
        status["containerStatuses"][0]["restartCount"] = 3.into();
        assert!(differs(&has, &status));
    }

    #[test]
    fn a_removed_address_is_a_difference() {
        let networks = networks();
        let has = reflected(&RawPod::default(), &running(), context(&networks, None));
        assert!(differs(&has, &pending("A", "b")));
    }

    #[test]
    fn pods_of_a_node_that_is_not_ready_are_not_ready() {
        let (networks, down) = (networks(), down());
        let status = reflected(&RawPod::default(), &running(), context(&networks, Some(&down)));
        let ready = condition(&status, &READY.into()).unwrap();
        assert_eq!(ready["status"], "False");
        assert_eq!(ready["reason"], "TunnelDown");
        assert_eq!(ready["lastTransitionTime"], "2026-01-02T03:04:06Z");

        // Later it has not changed.
        let mut later = context(&networks, Some(&down));
        later.now = "2026-01-02T04:00:00Z".parse().unwrap();
        assert_eq!(reflected(&with_status(status.clone()), &running(), later), status);
    }

    #[test]
    fn a_lost_pod_keeps_its_last_known_status() {
        let networks = networks();
        let mut home =
            with_status(reflected(&RawPod::default(), &running(), context(&networks, None)));
        home.status["qosClass"] = "BestEffort".into();
        let status = lost(&home, "Lost", "it is not there", NOW.parse().unwrap());
        assert_eq!(status["podIP"], "10.81.0.9");
        assert_eq!(status.get("qosClass"), None);
        assert_eq!(condition(&status, &READY.into()).unwrap()["reason"], "Lost");
    }

    #[test]
    fn restarts_do_not_drop_when_the_remote_pod_is_recreated() {
        let networks = networks();
        let spec = json!({ "containers": [{ "name": "web" }] });
        let mut home = RawPod { spec, ..RawPod::default() };
        let mut remote = running();
        remote.metadata.uid = Some("first".into());
        let restarts = Restarts::with(&home, &remote).annotation();
        home.status = reflected(&home, &remote, context(&networks, None));
        home.metadata.annotations = Some([(RESTARTS_ANNOTATION.to_owned(), restarts)].into());
        assert_eq!(home.status["containerStatuses"][0]["restartCount"], 2);

        remote.metadata.uid = Some("second".into());
        remote.status["containerStatuses"][0]["restartCount"] = 0.into();
        let status = reflected(&home, &remote, context(&networks, None));
        assert_eq!(status["containerStatuses"][0]["restartCount"], 3);
    }

    #[test]
    fn node_addresses_are_not_translated() {
        let networks = networks();
        let mut remote = running();
        remote.status["podIPs"] = json!([{ "ip": "172.30.0.34" }]);
        let status = reflected(&RawPod::default(), &remote, context(&networks, None));
        assert_eq!(status.get("podIP"), None);
        assert_eq!(status["hostIP"], "10.244.1.7");
    }

    #[test]
    fn an_unschedulable_remote_pod_is_reported_at_home() {
        let networks = networks();
        let remote = with_status(json!({
            "phase": "Pending",
            "conditions": [{
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "message": "0/2 nodes are available",
            }],
        }));
        let status = reflected(&RawPod::default(), &remote, context(&networks, None));
        assert_eq!(status["message"], "in the remote cluster: 0/2 nodes are available");
        assert_eq!(status["conditions"], json!([]));
    }

    #[test]
    fn a_pod_is_not_ready_while_a_readiness_gate_is_not() {
        let networks = networks();
        let mut home = with_status(json!({}));
        home.spec = json!({ "readinessGates": [{ "conditionType": "example.com/lb" }] });
        let ready = |home: &RawPod| {
            let status = reflected(home, &running(), context(&networks, None));
            condition(&status, &READY.into()).unwrap()["status"].clone()
        };
        assert_eq!(ready(&home), "False");
        home.status["conditions"] = json!([{ "type": "example.com/lb", "status": "True" }]);
        assert_eq!(ready(&home), "True");
    }
}
