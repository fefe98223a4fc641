//! `offloading.liqo.io`: offloaded namespaces.

mod cluster_selector;
mod namespace_offloading;

pub use namespace_offloading::{
    NamespaceMappingStrategy, NamespaceOffloading, NamespaceOffloadingSpec,
    NamespaceOffloadingStatus, OffloadedCluster, OffloadingPhase, PodOffloadingStrategy,
};
