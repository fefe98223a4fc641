//! `net.liqo.io`: how two clusters' networks are joined, and what the address service remembers.

mod backend;
mod ipam_storage;
mod nat_mapping;
mod network_config;
mod tunnel_endpoint;

pub use backend::{BACKEND_PORT, BACKEND_PUBLIC_KEY, BackendType};
pub use ipam_storage::{
    ClusterMapping, ConfiguredCluster, EndpointMapping, IpamStorage, IpamStorageSpec,
    QuarantinedAddress, QuarantinedCidr, Subnets, Writer,
};
pub use nat_mapping::{NatMapping, NatMappingSpec};
pub use network_config::{NetworkConfig, NetworkConfigSpec, NetworkConfigStatus};
pub use tunnel_endpoint::{
    Connection, ConnectionStatus, TunnelEndpoint, TunnelEndpointSpec, TunnelEndpointStatus,
};
