//! A snapshot of all objects of a cluster and the state of its nodes, for comparison.

use std::collections::BTreeMap;

use futures::future::join_all;
use serde_json::Value;
use tombolo_testbed::{Cluster, Node, Testbed};

use super::load::pods_on_all_nodes;
use super::{SOON, list, within};

/// Snapshots of all clusters before the test.
#[derive(Debug)]
pub struct Before(Vec<(Cluster, Look)>);

impl Before {
    pub async fn of(bed: &Testbed) -> Self {
        let look = async |cluster: &Cluster| {
            pods_on_all_nodes(cluster).await;
            let leases = async || list(cluster, &["leases", "-n", "kube-node-lease"]).await.len();
            let all_nodes = cluster.nodes().len();
            within(SOON, "each node has its Lease", leases, |count| *count == all_nodes).await;
            (cluster.clone(), Look::at(cluster).await)
        };
        Self(join_all(bed.clusters().iter().map(look)).await)
    }

    /// Waits until all clusters are in their previous state.
    pub async fn is_back(&self) {
        for (cluster, before) in &self.0 {
            let differences = async || before.differences(&Look::at(cluster).await);
            let what = format!("{} is as it was before", cluster.name());
            within(SOON, &what, differences, Vec::is_empty).await;
        }
    }
}

/// A snapshot: state by name.
#[derive(Debug, Clone, Default)]
pub struct Look(BTreeMap<String, String>);

/// Kinds that change independently of Tombolo.
const VOLATILE: [&str; 5] = [
    "events",
    "events.events.k8s.io",
    "componentstatuses",
    // Written by the API server about itself.
    "apiservices.apiregistration.k8s.io",
    "flowschemas.flowcontrol.apiserver.k8s.io",
];

impl Look {
    /// All objects of a cluster.
    pub async fn at_objects(cluster: &Cluster) -> Self {
        let kinds = ["api-resources", "--verbs=list", "--output=name"];
        let kinds = cluster.kubectl(&kinds).await.expect("kubectl lists the kinds");
        let kinds: Vec<&str> = kinds.lines().filter(|kind| !VOLATILE.contains(kind)).collect();
        let all = list(cluster, &["--all-namespaces", &kinds.join(",")]).await;
        Self(all.iter().map(|object| (title(object), tidy(object.clone()).to_string())).collect())
    }

    /// Interfaces, routes, rules, nft tables, namespaces and sysctls of a node.
    pub async fn at_node(node: &Node) -> Self {
        let commands: [&[&str]; 7] = [
            &["ip", "-o", "link", "show"],
            &["ip", "route", "show", "table", "all"],
            &["ip", "rule", "show"],
            &["ip", "-6", "route", "show", "table", "all"],
            &["ip", "-6", "rule", "show"],
            &["nft", "list", "tables"],
            &["ls", "/run/netns"],
        ];
        let mut facts = BTreeMap::new();
        for command in commands {
            let said = node.run(command).await.expect("the node answers");
            for line in said.lines() {
                let line = stable(command[1], line);
                if !line.is_empty() {
                    facts.insert(
                        format!("{}: {}: {line}", node.name(), command.join(" ")),
                        String::new(),
                    );
                }
            }
        }
        let sysctls = "cd /proc/sys/net && grep -rs . ipv4 ipv6 core netfilter 2>/dev/null || true";
        let said = node.run(&["sh", "-c", sysctls]).await.expect("the node answers");
        for (name, value) in said.lines().filter_map(|line| line.split_once(':')) {
            if !of_a_pod(name) && !name.contains("conntrack_count") {
                facts.insert(format!("{}: sysctl {name}", node.name()), value.to_owned());
            }
        }
        Self(facts)
    }

    /// Objects of a cluster and the state of its nodes.
    pub async fn at(cluster: &Cluster) -> Self {
        let mut all = Self::at_objects(cluster).await;
        for node in cluster.nodes() {
            all.0.extend(Self::at_node(node).await.0);
        }
        all
    }

    /// The differences in `later`, one line each.
    pub fn differences(&self, later: &Self) -> Vec<String> {
        let new = later.0.keys().filter(|key| !self.0.contains_key(*key));
        let gone = self.0.keys().filter(|key| !later.0.contains_key(*key));
        let changed = self.0.iter().filter_map(|(key, before)| {
            let after = later.0.get(key)?;
            (after != before).then(|| format!("changed: {key}: {before} → {after}"))
        });
        let new = new.map(|key| format!("new: {key}"));
        let gone = gone.map(|key| format!("gone: {key}"));
        new.chain(gone).chain(changed).collect()
    }
}

fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!(
        "{} {}/{}",
        text(&object["kind"]),
        text(&object["metadata"]["namespace"]),
        text(&object["metadata"]["name"])
    )
}

/// Removes fields that change by themselves: versions, times, managed fields.
fn tidy(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for key in ["resourceVersion", "managedFields", "creationTimestamp", "generation", "uid"] {
            metadata.remove(key);
        }
    }
    if object["kind"] == "Lease"
        && let Some(spec) = object["spec"].as_object_mut()
    {
        // A leader may restart and get another holder identity.
        spec.remove("holderIdentity");
        spec.remove("leaseTransitions");
    }
    if object["kind"] == "Node" {
        // Pulled images, and measurements of the kubelet.
        if let Some(status) = object["status"].as_object_mut() {
            status.remove("images");
        }
    }
    without_times(&mut object);
    object
}

fn without_times(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| {
                !key.ends_with("Time") && key != "observedGeneration" && key != "resourceVersion"
            });
            map.values_mut().for_each(without_times);
        }
        Value::Array(items) => items.iter_mut().for_each(without_times),
        _ => {}
    }
}

/// A line without counters and without interfaces of single pods.
fn stable(what: &str, line: &str) -> String {
    if of_a_pod(line) {
        return String::new();
    }
    let line = match what {
        // The leading index increases.
        "-o" => line.split_once(": ").map_or(line, |(_, rest)| rest),
        _ => line.trim(),
    };
    if line.contains("cni0") { without_carrier(line) } else { line.to_owned() }
}

/// The pod bridge has a carrier only while the node has pods.
fn without_carrier(line: &str) -> String {
    let words = line.split_whitespace();
    let words = words.filter(|word| {
        !word.starts_with('<') && !matches!(*word, "UP" | "DOWN" | "UNKNOWN" | "linkdown")
    });
    words.collect::<Vec<_>>().join(" ")
}

/// Interfaces of pods are temporary, and so are their sysctls, IPv6 link-local addresses and
/// routes.
fn of_a_pod(text: &str) -> bool {
    text.contains("veth") || text.contains("cni-")
}
