//! A local network of two interfaces.

use std::process::Command;

/// It goes when this is dropped.
pub struct Lan {
    namespace: String,
    name: &'static str,
}

impl Lan {
    /// Joins an interface in one network namespace to one in another, or in the same.
    pub fn join(
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
        // With a namespace its interfaces go, too.
        let _ = Command::new("ip").args(["-n", namespace, "link", "del", name]).status();
    }
}

/// Gives an interface an address, or takes it away.
pub fn address(namespace: &str, verb: &str, address: &str, interface: &str) {
    let nodad = if address.contains(':') { " nodad" } else { "" };
    ip(&format!("-n {namespace} addr {verb} {address} dev {interface}{nodad}"));
}

pub(crate) fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().expect("ip runs");
    assert!(done.success(), "ip {words}");
}
