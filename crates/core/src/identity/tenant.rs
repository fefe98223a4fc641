//! The tenant namespace of a peer: what it is called, and when it can go.

use kube::core::ObjectMeta;
use tombolo_api::{ClusterIdentity, discovery::ForeignCluster, names};

use crate::digest::{hex, sha256};

/// What the tenant namespace for a cluster can be called: the first of these that belongs to nobody
/// else. Clusters choose their names and ids themselves, so the first two can be taken on purpose; the
/// last can't: it is longer than the name of a cluster, and has no dash that the start of an id could
/// come after.
pub fn tenant_namespaces(cluster: &ClusterIdentity) -> [String; 3] {
    let (name, id) = (names::tenant_namespace(&cluster.cluster_name), &cluster.cluster_id);
    let mut digest = hex(&sha256(&[id.as_str().as_bytes()]));
    digest.truncate(DIGEST_LEN);
    [name.clone(), format!("{name}-{}", id.short()), format!("{PREFIX}{digest}")]
}

const PREFIX: &str = "liqo-tenant-";

/// As much of a digest as fits into a DNS label.
const DIGEST_LEN: usize = 63 - PREFIX.len();

/// What may need the tenant namespace of a peer.
#[derive(Clone, Debug, Default)]
pub struct Users<'a> {
    /// The entries for the peer.
    pub entries: Vec<&'a ForeignCluster>,
    /// The record of the identity that it was given here.
    pub record: Option<&'a ObjectMeta>,
    /// Whether the identity that it gave us is there.
    pub identity: bool,
    /// Whether that is to stay for a while though there is no entry.
    pub kept: bool,
    /// Whether anything of a peering is there.
    pub peering: bool,
}

impl Users<'_> {
    /// Whether it has to stay. Entry and record may end at the same time, and whoever looks last
    /// has to see that it is the last: so what is being deleted does not count, but for an entry
    /// that has not yet given back the identity or waits for the end of the peering.
    pub fn need_it(&self) -> bool {
        let stays = |meta: &ObjectMeta| meta.deletion_timestamp.is_none();
        let at_work = self.identity || self.peering;
        self.record.is_some_and(stays)
            || self.entries.iter().any(|entry| stays(&entry.metadata) || at_work)
            || (self.identity && self.kept)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tombolo_api::ClusterName;

    use super::*;

    #[test]
    fn a_second_cluster_of_the_same_name_gets_another_namespace() {
        let [first, second, _] = tenant_namespaces(&cluster("9f0f1f3e-9f2c", "rome"));
        assert_eq!(first, "liqo-tenant-rome");
        assert_eq!(second, "liqo-tenant-rome-9f0f1");
    }

    #[test]
    fn nobody_can_take_the_last_name_of_another_cluster() {
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
        assert!(digest.parse::<ClusterName>().is_err(), "a cluster could be called so");
        assert!(!digest.contains('-'));
    }

    fn cluster(id: &str, name: &str) -> ClusterIdentity {
        ClusterIdentity { cluster_id: id.parse().unwrap(), cluster_name: name.parse().unwrap() }
    }

    #[test]
    fn the_namespace_goes_with_the_last_who_needs_it_also_when_both_end_at_once() {
        let time = json!({ "name": "it", "deletionTimestamp": "2026-05-01T12:00:00Z" });
        let entry = |metadata| {
            let spec = json!({ "authUrl": "https://rome" });
            serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
        };
        let (stays, ends): (ForeignCluster, ForeignCluster) =
            (entry(json!({ "name": "it" })), entry(time));
        let none = Users::default();
        assert!(!none.need_it());
        assert!(Users { record: Some(&stays.metadata), ..none.clone() }.need_it());
        assert!(Users { entries: vec![&stays], ..none.clone() }.need_it());
        let both = Users { entries: vec![&ends], record: Some(&ends.metadata), ..none.clone() };
        assert!(!both.need_it());
        assert!(Users { identity: true, ..both.clone() }.need_it());
        assert!(Users { peering: true, ..both }.need_it());
    }

    #[test]
    fn the_namespace_stays_with_an_identity_that_is_kept_for_later() {
        let none = Users::default();
        assert!(Users { identity: true, kept: true, ..none.clone() }.need_it());
        assert!(!Users { identity: true, ..none.clone() }.need_it(), "nobody wants it");
        assert!(!Users { kept: true, ..none }.need_it(), "there is none");
    }
}
