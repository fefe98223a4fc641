//! The specification of clusters.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::image::Image;

pub const MAX_CLUSTERS: usize = 30;
pub const MAX_NODES: u8 = 30;

/// One cluster. By default all clusters have the same CIDRs, on purpose.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ClusterSpec {
    pub(crate) name: String,
    pub(crate) nodes: u8,
    pub(crate) control_plane_only: bool,
    pub(crate) pod_cidr: Ipv4Net,
    pub(crate) service_cidr: Ipv4Net,
    pub(crate) api_server_flags: Vec<String>,
    pub(crate) durable: bool,
    pub(crate) timings: Timings,
    #[serde(skip)]
    pub(crate) images: Vec<Image>,
}

/// How fast a cluster detects a lost node. The defaults are those of Kubernetes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timings {
    pub node_status_update: Duration,
    pub node_monitor_period: Duration,
    pub node_monitor_grace: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            node_status_update: Duration::from_secs(10),
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace: Duration::from_secs(50),
        }
    }
}

impl ClusterSpec {
    /// A cluster with one node, both control plane and worker.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            nodes: 1,
            control_plane_only: false,
            pod_cidr: Ipv4Net::new_assert(Ipv4Addr::new(10, 244, 0, 0), 16),
            service_cidr: Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 16),
            api_server_flags: Vec::new(),
            durable: false,
            timings: Timings::default(),
            images: Vec::new(),
        }
    }

    /// Number of nodes; the first one is also the control plane.
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Only etcd, API server, controller manager and scheduler, without pods.
    pub fn control_plane_only(mut self) -> Self {
        self.control_plane_only = true;
        self
    }

    pub fn pod_cidr(mut self, cidr: Ipv4Net) -> Self {
        self.pod_cidr = cidr.trunc();
        self
    }

    pub fn service_cidr(mut self, cidr: Ipv4Net) -> Self {
        self.service_cidr = cidr.trunc();
        self
    }

    /// Additional flag of the API server, such as `--feature-gates=…`; later flags win.
    pub fn api_server_flag(mut self, flag: impl Into<String>) -> Self {
        self.api_server_flags.push(flag.into());
        self
    }

    /// Lets etcd sync to disk, as in production.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    pub fn timings(mut self, timings: Timings) -> Self {
        self.timings = timings;
        self
    }

    /// An image to import on every node.
    pub fn image(mut self, image: Image) -> Self {
        self.images.push(image);
        self
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn node_name(&self, number: u8) -> String {
        format!("{}-{number}", self.name)
    }

    /// The address of the Service `kubernetes`.
    pub(crate) fn api_service(&self) -> Ipv4Addr {
        nth(self.service_cidr, 1)
    }

    pub(crate) fn dns_service(&self) -> Ipv4Addr {
        nth(self.service_cidr, 10)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let name = &self.name;
        let refuse = |reason: String| Err(Error::Refused(format!("cluster {name:?}: {reason}")));
        let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 40 || !name.chars().all(label) {
            return refuse("a name has 1 to 40 characters of a-z, 0-9 and -".into());
        }
        if name.starts_with('-') || name.ends_with('-') {
            return refuse("a name begins and ends with a letter or digit".into());
        }
        if self.nodes == 0 || self.nodes > MAX_NODES {
            return refuse(format!("{} nodes, but 1 to {MAX_NODES} are possible", self.nodes));
        }
        let (pods, services) = (self.pod_cidr, self.service_cidr);
        let room = 24_u8.checked_sub(pods.prefix_len()).map_or(0, |bits| 1_u64 << bits);
        if room < u64::from(self.nodes) {
            return refuse(format!(
                "PodCIDR {pods} has room for {room} nodes with a /24 each, but {} are requested",
                self.nodes
            ));
        }
        if services.prefix_len() > 27 || services.prefix_len() < 12 {
            return refuse(format!("ServiceCIDR {services} must be a /12 to /27"));
        }
        if pods.contains(&services) || services.contains(&pods) {
            return refuse(format!("PodCIDR {pods} and ServiceCIDR {services} overlap"));
        }
        Ok(())
    }
}

fn nth(network: Ipv4Net, offset: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(network.network()) + offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(spec: &ClusterSpec) -> String {
        spec.check().expect_err("should be refused").to_string()
    }

    #[test]
    fn the_defaults_are_accepted() {
        ClusterSpec::new("rome").nodes(3).check().unwrap();
    }

    #[test]
    fn an_invalid_spec_is_refused_with_the_reason() {
        let net = |text: &str| text.parse().unwrap();
        let rome = || ClusterSpec::new("rome");
        assert!(reason(&ClusterSpec::new("Rome")).contains("a-z"));
        assert!(reason(&ClusterSpec::new("-rome")).contains("begins"));
        assert!(reason(&rome().nodes(0)).contains("0 nodes"));
        assert!(reason(&rome().nodes(31)).contains("31 nodes"));
        assert!(reason(&rome().nodes(2).pod_cidr(net("10.1.0.0/24"))).contains("room for 1"));
        assert!(reason(&rome().pod_cidr(net("10.1.0.0/25"))).contains("room for 0"));
        assert!(reason(&rome().service_cidr(net("10.1.0.0/28"))).contains("ServiceCIDR"));
        assert!(reason(&rome().service_cidr(net("10.244.1.0/24"))).contains("overlap"));
    }

    #[test]
    fn well_known_services_have_their_usual_addresses() {
        let rome = ClusterSpec::new("rome");
        assert_eq!(rome.api_service().to_string(), "10.96.0.1");
        assert_eq!(rome.dns_service().to_string(), "10.96.0.10");
    }

    proptest::proptest! {
        #[test]
        fn an_accepted_spec_has_room_for_its_nodes_and_services(
            nodes: u8,
            pods: (u32, u8),
            services: (u32, u8),
        ) {
            let network = |(bits, length): (u32, u8)| {
                Ipv4Net::new_assert(bits.into(), length % 33)
            };
            let spec = ClusterSpec::new("x")
                .nodes(nodes)
                .pod_cidr(network(pods))
                .service_cidr(network(services));
            if spec.check().is_ok() {
                let parts = spec.pod_cidr.subnets(24).unwrap().take(usize::from(nodes)).count();
                assert_eq!(parts, usize::from(nodes));
                assert!(spec.service_cidr.contains(&spec.dns_service()));
                assert!(!spec.pod_cidr.contains(&spec.api_service()));
            }
        }
    }
}
