//! The virtual node of an offer: its Node object and its readiness.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{
        DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec,
        NodeStatus, NodeSystemInfo, Taint,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::Time},
};
use tombolo_api::{
    ClusterId, ClusterIdentity,
    names::{CLUSTER_ID_LABEL, TYPE_LABEL, VIRTUAL_NODE, VIRTUAL_NODE_TAINT, virtual_node},
    virtualkubelet::MappingPhase,
};

use crate::{
    quantity::is_equal,
    view::{Map, Offer, Peer},
};

/// Why a virtual node is not ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotReady {
    /// Reason of the condition.
    pub reason: &'static str,
    /// Message of the condition.
    pub message: String,
}

/// The inputs of a virtual node.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Its name.
    pub name: &'a str,
    /// The cluster behind it.
    pub cluster: &'a ClusterId,
    /// The offer of that cluster.
    pub offer: Offer<'a>,
    /// Address of its kubelet API.
    pub address: IpAddr,
    /// Port of its kubelet API.
    pub port: u16,
    /// Why it is not ready, if it is not.
    pub not_ready: Option<&'a NotReady>,
    /// Whether it takes no more pods.
    pub draining: bool,
    /// Field manager of its writes.
    pub manager: &'a str,
}

const READY: &str = "Ready";
const HOSTNAME: &str = "kubernetes.io/hostname";
const OS: &str = "kubernetes.io/os";
const ARCH: &str = "kubernetes.io/arch";
const ZONE: &str = "topology.kubernetes.io/zone";
const NO_LOAD_BALANCER: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Pod capacity of an offer without a quota for pods.
const PODS: &str = "1000";

/// Kubelet version of the virtual node.
const KUBELET: &str = concat!("v1.34.0-tombolo-", env!("CARGO_PKG_VERSION"));

/// The provider of an offer: the cluster of its tenant namespace. The cluster id in the offer is
/// only a claim, and must be the same. Without a ForeignCluster the claim is enough for an offer
/// that is being drained: its node is only removed, and nothing is sent to the cluster.
pub fn provider(offer: &Offer<'_>, tenant: Option<&Peer<'_>>) -> Option<ClusterIdentity> {
    let claimed = offer.cluster_id;
    match tenant {
        Some(peer) => peer.identity.filter(|cluster| cluster.cluster_id == *claimed).cloned(),
        None if offer.stage.is_draining() => Some(ClusterIdentity {
            cluster_id: claimed.clone(),
            cluster_name: offer.name.parse().ok()?,
        }),
        None => None,
    }
}

/// Whether the remote cluster can run pods: its tunnel and its API server must work.
pub fn health(peer: Option<&Peer<'_>>) -> Result<(), NotReady> {
    let Some(peer) = peer else {
        let message = "there is no ForeignCluster of this node's cluster".to_owned();
        return Err(NotReady { reason: "ForeignClusterMissing", message });
    };
    let checked = [
        (peer.api_server, "APIServerUnreachable", "the remote API server does not answer"),
        (peer.tunnel, "TunnelDown", "the tunnel to the remote cluster is not up"),
    ];
    for (found, reason, what) in checked {
        if found.is_some_and(|condition| condition.status == "True") {
            continue;
        }
        let why = found.map(|condition| condition.message.as_str()).filter(|why| !why.is_empty());
        let message = why.map_or_else(|| what.to_owned(), |why| format!("{what}: {why}"));
        return Err(NotReady { reason, message });
    }
    Ok(())
}

/// The twin namespaces in a remote cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Names of the twins in use, by home namespace.
    pub active: BTreeMap<String, String>,
    /// Names of the twins that are being deleted and may still run pods, by home namespace.
    pub terminating: BTreeMap<String, String>,
    /// Home namespaces that should have a twin.
    pub desired: BTreeSet<String>,
}

/// The twin namespaces of a NamespaceMap of this cluster. The provider writes what it reports: a
/// twin is in use only if this cluster desires it, and by the desired name.
pub fn namespaces(map: Option<&Map<'_>>) -> Namespaces {
    let Some(map) = map else {
        return Namespaces::default();
    };
    let mut namespaces = Namespaces::default();
    for (home, twin) in map.reported {
        let is_desired = map.desired.get(home) == Some(&twin.remote_namespace);
        let place = match twin.phase {
            MappingPhase::Accepted if is_desired => &mut namespaces.active,
            MappingPhase::Accepted | MappingPhase::Terminating => &mut namespaces.terminating,
            MappingPhase::Refused => continue,
        };
        place.insert(home.clone(), twin.remote_namespace.clone());
    }
    namespaces.desired = map.desired.keys().cloned().collect();
    namespaces
}

