//! Invalid objects are refused, with a message that names the field and describes valid values:
//! `tests/refused/` has, for each kind, a valid object and patches that make it invalid.

use std::collections::BTreeSet;

use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams},
    core::Request,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::{CLUSTER_CONFIG, Result, api_of, apply, client, manifests, namespace};

#[derive(Deserialize)]
struct Kind {
    valid: Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    when: String,
    says: String,
    #[serde(flatten)]
    attempt: Attempt,
}

/// A merge patch that makes the valid object invalid, on creation or update.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Attempt {
    Create(Value),
    Update(Value),
    Status(Value),
}

const NAMESPACE: &str = "refused";

#[tokio::test]
async fn invalid_objects_are_refused_with_a_reason() -> Result {
    let client = client().await?;
    namespace(&client, NAMESPACE).await?;
    let _only_one = CLUSTER_CONFIG.lock().await;
    let (mut kinds, mut cases, mut failures) = (BTreeSet::new(), 0, Vec::new());
    for (file, documents) in manifests("tests/refused")? {
        for document in documents {
            let kind: Kind = serde_json::from_value(document)?;
            kinds.insert(kind.valid["kind"].as_str().unwrap_or_default().to_owned());
            cases += kind.cases.len();
            let found = check(&client, kind).await.map_err(|e| format!("{file}: {e}"))?;
            failures.extend(found.iter().map(|failure| format!("{file}: {failure}")));
        }
    }
    let all = tombolo_api::crds().into_iter().map(|crd| crd.spec.names.kind);
    assert_eq!(kinds, all.collect(), "every kind has a file");
    assert!(
        failures.is_empty(),
        "{} of {cases} cases:\n\n{}\n",
        failures.len(),
        failures.join("\n\n")
    );
    Ok(())
}

/// Failed cases of a kind; an error when the valid object is refused.
async fn check(client: &Client, Kind { mut valid, cases }: Kind) -> Result<Vec<String>> {
    valid["metadata"]["namespace"] = json!(NAMESPACE);
    let api = api_of(client, &valid).await?;
    let name = valid["metadata"]["name"].as_str().unwrap_or_default().to_owned();

    let mut outcomes = Vec::new();
    create(client, &api, &valid).await?;
    for case in &cases {
        if let Attempt::Create(patch) = &case.attempt {
            let mut wrong = valid.clone();
            merge(&mut wrong, patch);
            outcomes.push((case, create(client, &api, &wrong).await));
        }
    }
    apply(client, &valid).await?;
    for case in &cases {
        let params = PatchParams::default().dry_run().validation_strict();
        let outcome = match &case.attempt {
            Attempt::Create(_) => continue,
            Attempt::Update(patch) => api.patch(&name, &params, &Patch::Merge(patch)).await,
            Attempt::Status(patch) => {
                let patch = json!({ "status": patch });
                api.patch_status(&name, &params, &Patch::Merge(patch)).await
            }
        };
        outcomes.push((case, outcome.map(drop)));
    }
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(outcomes.into_iter().filter_map(|(case, outcome)| case.failure(outcome)).collect())
}

/// Creates an object like `kubectl create --dry-run=server`.
async fn create(
    client: &Client,
    api: &Api<DynamicObject>,
    object: &Value,
) -> Result<(), kube::Error> {
    let mut object = object.clone();
    if api.namespace().is_none() {
        merge(&mut object, &json!({ "metadata": { "namespace": null } }));
    }
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut request = Request::new(api.resource_url())
        .create(&dry_run, object.to_string().into_bytes())
        .map_err(kube::Error::BuildRequest)?;
    let strict = format!("{}&fieldValidation=Strict", request.uri());
    *request.uri_mut() = strict.parse().expect("a valid path stays one");
    client.request::<Value>(request).await.map(drop)
}

impl Case {
    fn failure(&self, outcome: Result<(), kube::Error>) -> Option<String> {
        let Self { when, says, .. } = self;
        let message = match outcome {
            Ok(()) => return Some(format!("when {when}: accepted, instead of\n  {says}")),
            Err(kube::Error::Api(status)) => status.message.clone(),
            Err(error) => error.to_string(),
        };
        (!message.contains(says))
            .then(|| format!("when {when}:\n  {message}\ninstead of\n  {says}"))
    }
}

/// A JSON merge patch (RFC 7396).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(target) = target else {
        return;
    };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}
