//! Finalizers: added to an object before anything is created that has to be removed with it.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

/// Whether the object has the finalizer.
pub fn has<K: Resource>(object: &K, finalizer: &str) -> bool {
    object.finalizers().iter().any(|name| name == finalizer)
}

/// Adds the finalizer, unless the object has it.
pub async fn add<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    keep(api, object, finalizer).await.map(drop)
}

/// The same, and returns the current object. Each finalizer has a field manager of its own, so
/// other changes don't conflict; the UID ensures that it is the same object.
pub async fn keep<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    if has(object, finalizer) {
        return Ok(object.clone());
    }
    let patch = json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "uid": object.uid(), "finalizers": [finalizer] },
    });
    let params = PatchParams::apply(finalizer).force();
    api.patch(&object.name_any(), &params, &Patch::Apply(patch)).await
}

/// Removes the finalizer, if the object has it. Success if the object is gone.
pub async fn remove<K>(api: &Api<K>, object: &K, finalizer: &str) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    if !has(object, finalizer) {
        return Ok(());
    }
    let rest: Vec<String> =
        object.finalizers().iter().filter(|name| *name != finalizer).cloned().collect();
    match set(api, object, &rest).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Removes all finalizers. Success if the object is gone.
pub async fn remove_all<K>(api: &Api<K>, object: &K) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    match set(api, object, &[]).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// With the resourceVersion, so that no finalizer of others is lost.
async fn set<K>(api: &Api<K>, object: &K, finalizers: &[String]) -> kube::Result<K>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let patch = json!({ "metadata": {
        "finalizers": finalizers,
        "resourceVersion": object.resource_version(),
    } });
    api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}
