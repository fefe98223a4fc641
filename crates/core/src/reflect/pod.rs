//! The [`ShadowPod`] of an offloaded pod. Its spec is reflected except for the fields that are
//! meaningful only in the home cluster.

pub mod decide;
pub mod restarts;

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Resource, core::NamespaceResourceScope};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tombolo_api::{
    ClusterId,
    names::{
        CLUSTER_ID_ENV, DESTINATION_LABEL, FINALIZER, HOME_UID_ANNOTATION, ORIGIN_LABEL,
        RESTARTS_ANNOTATION, VIRTUAL_NODE_TAINT,
    },
    virtualkubelet::{ShadowPod, ShadowPodSpec},
};

use crate::json::without_nulls;

/// A pod with spec and status as raw JSON, so that fields of newer Kubernetes versions are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RawPod {
    /// Metadata.
    pub metadata: ObjectMeta,
    /// Spec.
    #[serde(default)]
    pub spec: Value,
    /// Status.
    #[serde(default)]
    pub status: Value,
}

/// The home and the remote cluster of a pod.
#[derive(Clone, Copy, Debug)]
pub struct ClusterPair<'a> {
    /// The home cluster.
    pub home: &'a ClusterId,
    /// The remote cluster.
    pub remote: &'a ClusterId,
}

/// Annotation of `kubectl apply`.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Prefix of volumes with a ServiceAccount token, which is not valid in another cluster.
const API_ACCESS_VOLUME: &str = "kube-api-access-";

/// Node labels with the same meaning in every cluster.
const PORTABLE_NODE_LABELS: [&str; 2] = ["kubernetes.io/os", "kubernetes.io/arch"];

/// Fields of the spec that the home cluster has already applied, or that mean nothing elsewhere.
const HOME_ONLY_FIELDS: [&str; 12] = [
    "nodeName",
    "nodeSelector",
    "schedulerName",
    "schedulingGates",
    "serviceAccount",
    "serviceAccountName",
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    "overhead",
    "readinessGates",
    "ephemeralContainers",
];

/// The ShadowPod for a pod, in the twin namespace.
pub fn forge(pod: &RawPod, namespace: &str, clusters: ClusterPair<'_>) -> ShadowPod {
    let spec = ShadowPodSpec { pod: spec(&pod.spec, clusters.remote) };
    let mut shadow = ShadowPod::new(pod.metadata.name.as_deref().unwrap_or_default(), spec);
    let mut labels = pod.metadata.labels.clone().unwrap_or_default();
    labels.insert(ORIGIN_LABEL.into(), clusters.home.to_string());
    labels.insert(DESTINATION_LABEL.into(), clusters.remote.to_string());
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    annotations.remove(RESTARTS_ANNOTATION);
    annotations.insert(HOME_UID_ANNOTATION.into(), pod.metadata.uid.clone().unwrap_or_default());
    shadow.metadata.namespace = Some(namespace.to_owned());
    shadow.metadata.labels = Some(labels);
    shadow.metadata.annotations = Some(annotations);
    // The ShadowPod outlives its pod, which terminates within the requested grace period.
    shadow.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
    shadow
}

impl RawPod {
    /// Kind of its controller.
    fn owner_kind(&self) -> Option<&str> {
        let owners = self.metadata.owner_references.iter().flatten();
        owners.into_iter().find(|owner| owner.controller == Some(true)).map(|o| o.kind.as_str())
    }

    /// Whether it belongs to a DaemonSet.
    pub fn is_of_daemon_set(&self) -> bool {
        self.owner_kind() == Some("DaemonSet")
    }

    /// Its phase; empty if there is none.
    pub fn phase(&self) -> &str {
        self.status["phase"].as_str().unwrap_or_default()
    }

    /// Whether all containers have terminated and none will be restarted.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase(), "Succeeded" | "Failed")
    }

    /// Whether it is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl Resource for RawPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        <Pod as Resource>::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        <Pod as Resource>::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        <Pod as Resource>::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        <Pod as Resource>::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An annotation of an object.
