//! Real Kubernetes on one Linux machine: every cluster with its own etcd, API server, kubelets,
//! containers, kube-proxy and DNS, every node in namespaces of its own, and a strict network between
//! them. For the tests, and for the playground.
//!
//! ```no_run
//! # async fn example() -> tombolo_testbed::Result<()> {
//! use tombolo_testbed::{ClusterSpec, Testbed};
//!
//! let bed = Testbed::builder("example")
//!     .cluster(ClusterSpec::new("rome").nodes(2))
//!     .cluster(ClusterSpec::new("milan"))
//!     .start()
//!     .await?;
//! println!("{}", bed.cluster("rome").kubectl(&["get", "nodes"]).await?);
//! # Ok(())
//! # }
//! ```

mod active;
mod apply;
mod at_end;
mod bed;
mod binaries;
mod cache;
mod cgroup;
mod cluster;
mod command;
mod component;
mod error;
mod failure;
mod fault;
mod files;
mod host;
mod image;
pub mod images;
mod layout;
mod machine;
mod node;
mod packages;
mod pki;
mod process;
mod progress;
mod removal;
mod spec;
mod state;
mod testbed;
mod wait;
mod wan;

pub use binaries::KUBERNETES;
pub use cache::Cache;
pub use cluster::Cluster;
pub use component::Component;
pub use error::{Error, Result};
pub use fault::{End, Fault, Path, Protocol};
pub use image::Image;
pub use machine::Machine;
pub use node::Node;
pub use packages::unpack_packages;
pub use progress::{Progress, Share, Step};
pub use spec::{ClusterSpec, MAX_CLUSTERS, MAX_NODES, Timings};
pub use testbed::{Testbed, TestbedBuilder, prepare, require_root};
pub use wait::{answer_to, eventually, within};
