//! Removes the installed objects and those created since. A component is removed only after the
//! objects that it has to clean up.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Namespace, Pod, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PropagationPolicy,
};
use kube::core::GroupVersionKind;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use tombolo_api::discovery::ForeignCluster;
use tombolo_api::names;

use crate::install::{SELECTOR, is_missing};
use crate::watching::Watches;

/// How long the components may take to remove their finalizers before they are removed by force.
const FINALIZERS: Duration = Duration::from_secs(20);

pub async fn is_anything_left(client: &Client) -> Result<bool> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let found = namespaces.get_opt(names::NAMESPACE).await.context("read namespace liqo")?;
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let kinds = definitions.list(&ListParams::default().labels(SELECTOR)).await;
    Ok(found.is_some() || !kinds.context("list the CRDs")?.items.is_empty())
}

/// Stops discovery and the auth service, which would recreate ForeignClusters and identities.
pub async fn discovery(client: &Client, timeout: Duration) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), names::NAMESPACE);
    delete(&api, "liqo-discovery").await?;
    delete(&api, "liqo-auth").await?;
    gone::<Pod>(client, "app.kubernetes.io/name in (liqo-discovery, liqo-auth)", timeout).await
}

/// Revokes the identities of other clusters.
pub async fn identities(client: &Client) -> Result<()> {
    let api: Api<Secret> = Api::namespaced(client.clone(), names::AUTH_NAMESPACE);
    let records = watcher::Config::default().labels(names::IDENTITY_RECORD_LABEL);
    let found = api.list(&ListParams::default().labels(names::IDENTITY_RECORD_LABEL)).await;
    for record in found.context("list the identities of other clusters")? {
        delete(&api, &record.name_any()).await?;
    }
    let mut watches = Watches::default();
    let store = watches.keep(api.clone(), records);
    if watches.until(FINALIZERS, || store.state().is_empty().then_some(())).await?.is_none() {
        for record in store.state() {
            strip(&api, &record.name_any()).await?;
        }
    }
    Ok(())
}

pub async fn foreign_clusters(client: &Client, timeout: Duration) -> Result<()> {
    let api: Api<ForeignCluster> = Api::all(client.clone());
    let started = Instant::now();
    loop {
        let found = match api.list(&ListParams::default()).await {
            Err(error) if is_missing(&error) => return Ok(()),
            other => other.context("list the ForeignClusters")?.items,
        };
        if found.is_empty() {
            return Ok(());
        }
        if started.elapsed() > timeout {
            let names: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
            bail!("ForeignClusters can't be deleted: {}", names.join(", "));
        }
        for cluster in &found {
            delete(&api, &cluster.name_any()).await?;
        }
        let mut watches = Watches::default();
        let store = watches.keep(api.clone(), watcher::Config::default());
        let left = FINALIZERS.min(timeout);
        let empty = watches.until(left, || store.state().is_empty().then_some(())).await?;
        if empty.is_none() {
            // The owner of the finalizers does not run, or can't reach the other cluster.
            for cluster in store.state() {
                strip(&api, &cluster.name_any()).await?;
            }
        }
    }
}

pub async fn tenant_namespaces(
    client: &Client,
    timeout: Duration,
    say: &dyn Fn(&str),
) -> Result<()> {
    let tenants = format!("{}=true", names::TENANT_LABEL);
    remove_namespaces(client, &tenants, timeout, say).await?;
    // Twin namespaces of other clusters.
    remove_namespaces(client, names::REMOTE_CLUSTER_ID_LABEL, timeout, say).await
}

/// The namespaces of Tombolo.
pub async fn namespaces(client: &Client, timeout: Duration, say: &dyn Fn(&str)) -> Result<()> {
    remove_namespaces(client, SELECTOR, timeout, say).await
}

pub async fn workloads(client: &Client, timeout: Duration) -> Result<()> {
    // Without the controllers, the webhook would reject pods.
    delete_everywhere::<MutatingWebhookConfiguration>(client).await?;
    delete_in_liqo::<Deployment>(client).await?;
    delete_in_liqo::<DaemonSet>(client).await?;
    gone::<Pod>(client, SELECTOR, timeout).await
}

/// Cluster-wide objects, and roles in namespaces of others.
pub async fn cluster_objects(client: &Client) -> Result<()> {
    delete_everywhere::<ValidatingAdmissionPolicyBinding>(client).await?;
    delete_everywhere::<ValidatingAdmissionPolicy>(client).await?;
    delete_everywhere::<ClusterRoleBinding>(client).await?;
    delete_everywhere::<ClusterRole>(client).await?;
    for (namespace, name) in labelled::<RoleBinding>(client).await? {
        delete(&Api::<RoleBinding>::namespaced(client.clone(), &namespace), &name).await?;
    }
    for (namespace, name) in labelled::<Role>(client).await? {
        delete(&Api::<Role>::namespaced(client.clone(), &namespace), &name).await?;
    }
    Ok(())
}

/// The CRDs and their objects.
pub async fn definitions(client: &Client, timeout: Duration) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let found = api.list(&ListParams::default().labels(SELECTOR)).await;
    let found = found.context("list the CRDs")?.items;
    for definition in &found {
        strip_all(client, definition, None).await?;
        delete(&api, &definition.name_any()).await?;
    }
    let mut watches = Watches::default();
    let store = watches.keep(api.clone(), watcher::Config::default().labels(SELECTOR));
    let empty = watches.until(timeout, || store.state().is_empty().then_some(()));
    if empty.await?.is_some() {
        return Ok(());
    }
    let left: Vec<String> = store.state().iter().map(|kind| kind.name_any()).collect();
    bail!("the CRDs {} still exist after {} s", left.join(", "), timeout.as_secs())
}

