//! Offloading on a real API server that is home and remote cluster at once: twin namespaces are
//! created and deleted, pods are mutated by the webhook, and endpoints of unreachable clusters are
//! not ready.

#![allow(clippy::disallowed_methods, reason = "tasks of a test end with it")]

mod endpoints;
mod guests;
mod namespaces;
mod pods;
mod world;

use std::sync::LazyLock;

use tokio::runtime::Runtime;

/// Shared by all tests, because the tasks of the world outlive each of them.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
