//! One API server with the CRDs for all tests, and helpers to use it.

use std::{error::Error, fs, path::Path};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client,
    api::{DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
    discovery::{self, Scope},
};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell};
use tombolo_testbed::{Cluster, ClusterSpec, Testbed, eventually};

pub type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// Held while a test uses the only ClusterConfig.
pub static CLUSTER_CONFIG: Mutex<()> = Mutex::const_new(());

static BED: OnceCell<Testbed> = OnceCell::const_new();

/// The cluster, with the CRDs of `crds/` applied.
pub async fn cluster() -> Result<&'static Cluster> {
    let bed = BED
        .get_or_try_init(|| async {
            let spec = ClusterSpec::new("api").control_plane_only();
            let bed = Testbed::builder("api").cluster(spec).start().await?;
            define(&bed.cluster("api").client().await?).await?;
            Ok::<_, Box<dyn Error>>(bed)
        })
        .await?;
    Ok(bed.cluster("api"))
}

/// A client for one test: it belongs to the test's runtime.
pub async fn client() -> Result<Client> {
    Ok(cluster().await?.client().await?)
}

/// The documents of each file in a directory of this crate, by file name.
pub fn manifests(path: &str) -> Result<Vec<(String, Vec<Value>)>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut files: Vec<_> = fs::read_dir(&path)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    files
        .into_iter()
        .map(|file| {
            let documents = serde_saphyr::from_multiple(&fs::read_to_string(&file)?)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            Ok((name.into_owned(), documents))
        })
        .collect()
}

/// Applies an object and its status, like `kubectl apply --server-side`.
pub async fn apply(client: &Client, object: &Value) -> Result {
    let api = api_of(client, object).await?;
    let name = object["metadata"]["name"].as_str().ok_or("no name")?;
    let params = PatchParams::apply("test").force().validation_strict();
    let without = |field: &str| {
        let mut object = object.clone();
        object.as_object_mut().map(|fields| fields.remove(field));
        Patch::Apply(object)
    };
    api.patch(name, &params, &without("status")).await?;
    if object.get("status").is_some() {
        api.patch_status(name, &params, &without("spec")).await?;
    }
    Ok(())
}

/// Creates a namespace and its default ServiceAccount, since no controller runs.
pub async fn namespace(client: &Client, name: &str) -> Result {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name }
    });
    apply(client, &namespace).await?;
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": { "name": "default", "namespace": name }
    });
    apply(client, &account).await
}

/// The API for an object, by its kind and namespace.
pub async fn api_of(client: &Client, object: &Value) -> Result<Api<DynamicObject>> {
    let api_version = object["apiVersion"].as_str().ok_or("no apiVersion")?;
    let kind = object["kind"].as_str().ok_or("no kind")?;
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    let gvk = GroupVersionKind::gvk(group, version, kind);
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk).await?;
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
    })
}

/// Applies a CRD and waits until it is established.
pub async fn define_one(client: &Client, definition: &Value) -> Result {
    apply(client, definition).await?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition["metadata"]["name"].as_str().ok_or("no name")?;
    let ask = async || match api.get(name).await {
        Ok(definition) => is_served(client, &definition).await,
        Err(_) => false,
    };
    eventually(&format!("{name} is served"), ask, |is_served| *is_served).await;
    Ok(())
}

async fn define(client: &Client) -> Result {
    for (_, definitions) in manifests("crds")? {
        for definition in definitions {
            define_one(client, &definition).await?;
        }
    }
    Ok(())
}

async fn is_served(client: &Client, crd: &CustomResourceDefinition) -> bool {
    let established = crd.status.iter().any(|status| {
        let mut conditions = status.conditions.iter().flatten();
        conditions.any(|c| c.type_ == "Established" && c.status == "True")
    });
    let version = format!("{}/{}", crd.spec.group, crd.spec.versions[0].name);
    let listed = client.list_api_group_resources(&version).await;
    let kind = &crd.spec.names.kind;
    established && listed.is_ok_and(|list| list.resources.iter().any(|r| r.kind == *kind))
}
