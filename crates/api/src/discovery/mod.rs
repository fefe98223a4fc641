//! `discovery.liqo.io`: other clusters, and requests to peer with them.

mod foreign_cluster;
mod resource_request;
mod search_domain;

pub use foreign_cluster::{
    AuthStatus, DiscoveryType, ForeignCluster, ForeignClusterSpec, ForeignClusterStatus, Network,
    Peering, Related, TenantNamespace, UnknownDiscoveryType, condition,
};
pub use resource_request::{
    RequestState, ResourceRequest, ResourceRequestSpec, ResourceRequestStatus,
};
pub use search_domain::{
    FoundCluster, SEARCHED, SearchDomain, SearchDomainSpec, SearchDomainStatus,
};