async fn remove_namespaces(
    client: &Client,
    selector: &str,
    timeout: Duration,
    say: &dyn Fn(&str),
) -> Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let found = api.list(&ListParams::default().labels(selector)).await;
    let found = found.context("list the namespaces")?.items;
    for namespace in &found {
        delete(&api, &namespace.name_any()).await?;
    }
    let wait = async |timeout: Duration| {
        let mut watches = Watches::default();
        let config = watcher::Config::default().labels(selector);
        let store = watches.keep(api.clone(), config);
        let empty = watches.until(timeout, || {
            let left: Vec<String> = store.state().iter().map(|n| n.name_any()).collect();
            if !left.is_empty() {
                say(&format!("waiting until namespace {} is deleted", left.join(", ")));
            }
            left.is_empty().then_some(())
        });
        let empty = empty.await?.is_some();
        let left: Vec<String> = store.state().iter().map(|n| n.name_any()).collect();
        anyhow::Ok((empty, left))
    };
    let (empty, left) = wait(FINALIZERS.min(timeout)).await?;
    if empty {
        return Ok(());
    }
    for namespace in &left {
        force(client, namespace).await?;
    }
    let (empty, left) = wait(timeout).await?;
    if empty {
        return Ok(());
    }
    bail!(
        "namespaces {} still exist after {} s: see `kubectl describe namespace`",
        left.join(", "),
        timeout.as_secs()
    )
}

/// Removes the finalizers of all custom resources of Tombolo in a namespace.
async fn force(client: &Client, namespace: &str) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let kinds = definitions.list(&ListParams::default().labels(SELECTOR)).await;
    for definition in kinds.context("list the CRDs")? {
        if definition.spec.scope == "Namespaced" {
            strip_all(client, &definition, Some(namespace)).await?;
        }
    }
    Ok(())
}

async fn strip_all(
    client: &Client,
    definition: &CustomResourceDefinition,
    namespace: Option<&str>,
) -> Result<()> {
    let spec = &definition.spec;
    let version = spec.versions.first().map_or("v1alpha1", |version| version.name.as_str());
    let kind = GroupVersionKind::gvk(&spec.group, version, &spec.names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &spec.names.plural);
    let all: Api<DynamicObject> = match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let found = match all.list(&ListParams::default()).await {
        Err(error) if is_missing(&error) => return Ok(()),
        other => other.with_context(|| format!("list the {}", spec.names.plural))?.items,
    };
    for object in found.into_iter().filter(|object| !object.finalizers().is_empty()) {
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        strip(&api, &object.name_any()).await?;
    }
    Ok(())
}

async fn strip<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Clone + DeserializeOwned + Debug,
{
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    match api.patch(name, &PatchParams::default(), &patch).await {
        Err(error) if is_missing(&error) => Ok(()),
        other => other.map(drop).with_context(|| format!("remove the finalizers of {name}")),
    }
}

async fn delete<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let parameters = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    };
    match api.delete(name, &parameters).await {
        Err(error) if is_missing(&error) => Ok(()),
        other => other.map(drop).with_context(|| format!("delete {}/{name}", api.resource_url())),
    }
}

async fn delete_in_liqo<K>(client: &Client) -> Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::namespaced(client.clone(), names::NAMESPACE);
    let found = api.list(&ListParams::default().labels(SELECTOR)).await;
    for object in found.context("list the workloads in namespace liqo")? {
        delete(&api, &object.name_any()).await?;
    }
    Ok(())
}

async fn delete_everywhere<K>(client: &Client) -> Result<()>
where
    K: Resource + Clone + DeserializeOwned + Debug,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::all(client.clone());
    let found = match api.list(&ListParams::default().labels(SELECTOR)).await {
        Err(error) if is_missing(&error) => return Ok(()),
        other => other.with_context(|| format!("list {}", api.resource_url()))?,
    };
    for object in found {
        delete(&api, &object.name_any()).await?;
    }
    Ok(())
}

/// Namespace and name of all objects of a kind with our label.
async fn labelled<K>(client: &Client) -> Result<Vec<(String, String)>>
where
    K: Resource + Clone + DeserializeOwned + Debug,
    K::DynamicType: Default,
{
    let api: Api<K> = Api::all(client.clone());
    let found = api.list(&ListParams::default().labels(SELECTOR)).await;
    let found = found.with_context(|| format!("list {}", api.resource_url()))?;
    Ok(found.iter().filter_map(|o| Some((o.namespace()?, o.name_any()))).collect())
}

async fn gone<K>(client: &Client, selector: &str, timeout: Duration) -> Result<()>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + Debug
        + Send
        + Sync
        + 'static,
{
    let api: Api<K> = Api::namespaced(client.clone(), names::NAMESPACE);
    let mut watches = Watches::default();
    let store = watches.keep(api, watcher::Config::default().labels(selector));
    let empty = watches.until(timeout, || store.state().is_empty().then_some(()));
    if empty.await?.is_some() {
        return Ok(());
    }
    let left: Vec<String> = store.state().iter().map(|object| object.name_any()).collect();
    bail!("pods still exist after {} s: {}", timeout.as_secs(), left.join(", "))
}