pub(crate) fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn spec(home: &Value, remote: &ClusterId) -> Value {
    let mut spec = match without_nulls(home.clone()) {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    let selector = portable(spec.get("nodeSelector"));
    for field in HOME_ONLY_FIELDS {
        spec.remove(field);
    }
    if !selector.is_empty() {
        spec.insert("nodeSelector".into(), selector.into());
    }
    spec.insert("automountServiceAccountToken".into(), false.into());
    retain(&mut spec, "tolerations", |toleration| toleration["key"] != VIRTUAL_NODE_TAINT);
    retain(&mut spec, "volumes", |volume| !is_api_access(&volume["name"]));
    relax_affinity(&mut spec);
    for constraint in items(&mut spec, "topologySpreadConstraints") {
        relax_spread(constraint);
    }
    for kind in ["initContainers", "containers"] {
        for container in items(&mut spec, kind).filter_map(Value::as_object_mut) {
            retain(container, "volumeMounts", |mount| !is_api_access(&mount["name"]));
            set_cluster_id(container, remote);
        }
    }
    spec.into()
}

fn portable(selector: Option<&Value>) -> Map<String, Value> {
    let fields = selector.and_then(Value::as_object).into_iter().flatten();
    fields
        .filter(|(label, _)| PORTABLE_NODE_LABELS.contains(&label.as_str()))
        .map(|(label, value)| (label.clone(), value.clone()))
        .collect()
}

/// Node affinity was already applied by the home scheduler, which chose the virtual node.
fn relax_affinity(spec: &mut Map<String, Value>) {
    let Some(affinity) = spec.get_mut("affinity").and_then(Value::as_object_mut) else {
        return;
    };
    affinity.remove("nodeAffinity");
    if affinity.is_empty() {
        spec.remove("affinity");
    }
}

/// The remote cluster has only a part of the pods and may lack the topology labels, so spread
/// constraints are only preferences there.
fn relax_spread(constraint: &mut Value) {
    constraint["whenUnsatisfiable"] = "ScheduleAnyway".into();
    if let Some(fields) = constraint.as_object_mut() {
        fields.remove("minDomains");
    }
}

fn set_cluster_id(container: &mut Map<String, Value>, remote: &ClusterId) {
    retain(container, "env", |variable| variable["name"] != CLUSTER_ID_ENV);
    let variable = json!({ "name": CLUSTER_ID_ENV, "value": remote });
    match container.get_mut("env").and_then(Value::as_array_mut) {
        // First, so that other variables can refer to it.
        Some(variables) => variables.insert(0, variable),
        None => drop(container.insert("env".into(), json!([variable]))),
    }
}

fn is_api_access(volume: &Value) -> bool {
    volume.as_str().is_some_and(|name| name.starts_with(API_ACCESS_VOLUME))
}

fn items<'a>(
    fields: &'a mut Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = &'a mut Value> {
    fields.get_mut(name).and_then(Value::as_array_mut).into_iter().flatten()
}

/// Filters a list, and removes it if it is empty.
fn retain(fields: &mut Map<String, Value>, name: &str, keep: impl Fn(&Value) -> bool) {
    let Some(items) = fields.get_mut(name).and_then(Value::as_array_mut) else {
        return;
    };
    items.retain(keep);
    if items.is_empty() {
        fields.remove(name);
    }
}

/// Labels or annotations, which may be missing, as a map.
pub(crate) fn map(of: Option<&BTreeMap<String, String>>) -> BTreeMap<&str, &str> {
    of.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: &Value) -> RawPod {
        serde_json::from_value(json!({
            "metadata": {
                "name": "web-0", "namespace": "shop", "uid": "6f1c",
                "labels": { "app": "web" },
                "annotations": { "team": "a", LAST_APPLIED: "{}", RESTARTS_ANNOTATION: "{}" },
            },
            "spec": spec,
        }))
        .unwrap()
    }

    fn forged(spec: &Value) -> ShadowPod {
        let (home, remote) = ("rome-id".parse().unwrap(), "milan-id".parse().unwrap());
        forge(&pod(spec), "shop-rome", ClusterPair { home: &home, remote: &remote })
    }

    #[test]
    fn home_only_fields_are_not_reflected() {
        let shadow = forged(&json!({
            "nodeName": "liqo-milan",
            "nodeSelector": { "kubernetes.io/hostname": "liqo-milan", "kubernetes.io/os": "linux" },
            "schedulerName": "default-scheduler",
            "serviceAccount": "web", "serviceAccountName": "web",
            "priority": 0, "preemptionPolicy": "PreemptLowerPriority",
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "affinity": {
                "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {} },
                "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [] },
            },
            "tolerations": [
                { "key": VIRTUAL_NODE_TAINT, "operator": "Exists", "effect": "NoExecute" },
                { "key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
                  "tolerationSeconds": 300 },
            ],
            "topologySpreadConstraints": [
                { "maxSkew": 1, "minDomains": 2, "topologyKey": "topology.kubernetes.io/zone",
                  "whenUnsatisfiable": "DoNotSchedule" },
            ],
            "volumes": [
                { "name": "kube-api-access-x7z2p", "projected": { "sources": [] } },
                { "name": "settings", "configMap": { "name": "web" } },
            ],
            "initContainers": [{ "name": "init", "image": "toolbox" }],
            "containers": [{
                "name": "web", "image": "web:1",
                "env": [{ "name": "LIQO_CLUSTER_ID", "value": "?" }, { "name": "A", "value": "$(LIQO_CLUSTER_ID)" }],
                "envFrom": [{ "secretRef": { "name": "web" } }],
                "volumeMounts": [
                    { "name": "settings", "mountPath": "/etc/web" },
                    { "name": "kube-api-access-x7z2p", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount" },
                ],
            }],
        }));
        insta::assert_yaml_snapshot!(shadow);
    }

    #[test]
    fn fields_of_newer_kubernetes_versions_are_reflected() {
        let shadow = forged(&json!({ "later": 1, "containers": [{ "name": "a", "later": [2] }] }));
        assert_eq!(shadow.spec.pod["later"], 1);
        assert_eq!(shadow.spec.pod["containers"][0]["later"], json!([2]));
    }

    #[test]
    fn lists_that_become_empty_are_left_out() {
        let api_access = json!({ "name": "kube-api-access-abcde" });
        let shadow = forged(&json!({
            "volumes": [api_access],
            "affinity": { "nodeAffinity": {} },
            "tolerations": [{ "key": VIRTUAL_NODE_TAINT }],
            "containers": [{ "name": "a", "volumeMounts": [api_access] }],
        }));
        let expected = json!({
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "a", "env": [{ "name": "LIQO_CLUSTER_ID", "value": "milan-id" }],
            }],
        });
        assert_eq!(shadow.spec.pod, expected);
    }
}
