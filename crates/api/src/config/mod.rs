//! `config.liqo.io`: the settings of this cluster.

mod cluster_config;

pub use cluster_config::{
    AuthConfig, ClusterConfig, ClusterConfigSpec, DiscoveryConfig, NetworkSettings, SharingConfig,
};
