//! A local network of two interfaces.

use std::process::Command;

/// Removed on drop.
pub struct Lan {
    namespace: String,
    name: &'static str,
}

impl Lan {
    /// Connects two network namespaces, or one with itself, by a veth pair.
    pub fn connect(
        (namespace, name): (&str, &'static str),
        (far, peer): (&str, &'static str),
    ) -> Self {
        ip(&format!("-n {namespace} link add {name} type veth peer name {peer} netns {far}"));
        ip(&format!("-n {namespace} link set {name} up"));
        ip(&format!("-n {far} link set {peer} up"));
        Self { namespace: namespace.to_owned(), name }
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        let (namespace, name) = (&self.namespace, self.name);
        // Fails if the namespace is gone, and its interfaces with it.
        let _ = Command::new("ip").args(["-n", namespace, "link", "del", name]).status();
    }
}

/// Adds an address to an interface, or removes it.
pub fn address(namespace: &str, verb: &str, address: &str, interface: &str) {
    let nodad = if address.contains(':') { " nodad" } else { "" };
    ip(&format!("-n {namespace} addr {verb} {address} dev {interface}{nodad}"));
}

pub(crate) fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().expect("ip runs");
    assert!(done.success(), "ip {words}");
}
