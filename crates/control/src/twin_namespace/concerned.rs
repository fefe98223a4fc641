//! The tenant namespaces to reconcile after a change of another namespace, or of an object in it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use tombolo_api::{ClusterId, ClusterName, virtualkubelet::NamespaceMap};
use tombolo_core::{offloading::home_cluster, owner::belongs_to, tenant::peer_of};
use tombolo_runtime::observe::{Change, IndexBy, Watched};

#[derive(Clone)]
pub(super) struct Concerned {
    namespaces: Store<Namespace>,
    /// Tenant namespaces by cluster.
    tenants: IndexBy<ClusterId, Namespace>,
    /// NamespaceMaps from other clusters by the names of the twins that they request.
    maps: IndexBy<String, NamespaceMap>,
}

impl Concerned {
    pub fn new(
        namespaces: &Watched<Namespace>,
        maps: &Watched<NamespaceMap>,
        us: &ClusterName,
    ) -> Self {
        let us = us.clone();
        Self {
            namespaces: namespaces.index().clone(),
            tenants: namespaces.index_by(peer_of),
            maps: maps.index_by(move |map| {
                let names = map.spec.desired_mapping.values().filter(|_| is_received(map, &us));
                names.cloned().collect::<BTreeSet<_>>()
            }),
        }
    }

    /// A tenant namespace concerns itself, a twin the tenant namespace of its home cluster. A
    /// created or deleted namespace also concerns the clusters whose maps request its name.
    pub fn by_change(&self, change: &Change<'_, Namespace>) -> BTreeSet<String> {
        let mut tenants = BTreeSet::new();
        for namespace in change.both() {
            let name = namespace.name_any();
            tenants.extend(self.of_home(namespace));
            tenants.extend(self.maps.get(&name).iter().filter_map(|map| map.namespace()));
            tenants.extend(peer_of(namespace).map(|_| name));
        }
        tenants
    }

    /// The tenant namespaces of the home cluster of a twin.
    pub fn by_twin(&self, name: &str) -> Vec<String> {
        let twin = self.namespaces.get(&ObjectRef::new(name));
        twin.map(|twin| self.of_home(&twin)).unwrap_or_default()
    }

    fn of_home(&self, twin: &Namespace) -> Vec<String> {
        let tenants = home_cluster(twin).map(|home| self.tenants.get(&home)).unwrap_or_default();
        tenants.iter().map(|tenant| tenant.name_any()).collect()
    }
}

/// Whether the map is from another cluster.
pub(super) fn is_received(map: &NamespaceMap, us: &ClusterName) -> bool {
    !belongs_to(&map.name_any(), us)
}
