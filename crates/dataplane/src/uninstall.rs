//! The end of the product on a node: while a ConfigMap asks for it, what was made is removed, and
//! the ConfigMap told so.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    runtime::reflector::Store,
};
use serde_json::json;
use tombolo_api::names::{NAMESPACE, UNINSTALL};
use tombolo_runtime::observe::{Observer, named};

const CLEAN: &str = "clean";

/// Whether the product is being removed, as seen by one component on one node.
#[derive(Clone, Debug)]
pub struct Uninstall {
    api: Api<ConfigMap>,
    store: Store<ConfigMap>,
    component: &'static str,
    node: String,
}

impl Uninstall {
    /// Follows the ConfigMap. It is known once the observer is synced.
    pub fn follow(
        client: &Client,
        observer: &mut Observer,
        component: &'static str,
        node: &str,
    ) -> Self {
        let api = Api::<ConfigMap>::namespaced(client.clone(), NAMESPACE);
        let store = observer.watch(api.clone(), named(UNINSTALL));
        Self { api, store, component, node: node.into() }
    }

    /// Whether what was made has to go.
    pub fn is_requested(&self) -> bool {
        self.store.state().iter().any(|map| map.metadata.deletion_timestamp.is_none())
    }

    /// Whether it was told that everything is gone.
    pub fn is_reported(&self) -> bool {
        let key = self.key();
        let said = |map: &ConfigMap| map.data.as_ref()?.get(&key).map(|said| said == CLEAN);
        self.store.state().iter().any(|map| said(map) == Some(true))
    }

    /// Tells that everything is gone.
    pub async fn report(&self) -> kube::Result<()> {
        // Every node is a manager of its own: what the same manager leaves out is removed.
        let manager = format!("liqo-{}", self.key());
        let map = json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": UNINSTALL },
            "data": { self.key(): CLEAN },
        });
        let params = PatchParams::apply(&manager).force();
        self.api.patch(UNINSTALL, &params, &Patch::Apply(&map)).await.map(drop)
    }

    fn key(&self) -> String {
        format!("{}.{}", self.component, self.node)
    }
}