/// Name of the virtual node of a cluster: the one in its offer's status, or the default.
pub fn name(peer: &ClusterIdentity, offer: Option<&Offer<'_>>) -> String {
    let named = offer.and_then(|offer| offer.virtual_node).map(str::to_owned);
    named.unwrap_or_else(|| virtual_node(&peer.cluster_name, &peer.cluster_id, |_| false))
}

/// Whether a node, virtual or not, is ready.
pub fn is_ready(node: &Node) -> bool {
    ready_condition(node).is_some_and(|condition| condition.status == "True")
}

/// The Ready condition of a node.
pub fn ready_condition(node: &Node) -> Option<&NodeCondition> {
    let mut conditions = node.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == READY)
}

/// Whether a node with this name is not the virtual node of this cluster.
pub fn is_taken(node: &Node, cluster: &ClusterId) -> bool {
    let labels = node.metadata.labels.as_ref();
    let label = |name: &str| labels.and_then(|labels| labels.get(name)).map(String::as_str);
    label(TYPE_LABEL) != Some(VIRTUAL_NODE) || label(CLUSTER_ID_LABEL) != Some(cluster.as_str())
}

/// The desired Node, with the taints set by others. `None` if it needs no change.
pub fn wanted(facts: &Facts<'_>, has: Option<&Node>) -> Option<Node> {
    let ours = Taint {
        key: VIRTUAL_NODE_TAINT.into(),
        value: Some("true".into()),
        effect: "NoExecute".into(),
        time_added: None,
    };
    let mut taints = has.and_then(|node| node.spec.as_ref()?.taints.clone()).unwrap_or_default();
    let tainted = taints.iter().any(|t| t.key == ours.key && t.effect == ours.effect);
    if !tainted {
        taints.push(ours);
    }
    let labels = labels(facts);
    if let Some(has) = has {
        let present = has.metadata.labels.clone().unwrap_or_default();
        let cordon_is_right =
            if facts.draining { is_cordoned(has) } else { !cordoned_by(facts.manager, has) };
        if tainted
            && cordon_is_right
            && labels.iter().all(|(name, value)| present.get(name) == Some(value))
        {
            return None;
        }
    }
    let mut node = Node::default();
    node.metadata.name = Some(facts.name.to_owned());
    node.metadata.labels = Some(labels);
    node.spec = Some(NodeSpec {
        taints: Some(taints),
        provider_id: Some(format!("liqo://{}", facts.cluster)),
        unschedulable: facts.draining.then_some(true),
        ..NodeSpec::default()
    });
    Some(node)
}

/// Whether a node is cordoned.
pub fn is_cordoned(node: &Node) -> bool {
    node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
}

/// Whether this field manager has cordoned the node. A cordon set by others stays.
fn cordoned_by(manager: &str, node: &Node) -> bool {
    let managed = node.metadata.managed_fields.iter().flatten();
    managed.filter(|entry| entry.manager.as_deref() == Some(manager)).any(|entry| {
        entry.fields_v1.as_ref().is_some_and(|f| !f.0["f:spec"]["f:unschedulable"].is_null())
    })
}

/// The desired status of the node. `None` if nothing but heartbeat times would change.
pub fn wanted_status(
    facts: &Facts<'_>,
    has: Option<&NodeStatus>,
    now: Timestamp,
) -> Option<NodeStatus> {
    let capacity = capacity(&facts.offer);
    let status = NodeStatus {
        capacity: Some(capacity.clone()),
        allocatable: Some(capacity),
        addresses: Some(vec![
            address("InternalIP", &facts.address.to_string()),
            address("Hostname", facts.name),
        ]),
        daemon_endpoints: Some(NodeDaemonEndpoints {
            kubelet_endpoint: Some(DaemonEndpoint { port: facts.port.into() }),
        }),
        node_info: Some(NodeSystemInfo {
            architecture: labels(facts).remove(ARCH).unwrap_or_default(),
            operating_system: "linux".into(),
            kubelet_version: KUBELET.into(),
            machine_id: facts.cluster.to_string(),
            system_uuid: facts.cluster.to_string(),
            boot_id: facts.cluster.to_string(),
            os_image: "Tombolo virtual node".into(),
            container_runtime_version: "liqo://1".into(),
            ..NodeSystemInfo::default()
        }),
        conditions: Some(conditions(facts.not_ready, has, now)),
        ..NodeStatus::default()
    };
    (!has.is_some_and(|has| is_same(has, &status))).then_some(status)
}

