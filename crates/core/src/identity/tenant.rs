//! The tenant namespace of a peer: what it is called, and when it can go.

use kube::core::ObjectMeta;
use tombolo_api::{ClusterIdentity, discovery::ForeignCluster, names};

/// Name of the tenant namespace for a cluster. `taken` says which namespaces there are that
/// belong to somebody else.
pub fn tenant_namespace(cluster: &ClusterIdentity, taken: impl Fn(&str) -> bool) -> String {
    let name = names::tenant_namespace(&cluster.cluster_name);
    if taken(&name) { format!("{name}-{}", cluster.cluster_id.short()) } else { name }
}

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

    use super::*;

    #[test]
    fn a_second_cluster_of_the_same_name_gets_another_namespace() {
        let rome = ClusterIdentity {
            cluster_id: "9f0f1f3e-9f2c".parse().unwrap(),
            cluster_name: "rome".parse().unwrap(),
        };
        assert_eq!(tenant_namespace(&rome, |_| false), "liqo-tenant-rome");
        assert_eq!(tenant_namespace(&rome, |_| true), "liqo-tenant-rome-9f0f1");
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
