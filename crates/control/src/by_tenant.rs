//! Maps changes in tenant namespaces to ForeignClusters.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use tombolo_api::{ClusterId, discovery::ForeignCluster};
use tombolo_core::{tenant::peer_of, view::Peer};
use tombolo_runtime::{
    observe::{Object, Watches},
    queue::Queue,
};

/// Enqueues ForeignClusters by name.
pub(crate) struct ByTenant<'a> {
    watches: &'a Watches,
    queue: &'a Queue<String>,
    known: Known,
}

/// Indexes of ForeignClusters and namespaces.
#[derive(Clone)]
struct Known {
    clusters: Store<ForeignCluster>,
    namespaces: Store<Namespace>,
}

impl<'a> ByTenant<'a> {
    /// Enqueues ForeignClusters that change, or whose tenant namespace changes.
    pub fn enqueue(watches: &'a Watches, queue: &'a Queue<String>) -> Self {
        let (clusters, namespaces) = (watches.of::<ForeignCluster>(), watches.of::<Namespace>());
        let known =
            Known { clusters: clusters.index().clone(), namespaces: namespaces.index().clone() };
        clusters.enqueue(queue, |cluster| [cluster.name_any()]);
        let index = known.clone();
        namespaces.enqueue(queue, move |namespace| index.of(namespace));
        Self { watches, queue, known }
    }

    /// Also enqueues those in whose tenant namespace an object of this kind changes.
    pub fn and<K: Object>(self) -> Self {
        let known = self.known.clone();
        self.watches.of::<K>().enqueue(self.queue, move |object| {
            let namespace = object.namespace().map(|name| ObjectRef::new(&name));
            let namespace = namespace.and_then(|name| known.namespaces.get(&name));
            namespace.map(|namespace| known.of(&namespace)).unwrap_or_default()
        });
        self
    }
}

impl Known {
    fn of(&self, namespace: &Namespace) -> Vec<String> {
        peer_of(namespace).map(|id| with_id(&self.clusters, &id)).unwrap_or_default()
    }
}

/// Names of the ForeignClusters with this cluster id.
pub(crate) fn with_id(clusters: &Store<ForeignCluster>, id: &ClusterId) -> Vec<String> {
    let found = clusters.state_filter(|cluster| Peer::from_resource(cluster).id() == Some(id));
    found.iter().map(|cluster| cluster.name_any()).collect()
}
