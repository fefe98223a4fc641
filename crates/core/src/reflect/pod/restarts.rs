//! Restarts of an offloaded pod, over all its remote pods.
//!
//! A recreated remote pod starts counting at zero, while the home pod stays the same. For its owner
//! that is a restart, so each new remote pod adds one to the previous count. The home pod has the
//! uid of the last remote pod and the restarts before it in an annotation. It is written together
//! with the status, so that no process has to keep state.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tombolo_api::names::RESTARTS_ANNOTATION;

use super::{RawPod, annotation};

/// Fields of a status with restart counts, and the fields of a spec with the same containers.
const LISTS: [(&str, &str); 2] =
    [("containerStatuses", "containers"), ("initContainerStatuses", "initContainers")];

/// The last remote pod, and the restarts before it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// Uid of the last remote pod.
    uid: String,
    /// Restarts before it, by container name.
    #[serde(default)]
    before: BTreeMap<String, i32>,
}

impl Restarts {
    /// The record for the home pod when it gets the status of `remote`.
    pub fn with(home: &RawPod, remote: &RawPod) -> Self {
        let uid = remote.metadata.uid.clone().unwrap_or_default();
        match Self::recorded(home) {
            None => Self { uid, before: BTreeMap::new() },
            Some(recorded) if recorded.uid == uid => recorded,
            Some(recorded) => Self { uid, before: recorded.one_more(home) },
        }
    }

    /// The record in the home pod's annotation. `None` if it is missing or invalid.
    pub fn recorded(home: &RawPod) -> Option<Self> {
        serde_json::from_str(annotation(&home.metadata, RESTARTS_ANNOTATION)?).ok()
    }

    /// The value of the annotation.
    pub fn annotation(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Adds the earlier restarts to a list of container statuses.
    pub fn add_to(&self, statuses: &mut Value) {
        for status in statuses.as_array_mut().into_iter().flatten() {
            let name = status["name"].as_str().unwrap_or_default();
            if let Some(before) = self.before.get(name) {
                status["restartCount"] = before.saturating_add(count(status)).into();
            }
        }
    }

    /// The restarts before the next remote pod. Only containers in the home pod's spec count: the
    /// remote cluster may report others.
    fn one_more(&self, home: &RawPod) -> BTreeMap<String, i32> {
        let mut all = BTreeMap::new();
        for (statuses, containers) in LISTS {
            for container in items(&home.spec, containers) {
                let Some(name) = container["name"].as_str() else { continue };
                let shown = items(&home.status, statuses).find(|status| status["name"] == name);
                let before = self.before.get(name).copied().unwrap_or_default();
                let so_far = shown.map_or(before, count).max(before);
                all.insert(name.to_owned(), so_far.saturating_add(1));
            }
        }
        all
    }
}

fn items<'a>(of: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    of[field].as_array().into_iter().flatten()
}

/// The restarts in a container status; zero if the number is invalid.
fn count(status: &Value) -> i32 {
    let count = status["restartCount"].as_i64().unwrap_or_default();
    i32::try_from(count.max(0)).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn home() -> RawPod {
        let spec = json!({ "containers": [{ "name": "web" }, { "name": "log" }],
                           "initContainers": [{ "name": "setup" }] });
        RawPod { spec, ..RawPod::default() }
    }

    fn remote(uid: &str, restarts: &Value) -> RawPod {
        let mut pod = RawPod::default();
        pod.metadata.uid = Some(uid.into());
        pod.status = json!({ "containerStatuses": [{ "name": "web", "restartCount": restarts }] });
        pod
    }

    /// Reflects the status of `remote` to `home`. Returns the restarts of `web`.
    fn show(home: &mut RawPod, remote: &RawPod) -> Value {
        let restarts = Restarts::with(home, remote);
        home.status = remote.status.clone();
        restarts.add_to(&mut home.status["containerStatuses"]);
        let annotations = home.metadata.annotations.get_or_insert_default();
        annotations.insert(RESTARTS_ANNOTATION.into(), restarts.annotation());
        home.status["containerStatuses"][0]["restartCount"].clone()
    }

    #[test]
    fn each_new_remote_pod_is_one_more_restart() {
        let mut home = home();
        assert_eq!(show(&mut home, &remote("a", &json!(0))), 0);
        assert_eq!(show(&mut home, &remote("a", &json!(2))), 2);
        assert_eq!(show(&mut home, &remote("b", &json!(0))), 3);
        assert_eq!(show(&mut home, &remote("b", &json!(0))), 3, "the same pod again");
        assert_eq!(show(&mut home, &remote("b", &json!(4))), 7);
        assert_eq!(show(&mut home, &remote("c", &json!(0))), 8);
    }

    #[test]
    fn a_pending_remote_pod_keeps_the_count() {
        let mut home = home();
        show(&mut home, &remote("a", &json!(5)));
        let mut pending = remote("b", &json!(0));
        pending.status = json!({ "phase": "Pending" });
        show(&mut home, &pending);
        assert_eq!(show(&mut home, &remote("b", &json!(0))), 6);
        let mut pending = remote("c", &json!(0));
        pending.status = json!({ "phase": "Pending" });
        show(&mut home, &pending);
        assert_eq!(show(&mut home, &remote("c", &json!(0))), 7);
    }

    #[test]
    fn invalid_counts_of_the_remote_cluster_are_harmless() {
        let mut home = home();
        show(&mut home, &remote("a", &json!(i64::MAX)));
        assert_eq!(show(&mut home, &remote("b", &json!(7))), i32::MAX);
        let mut home = self::home();
        show(&mut home, &remote("a", &json!(-5)));
        assert_eq!(show(&mut home, &remote("b", &json!("many"))), 1);
        let other = json!({ "containerStatuses": [{ "name": "not-ours", "restartCount": 1 }] });
        let mut lying = remote("c", &json!(0));
        lying.status = other.clone();
        show(&mut home, &lying);
        assert_eq!(home.status, other);
        let recorded = Restarts::recorded(&home).unwrap();
        assert_eq!(recorded.before.into_keys().collect::<Vec<_>>(), ["log", "setup", "web"]);
    }

    #[test]
    fn an_invalid_annotation_is_replaced() {
        let mut home = home();
        show(&mut home, &remote("a", &json!(1)));
        let annotations = home.metadata.annotations.as_mut().unwrap();
        annotations.insert(RESTARTS_ANNOTATION.into(), "nonsense".into());
        assert_eq!(show(&mut home, &remote("a", &json!(1))), 1);
        assert_eq!(show(&mut home, &remote("b", &json!(0))), 2);
    }
}
