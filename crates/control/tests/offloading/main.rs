//! Offloading on a real API server, which is home and remote cluster at once: a namespace gets its
//! twin and loses it, pods are amended as the API server asks, and endpoints of other clusters go
//! out of service with these.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod endpoints;
mod guests;
mod namespaces;
mod pods;
mod world;

use std::sync::LazyLock;

use tokio::runtime::Runtime;

/// Of all tests: what the world runs is to outlive each of them.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
