//! Applies manifests by server-side apply.

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{Scope, pinned_kind};
use kube::{Api, Client};

use crate::error::{Error, Result};

const MANAGER: &str = "testbed";

/// Applies the documents in order.
pub(crate) async fn apply(client: &Client, cluster: &str, manifests: &str) -> Result<()> {
    let objects = serde_saphyr::from_multiple::<DynamicObject>(manifests);
    for object in objects.map_err(Error::api("read manifests", cluster))? {
        let name = object.metadata.name.clone().unwrap_or_default();
        let types = object.types.clone().unwrap_or_default();
        let action = format!("apply {} {name}", types.kind);
        let kind = GroupVersionKind::try_from(&types).map_err(Error::api(&action, cluster))?;
        let pinned = pinned_kind(client, &kind).await;
        let (resource, capabilities) = pinned.map_err(Error::api(&action, cluster))?;
        let api: Api<DynamicObject> = match capabilities.scope {
            Scope::Cluster => Api::all_with(client.clone(), &resource),
            Scope::Namespaced => {
                let namespace = object.metadata.namespace.as_deref().unwrap_or("default");
                Api::namespaced_with(client.clone(), namespace, &resource)
            }
        };
        api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object))
            .await
            .map_err(Error::api(&action, cluster))?;
    }
    Ok(())
}