fn labels(facts: &Facts<'_>) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = BTreeMap::from([(ARCH.into(), "amd64".into())]);
    labels.extend(facts.offer.labels.clone());
    // An offer can't override the identity of the node.
    for (label, value) in [
        (HOSTNAME, facts.name),
        (OS, "linux"),
        (ZONE, facts.name),
        (NO_LOAD_BALANCER, "true"),
        (TYPE_LABEL, VIRTUAL_NODE),
        (CLUSTER_ID_LABEL, facts.cluster.as_str()),
    ] {
        labels.insert(label.into(), value.into());
    }
    labels
}

fn capacity(offer: &Offer<'_>) -> BTreeMap<String, Quantity> {
    let mut capacity = offer.quota.clone();
    capacity.entry("pods".into()).or_insert_with(|| Quantity(PODS.into()));
    capacity
}

fn address(kind: &str, address: &str) -> NodeAddress {
    NodeAddress { type_: kind.into(), address: address.into() }
}

fn conditions(
    not_ready: Option<&NotReady>,
    has: Option<&NodeStatus>,
    now: Timestamp,
) -> Vec<NodeCondition> {
    let ready = match not_ready {
        None => ("True", "RemoteClusterReachable", "the remote cluster is reachable"),
        Some(why) => ("False", why.reason, why.message.as_str()),
    };
    let inherited = |kind| (kind, "False", "ManagedByRemoteCluster", "");
    let all = [
        (READY, ready.0, ready.1, ready.2),
        inherited("MemoryPressure"),
        inherited("DiskPressure"),
        inherited("PIDPressure"),
        inherited("NetworkUnavailable"),
    ];
    let before = has.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    all.into_iter()
        .map(|(kind, status, reason, message)| {
            let same = before.iter().find(|c| c.type_ == kind && c.status == status);
            NodeCondition {
                type_: kind.into(),
                status: status.into(),
                reason: Some(reason.into()),
                message: Some(message.into()).filter(|text: &String| !text.is_empty()),
                last_heartbeat_time: Some(Time(now)),
                last_transition_time: same
                    .and_then(|c| c.last_transition_time.clone())
                    .or(Some(Time(now))),
            }
        })
        .collect()
}

