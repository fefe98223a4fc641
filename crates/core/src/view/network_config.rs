//! The view of a NetworkConfig.

use tombolo_api::net::{NetworkConfig, NetworkConfigSpec, NetworkConfigStatus};

/// The fields of a NetworkConfig that decisions depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config<'a> {
    /// Name of the object: the cluster name of its sender.
    pub name: &'a str,
    /// Its tenant namespace.
    pub namespace: &'a str,
    /// Uid of the object.
    pub uid: Option<&'a str>,
    /// The network of the sender, as claimed by it.
    pub spec: &'a NetworkConfigSpec,
    /// The answer of the receiver.
    pub answer: Option<&'a NetworkConfigStatus>,
    /// Whether it is being deleted.
    pub is_deleted: bool,
}

impl<'a> Config<'a> {
    /// The view of this resource.
    pub fn from_resource(config: &'a NetworkConfig) -> Self {
        let meta = &config.metadata;
        Self {
            name: meta.name.as_deref().unwrap_or_default(),
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref(),
            spec: &config.spec,
            answer: config.status.as_ref(),
            is_deleted: meta.deletion_timestamp.is_some(),
        }
    }
}
