//! An object with all fields set survives a round trip through the API server.

use std::fmt::Debug;

use kube::{
    Client, CustomResourceExt, Resource, ResourceExt,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    cluster::{CLUSTER_CONFIG, Result, api_of, client, namespace},
    filled,
};

const NAMESPACE: &str = "round-trip";

#[tokio::test]
async fn every_kind_survives_a_round_trip() -> Result {
    let client = client().await?;
    namespace(&client, NAMESPACE).await?;
    let _only_one = CLUSTER_CONFIG.lock().await;
    round_trip(&client, filled::cluster_config()).await?;
    round_trip(&client, filled::foreign_cluster()).await?;
    round_trip(&client, filled::resource_request()).await?;
    round_trip(&client, filled::search_domain()).await?;
    round_trip(&client, filled::ipam_storage()).await?;
    round_trip(&client, filled::nat_mapping()).await?;
    round_trip(&client, filled::network_config()).await?;
    round_trip(&client, filled::tunnel_endpoint()).await?;
    round_trip(&client, filled::namespace_offloading()).await?;
    round_trip(&client, filled::resource_offer()).await?;
    round_trip(&client, filled::namespace_map()).await?;
    round_trip(&client, filled::shadow_endpoint_slice()).await?;
    round_trip(&client, filled::shadow_pod()).await
}

async fn round_trip<K>(client: &Client, object: K) -> Result
where
    K: Resource<DynamicType = ()> + CustomResourceExt,
    K: Clone + Debug + PartialEq + Serialize + DeserializeOwned,
{
    let kind = K::kind(&());
    let name = object.name_any();
    let mut sent = serde_json::to_value(&object)?;
    sent["metadata"]["namespace"] = json!(NAMESPACE);
    let unfilled = unfilled(&K::crd(), &sent)?;
    assert!(unfilled.is_empty(), "the test leaves fields of {kind} out: {unfilled:?}");

    let api = api_of(client, &sent).await?;
    if api.namespace().is_none() {
        sent["metadata"]["namespace"].take();
    }
    let created: DynamicObject = serde_json::from_value(sent.clone())?;
    api.create(&PostParams::default(), &created).await?;
    if let Some(status) = sent.get("status") {
        let patch = Patch::Merge(json!({ "status": status }));
        api.patch_status(&name, &PatchParams::default(), &patch).await?;
    }
    let stored = api.get(&name).await?;
    api.delete(&name, &DeleteParams::default()).await?;

    assert_eq!(stored.data["spec"], sent["spec"], "the spec of {kind} as stored");
    assert_eq!(stored.data.get("status"), sent.get("status"), "the status of {kind} as stored");
    let mut received: K = stored.try_parse()?;
    *received.meta_mut() = object.meta().clone();
    assert_eq!(received, object);
    Ok(())
}

/// The properties of the schema that the object does not set.
fn unfilled(crd: &impl Serialize, object: &Value) -> Result<Vec<String>> {
    let crd = serde_json::to_value(crd)?;
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let mut missing = Vec::new();
    look(schema, &[object], "", &mut missing);
    Ok(missing)
}

fn look(schema: &Value, values: &[&Value], path: &str, missing: &mut Vec<String>) {
    let properties = schema["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        let path = format!("{path}.{name}");
        let values: Vec<&Value> = values.iter().filter_map(|value| value.get(name)).collect();
        if values.is_empty() {
            missing.push(path);
        } else {
            look(property, &values, &path, missing);
        }
    }
    let inner = [&schema["items"], &schema["additionalProperties"]];
    for inner in inner.into_iter().filter(|schema| schema.is_object()) {
        let values: Vec<&Value> = values.iter().copied().flat_map(elements).collect();
        if values.is_empty() {
            missing.push(format!("{path}[]"));
        } else {
            look(inner, &values, &format!("{path}[]"), missing);
        }
    }
}

fn elements(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(entries) => entries.values().collect(),
        _ => Vec::new(),
    }
}
