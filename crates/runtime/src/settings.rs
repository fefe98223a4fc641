//! Settings of a component from its environment: its cluster and its pod.

use std::net::IpAddr;

use tombolo_api::{Cidr, ClusterId, ClusterIdentity, ClusterName};

/// Settings of every component.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Id of this cluster
    #[arg(long, env = "CLUSTER_ID")]
    pub cluster_id: ClusterId,

    /// Name of this cluster
    #[arg(long, env = "CLUSTER_NAME")]
    pub cluster_name: ClusterName,

    /// URL at which other clusters reach this cluster's API server
    #[arg(long, env = "API_SERVER_URL")]
    pub api_server_url: String,

    /// PodCIDR of this cluster
    #[arg(long, env = "POD_CIDR")]
    pub pod_cidr: Cidr,

    /// ServiceCIDR of this cluster
    #[arg(long, env = "SERVICE_CIDR")]
    pub service_cidr: Cidr,

    /// Whether the address service and its clients use mutual TLS
    #[arg(long, env = "IPAM_MTLS", action = clap::ArgAction::Set, default_value_t = false)]
    pub ipam_mtls: bool,

    /// Name of this pod
    #[arg(long, env = "POD_NAME", default_value = "tombolo")]
    pub pod_name: String,

    /// Address of this pod
    #[arg(long, env = "POD_IP", default_value = "127.0.0.1")]
    pub pod_ip: IpAddr,

    /// Name of this pod's node
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,

    /// Address of this pod's node
    #[arg(long, env = "HOST_IP", default_value = "127.0.0.1")]
    pub host_ip: IpAddr,
}

impl Settings {
    /// Id and name of this cluster.
    pub fn cluster(&self) -> ClusterIdentity {
        ClusterIdentity {
            cluster_id: self.cluster_id.clone(),
            cluster_name: self.cluster_name.clone(),
        }
    }
}