fn is_same(has: &NodeStatus, wanted: &NodeStatus) -> bool {
    let quantities = |of: &Option<BTreeMap<String, Quantity>>| of.clone().unwrap_or_default();
    let (capacity, wants) = (quantities(&has.capacity), quantities(&wanted.capacity));
    let reported = |of: &NodeStatus, kind: &str| {
        let found = of.conditions.iter().flatten().find(|condition| condition.type_ == kind);
        found.map(|c| {
            let text = |of: &Option<String>| of.clone().unwrap_or_default();
            (c.status.clone(), text(&c.reason), text(&c.message))
        })
    };
    wants.iter().all(|(name, value)| capacity.get(name).is_some_and(|has| is_equal(has, value)))
        && capacity.keys().all(|name| wants.contains_key(name))
        && has.allocatable == has.capacity
        && has.addresses == wanted.addresses
        && has.daemon_endpoints == wanted.daemon_endpoints
        && has.node_info == wanted.node_info
        && wanted
            .conditions
            .iter()
            .flatten()
            .all(|c| reported(has, &c.type_) == reported(wanted, &c.type_))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
    use tombolo_api::{
        discovery::{ForeignCluster, TenantNamespace, condition},
        names::KUBELET_FINALIZER,
        sharing::ResourceOffer,
        virtualkubelet::NamespaceMap,
    };

    use super::*;
    use crate::offer_stage::OfferStage;

    fn offer(more: &Value) -> ResourceOffer {
        let mut offer = json!({
            "apiVersion": "sharing.liqo.io/v1alpha1", "kind": "ResourceOffer",
            "metadata": { "name": "milan" },
            "spec": {
                "clusterID": "milan-id",
                "resourceQuota": { "hard": { "cpu": "2", "memory": "4Gi", "pods": "50" } },
                "labels": { "tier": "gold", "kubernetes.io/hostname": "stolen" },
            },
            "status": { "phase": "Accepted" },
        });
        for (part, fields) in more.as_object().unwrap() {
            for (name, value) in fields.as_object().unwrap() {
                offer[part][name] = value.clone();
            }
        }
        serde_json::from_value(offer).unwrap()
    }

    fn cluster(conditions: &[(&str, &str)]) -> ForeignCluster {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(kind, status)| {
                json!({ "type": kind, "status": status, "reason": "R", "message": "no answer for 2 s",
                        "lastTransitionTime": "2026-01-01T00:00:00Z" })
            })
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "discovery.liqo.io/v1alpha1", "kind": "ForeignCluster",
            "metadata": { "name": "milan" },
            "spec": { "authUrl": "https://milan" }, "status": { "conditions": conditions },
        }))
        .unwrap()
    }

    fn now() -> Timestamp {
        "2026-01-02T03:04:05Z".parse().unwrap()
    }

    #[test]
    fn an_accepted_offer_is_served_until_it_ends() {
        let finalizers = json!([KUBELET_FINALIZER]);
        let later = "2026-01-01T00:00:00Z";
        let stage = |more: &Value| Offer::from_resource(&offer(more)).stage;
        assert_eq!(stage(&json!({})), OfferStage::Serving);
        for going in [
            json!({ "metadata": { "deletionTimestamp": later, "finalizers": finalizers } }),
            json!({ "spec": { "withdrawalTimestamp": later }, "metadata": { "finalizers": finalizers } }),
            json!({ "status": { "phase": "Refused" }, "metadata": { "finalizers": finalizers } }),
        ] {
            assert!(stage(&going).is_draining(), "{going}");
        }
        for absent in ["Refused", "Pending"] {
            assert!(!stage(&json!({ "status": { "phase": absent } })).needs_node());
        }
        assert!(!stage(&json!({ "spec": { "withdrawalTimestamp": later } })).needs_node());
    }

    #[test]
    fn the_provider_is_identified_by_the_tenant_namespace() {
        let mut tenant = cluster(&[]);
        tenant.status.as_mut().unwrap().tenant_namespace = Some(TenantNamespace {
            local: Some("liqo-tenant-milan".into()),
            ..TenantNamespace::default()
        });
        assert_eq!(Peer::from_resource(&tenant).tenant, Some("liqo-tenant-milan"));
        let milan = ClusterIdentity {
            cluster_id: "milan-id".parse().unwrap(),
            cluster_name: "milan".parse().unwrap(),
        };
        tenant.spec.cluster_identity = Some(milan.clone());
        let tenant = Peer::from_resource(&tenant);
        let provider =
            |offer: &ResourceOffer, tenant| provider(&Offer::from_resource(offer), tenant);
        assert_eq!(provider(&offer(&json!({})), Some(&tenant)), Some(milan.clone()));
        let lie = offer(&json!({ "spec": { "clusterID": "turin-id" } }));
        assert_eq!(provider(&lie, Some(&tenant)), None);
        assert_eq!(provider(&offer(&json!({})), None), None);
        let going = offer(&json!({ "metadata": {
            "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": [KUBELET_FINALIZER],
        } }));
        assert_eq!(provider(&going, None), Some(milan));
    }

    #[test]
    fn terminating_twins_are_still_listed() {
        let map = |metadata: Value| -> NamespaceMap {
            serde_json::from_value(json!({
                "apiVersion": "virtualkubelet.liqo.io/v1alpha1", "kind": "NamespaceMap",
                "metadata": metadata,
                "spec": { "desiredMapping": { "shop": "shop-rome" } },
                "status": { "currentMapping": {
                    "shop": { "remoteNamespace": "shop-rome", "phase": "Accepted" },
                    "old": { "remoteNamespace": "old-rome", "phase": "Terminating" },
                    "taken": { "remoteNamespace": "taken", "phase": "Refused" },
                } },
            }))
            .unwrap()
        };
        let pair = |home: &str, there: &str| (home.to_owned(), there.to_owned());
        let namespaces = |map: &NamespaceMap| namespaces(Some(&Map::from_resource(map)));
        let now = namespaces(&map(json!({ "name": "rome" })));
        assert_eq!(now.active, [pair("shop", "shop-rome")].into());
        assert_eq!(now.terminating, [pair("old", "old-rome")].into());
        assert_eq!(now.desired, ["shop".to_owned()].into());
        let later = "2026-01-01T00:00:00Z";
        let now = namespaces(&map(json!({ "name": "rome", "deletionTimestamp": later })));
        assert_eq!(now.terminating, [pair("old", "old-rome"), pair("shop", "shop-rome")].into());
        assert!(now.active.is_empty() && now.desired.is_empty());
    }

    #[test]
    fn a_provider_can_add_no_namespace_and_choose_no_name() {
        let map: NamespaceMap = serde_json::from_value(json!({
            "metadata": { "name": "rome" },
            "spec": { "desiredMapping": { "shop": "shop-rome", "web": "web-rome" } },
            "status": { "currentMapping": {
                "shop": { "remoteNamespace": "elsewhere", "phase": "Accepted" },
                "web": { "remoteNamespace": "web-rome", "phase": "Accepted" },
                "payroll": { "remoteNamespace": "payroll-rome", "phase": "Accepted" },
            } },
        }))
        .unwrap();
        let now = namespaces(Some(&Map::from_resource(&map)));
        assert_eq!(now.active, [("web".to_owned(), "web-rome".to_owned())].into());
    }

    #[test]
    fn a_node_is_ready_while_tunnel_and_api_server_work() {
        let (api, tunnel) = (condition::API_SERVER, condition::TUNNEL_ENDPOINT);
        let reason = |conditions: &[(&str, &str)]| {
            health(Some(&Peer::from_resource(&cluster(conditions))))
                .err()
                .map(|not_ready| not_ready.reason)
        };
        assert_eq!(reason(&[(api, "True"), (tunnel, "True")]), None);
        assert_eq!(reason(&[(api, "True"), (tunnel, "False")]), Some("TunnelDown"));
        assert_eq!(reason(&[(api, "False"), (tunnel, "True")]), Some("APIServerUnreachable"));
        assert_eq!(reason(&[(api, "True")]), Some("TunnelDown"));
        assert_eq!(health(None).unwrap_err().reason, "ForeignClusterMissing");
        let message =
            health(Some(&Peer::from_resource(&cluster(&[(api, "Unknown")])))).unwrap_err().message;
        assert_eq!(message, "the remote API server does not answer: no answer for 2 s");
    }

    #[test]
    fn a_node_follows_from_its_offer() {
        let (offer, id) = (offer(&json!({})), "milan-id".parse().unwrap());
        let facts = Facts {
            name: "liqo-milan",
            cluster: &id,
            offer: Offer::from_resource(&offer),
            address: "10.244.1.7".parse().unwrap(),
            port: 10250,
            not_ready: None,
            draining: false,
            manager: "liqo-kubelet",
        };
        let mut node = wanted(&facts, None).unwrap();
        node.status = wanted_status(&facts, None, now());
        insta::assert_yaml_snapshot!(node);

        assert_eq!(wanted(&facts, Some(&node)), None);
        let later = "2026-02-02T03:04:05Z".parse().unwrap();
        assert_eq!(wanted_status(&facts, node.status.as_ref(), later), None);
        assert!(!is_taken(&node, &id));
        assert!(is_taken(&node, &"other".parse().unwrap()));

        let going = Facts { draining: true, ..facts.clone() };
        let cordoned = wanted(&going, Some(&node)).unwrap();
        assert_eq!(cordoned.spec.as_ref().unwrap().unschedulable, Some(true));
        assert_eq!(wanted(&going, Some(&cordoned)), None);
        // The cordon is removed when draining ends, unless somebody else has set it.
        assert_eq!(wanted(&facts, Some(&cordoned)), None);
        let mut ours = cordoned;
        let manager = "liqo-kubelet".to_owned();
        ours.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
            manager: Some(manager),
            fields_v1: Some(FieldsV1(json!({ "f:spec": { "f:unschedulable": {} } }))),
            ..ManagedFieldsEntry::default()
        }]);
        let uncordoned = wanted(&facts, Some(&ours)).unwrap();
        assert_eq!(uncordoned.spec.unwrap().unschedulable, None);

        let down = NotReady { reason: "TunnelDown", message: "x".into() };
        let facts = Facts { not_ready: Some(&down), ..facts };
        let status = wanted_status(&facts, node.status.as_ref(), later).unwrap();
        let ready = &status.conditions.unwrap()[0];
        assert_eq!((ready.status.as_str(), &ready.reason), ("False", &Some("TunnelDown".into())));
        assert_eq!(ready.last_transition_time, Some(Time(later)));
    }

    #[test]
    fn taints_of_others_stay() {
        let (offer, id) = (offer(&json!({})), "milan-id".parse().unwrap());
        let facts = Facts {
            name: "liqo-milan",
            cluster: &id,
            offer: Offer::from_resource(&offer),
            address: "10.244.1.7".parse().unwrap(),
            port: 1,
            not_ready: None,
            draining: false,
            manager: "liqo-kubelet",
        };
        let taint =
            |key: &str| Taint { key: key.into(), effect: "NoSchedule".into(), ..Taint::default() };
        let spec = NodeSpec { taints: Some(vec![taint("a")]), ..NodeSpec::default() };
        let has = Node { spec: Some(spec), ..Node::default() };
        let taints = wanted(&facts, Some(&has)).unwrap().spec.unwrap().taints.unwrap();
        let keys: Vec<&str> = taints.iter().map(|taint| taint.key.as_str()).collect();
        assert_eq!(keys, ["a", VIRTUAL_NODE_TAINT]);
    }
}
