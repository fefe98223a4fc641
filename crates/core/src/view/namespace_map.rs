//! The view of a NamespaceMap.

use std::collections::BTreeMap;

use tombolo_api::{
    names::FINALIZER,
    virtualkubelet::{NamespaceMap, RemoteNamespace},
};

/// The fields of a NamespaceMap that decisions depend on.
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    /// Its tenant namespace.
    pub namespace: &'a str,
    /// Names of the twins by home namespace, as the home cluster desires them. Empty once the map
    /// is being deleted.
    pub desired: &'a BTreeMap<String, String>,
    /// The twins by home namespace, as the provider reports them.
    pub reported: &'a BTreeMap<String, RemoteNamespace>,
    /// Whether it has the finalizer of the provider.
    pub is_guarded: bool,
    /// Whether it is being deleted.
    pub is_deleted: bool,
}

impl<'a> Map<'a> {
    /// The view of this resource.
    pub fn from_resource(map: &'a NamespaceMap) -> Self {
        let meta = &map.metadata;
        let is_deleted = meta.deletion_timestamp.is_some();
        Self {
            namespace: meta.namespace.as_deref().unwrap_or_default(),
            desired: if is_deleted { &NOTHING_DESIRED } else { &map.spec.desired_mapping },
            reported: map.status.as_ref().map_or(&NOTHING_REPORTED, |it| &it.current_mapping),
            is_guarded: meta.finalizers.iter().flatten().any(|name| name == FINALIZER),
            is_deleted,
        }
    }
}

static NOTHING_DESIRED: BTreeMap<String, String> = BTreeMap::new();
static NOTHING_REPORTED: BTreeMap<String, RemoteNamespace> = BTreeMap::new();
