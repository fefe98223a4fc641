//! The tenant namespace of a peer: its name, and when it can be deleted.

use kube::core::ObjectMeta;
use tombolo_api::{ClusterIdentity, names};

use crate::{
    digest::{hex, sha256},
    view::Peer,
};

/// Possible names of the tenant namespace for a cluster: the first that is free is used. Clusters
/// choose their names and ids themselves, so the first two can be taken on purpose. The last can't:
/// it is longer than a cluster name, and has no dash that could precede part of an id.
pub fn tenant_namespaces(cluster: &ClusterIdentity) -> [String; 3] {
    let (name, id) = (names::tenant_namespace(&cluster.cluster_name), &cluster.cluster_id);
    let mut digest = hex(&sha256(&[id.as_str().as_bytes()]));
    digest.truncate(DIGEST_LEN);
    [name.clone(), format!("{name}-{}", id.short()), format!("{PREFIX}{digest}")]
}

const PREFIX: &str = "liqo-tenant-";

/// The part of a digest that fits into a DNS label.
const DIGEST_LEN: usize = 63 - PREFIX.len();

/// Objects that need the tenant namespace of a peer.
#[derive(Clone, Debug, Default)]
pub struct TenantUsers<'a> {
    /// ForeignClusters of the peer.
    pub entries: Vec<Peer<'a>>,
    /// Record of the identity that this cluster has issued to it.
    pub record: Option<&'a ObjectMeta>,
    /// Whether the identity that it has issued is stored.
    pub identity: bool,
    /// Whether that identity is retained although there is no entry.
    pub retained: bool,
    /// Whether objects of a peering exist.
    pub peering: bool,
}

impl TenantUsers<'_> {
    /// Whether the namespace has to stay. Entry and record may be deleted at the same time, and the
    /// last one has to notice that it is the last. So objects that are being deleted do not count,
    /// except for an entry that has not released the identity yet or waits for the end of the
    /// peering.
    pub fn need_namespace(&self) -> bool {
        let at_work = self.identity || self.peering;
        self.record.is_some_and(|record| record.deletion_timestamp.is_none())
            || self.entries.iter().any(|entry| !entry.is_deleted || at_work)
            || (self.identity && self.retained)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::{ClusterName, discovery::ForeignCluster};

    use super::*;

    #[test]
    fn a_second_cluster_with_the_same_name_gets_another_namespace() {
        let [first, second, _] = tenant_namespaces(&cluster("9f0f1f3e-9f2c", "rome"));
        assert_eq!(first, "liqo-tenant-rome");
        assert_eq!(second, "liqo-tenant-rome-9f0f1");
    }

    #[test]
    fn the_last_name_can_not_be_taken_by_another_cluster() {
        let [.., last] = tenant_namespaces(&cluster("9f0f1f3e-9f2c", "rome"));
        assert_eq!(last.len(), 63);
        let [.., other] = tenant_namespaces(&cluster("9f0f1-of-somebody-else", "rome"));
        assert_ne!(last, other);
        let digest = last.strip_prefix("liqo-tenant-").unwrap();
        let longest = &digest[..ClusterName::MAX_LEN];
        for name in ["rome", longest] {
            let id = format!("{}-{}", &digest[digest.len() - 5..], "x".repeat(20));
            assert!(!tenant_namespaces(&cluster(&id, name)).contains(&last));
        }
        assert!(digest.parse::<ClusterName>().is_err(), "a cluster could have this name");
        assert!(!digest.contains('-'));
    }

    fn cluster(id: &str, name: &str) -> ClusterIdentity {
        ClusterIdentity { cluster_id: id.parse().unwrap(), cluster_name: name.parse().unwrap() }
    }

    #[test]
    fn the_namespace_is_deleted_with_its_last_user_even_if_both_end_at_once() {
        let time = json!({ "name": "it", "deletionTimestamp": "2026-05-01T12:00:00Z" });
        let entry = |metadata| {
            let spec = json!({ "authUrl": "https://rome" });
            serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        let (stays, ends): (ForeignCluster, ForeignCluster) =
            (entry(json!({ "name": "it" })), entry(time));
        let (staying, ending) = (Peer::from_resource(&stays), Peer::from_resource(&ends));
        let none = TenantUsers::default();
        assert!(!none.need_namespace());
        assert!(TenantUsers { record: Some(&stays.metadata), ..none.clone() }.need_namespace());
        assert!(TenantUsers { entries: vec![staying], ..none.clone() }.need_namespace());
        let both =
            TenantUsers { entries: vec![ending], record: Some(&ends.metadata), ..none.clone() };
        assert!(!both.need_namespace());
        assert!(TenantUsers { identity: true, ..both.clone() }.need_namespace());
        assert!(TenantUsers { peering: true, ..both }.need_namespace());
    }

    #[test]
    fn the_namespace_stays_with_a_retained_identity() {
        let none = TenantUsers::default();
        assert!(TenantUsers { identity: true, retained: true, ..none.clone() }.need_namespace());
        assert!(!TenantUsers { identity: true, ..none.clone() }.need_namespace(), "not retained");
        assert!(!TenantUsers { retained: true, ..none }.need_namespace(), "no identity");
    }
}
