//! A network namespace that belongs to no node.

use std::process::Command;

use crate::lan::ip;

/// Removed on drop.
pub struct Namespace(String);

impl Namespace {
    /// An empty one.
    pub fn new() -> Self {
        let name = format!("tombolo-other-{}", std::process::id());
        ip(&format!("netns add {name}"));
        ip(&format!("-n {name} link set lo up"));
        Self(name)
    }

    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}
