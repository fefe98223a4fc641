//! Real Kubernetes clusters on one Linux machine, for tests and the playground: every cluster has
//! its own etcd, API server, kubelets, containers, kube-proxy and DNS, every node its own
//! namespaces, and the network between them filters strictly.
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
