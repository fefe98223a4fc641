//! `offloading.liqo.io`: which namespaces reach into other clusters.

mod cluster_selector;
mod namespace_offloading;

pub use namespace_offloading::{
    NamespaceMappingStrategy, NamespaceOffloading, NamespaceOffloadingSpec,
    NamespaceOffloadingStatus, OffloadedCluster, OffloadingPhase, PodOffloadingStrategy,
};
