//! Applies objects by server-side apply.

use anyhow::{Context, Result};
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};

/// The field manager of the command line.
pub const MANAGER: &str = "tombolo";

pub async fn apply(client: &Client, object: &DynamicObject) -> Result<()> {
    let name = object.metadata.name.as_deref().unwrap_or_default();
    let kind = object.types.as_ref().map_or("", |types| types.kind.as_str());
    let what = || match &object.metadata.namespace {
        Some(namespace) => format!("apply {kind} {namespace}/{name}"),
        None => format!("apply {kind} {name}"),
    };
    let api = api_for(client, object).with_context(what)?;
    let parameters = PatchParams::apply(MANAGER).force();
    let patch = Patch::Apply(object);
    let mut applied = api.patch(name, &parameters, &patch).await;
    // The API server serves a new CRD only after a short delay.
    for _ in 0..50 {
        match &applied {
            Err(error) if is_missing(error) => {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                applied = api.patch(name, &parameters, &patch).await;
            }
            _ => break,
        }
    }
    applied.map(drop).with_context(what)
}

/// The API for an object, by its kind and namespace.
pub fn api_for(client: &Client, object: &DynamicObject) -> Result<Api<DynamicObject>> {
    let types = object.types.clone().unwrap_or_default();
    let kind =
        GroupVersionKind::try_from(&types).context("read apiVersion and kind of a manifest")?;
    let resource = ApiResource::from_gvk(&kind);
    Ok(match &object.metadata.namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Whether the object or its kind does not exist.
pub fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
