//! Writes to an API server: server-side apply, and deletes with preconditions.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use tombolo_core::json::without_nulls;

/// Applies an object. `manager` owns the fields of `object` afterwards.
pub async fn apply<K>(api: &Api<K>, manager: &str, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.meta().name.clone().unwrap_or_default();
    let value = without_nulls(with_type(object)?);
    api.patch(&name, &PatchParams::apply(manager).force(), &Patch::Apply(&value)).await
}

/// Applies an existing object. Fails with 409 if the object is gone or was recreated, so that no
/// object is created from an outdated one.
pub async fn apply_to<K>(api: &Api<K>, manager: &str, uid: &str, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let name = object.meta().name.clone().unwrap_or_default();
    let mut value = without_nulls(with_type(object)?);
    value["metadata"]["uid"] = uid.into();
    api.patch(&name, &PatchParams::apply(manager).force(), &Patch::Apply(&value)).await
}

/// Applies a status.
pub async fn apply_status<K, S>(
    api: &Api<K>,
    manager: &str,
    name: &str,
    status: &S,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
    S: Serialize,
{
    let value = serde_json::json!({
        "apiVersion": K::api_version(&()),
        "kind": K::kind(&()),
        "metadata": { "name": name },
        "status": serde_json::to_value(status).map_err(kube::Error::SerdeError)?,
    });
    api.patch_status(name, &PatchParams::apply(manager).force(), &Patch::Apply(&value)).await
}

/// Deletes the object with this UID. Success if it is already gone.
pub async fn delete_if_same<K>(api: &Api<K>, name: &str, uid: Option<&str>) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    delete_if(api, name, Preconditions { uid: uid.map(str::to_owned), resource_version: None })
        .await
}

/// Deletes an object if it has not changed since `seen`. If it has, nothing is deleted: the caller
/// learns of the change by its watch.
pub async fn delete_if_unchanged<K>(api: &Api<K>, seen: &K) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let same = Preconditions { uid: seen.uid(), resource_version: seen.resource_version() };
    delete_if(api, &seen.name_any(), same).await
}

async fn delete_if<K>(api: &Api<K>, name: &str, same: Preconditions) -> kube::Result<()>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    absent_is_fine(api.delete(name, &params).await.map(drop))
}

/// Treats not found (404) and a failed precondition (409) as success.
pub fn absent_is_fine(result: kube::Result<()>) -> kube::Result<()> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        other => other,
    }
}

fn with_type<K>(object: &K) -> kube::Result<serde_json::Value>
where
    K: Resource<DynamicType = ()> + Serialize,
{
    let mut value = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    value["apiVersion"] = K::api_version(&()).into();
    value["kind"] = K::kind(&()).into();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        // Set by the API server, which rejects them in an apply.
        for field in ["managedFields", "resourceVersion", "uid", "creationTimestamp", "generation"]
        {
            metadata.remove(field);
        }
    }
    if let Some(fields) = value.as_object_mut() {
        fields.remove("status");
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_apply_has_no_fields_that_the_server_sets() {
        let namespace: Namespace = serde_json::from_value(json!({
            "metadata": { "name": "shop", "uid": "1", "resourceVersion": "2", "managedFields": [] },
            "status": { "phase": "Active" },
        }))
        .unwrap();
        let value = without_nulls(with_type(&namespace).unwrap());
        assert_eq!(
            value,
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "shop" } })
        );
    }
}
