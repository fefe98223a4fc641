//! Other clusters as given on the command line: by name, id or auth URL.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tombolo_api::ClusterId;
use tombolo_api::discovery::ForeignCluster;
use tombolo_core::view::Peer;

use crate::install::MANAGER;

/// The ForeignCluster with this name, id or auth URL, if any.
pub async fn find(client: &Client, text: &str) -> Result<Option<ForeignCluster>> {
    let all = list(client).await?;
    let by = |matches: &dyn Fn(&ForeignCluster) -> bool| {
        all.iter().filter(|fc| matches(fc)).cloned().collect::<Vec<_>>()
    };
    let identity = |fc: &ForeignCluster| fc.spec.cluster_identity.clone();
    let candidates = [
        by(&|fc| fc.name_any() == text),
        by(&|fc| identity(fc).is_some_and(|cluster| cluster.cluster_id.as_str() == text)),
        by(&|fc| identity(fc).is_some_and(|cluster| cluster.cluster_name.as_str() == text)),
        by(&|fc| fc.spec.auth_url.trim_end_matches('/') == text.trim_end_matches('/')),
    ];
    let Some(found) = candidates.into_iter().find(|found| !found.is_empty()) else {
        return Ok(None);
    };
    if let [one] = found.as_slice() {
        return Ok(Some(one.clone()));
    }
    let names: Vec<String> = found.iter().map(ResourceExt::name_any).collect();
    bail!("several clusters have the name {text:?}: use one of {}", names.join(", "))
}

/// Like [`find`], but fails with advice when there is none.
pub async fn require(client: &Client, text: &str) -> Result<ForeignCluster> {
    if let Some(found) = find(client, text).await? {
        return Ok(found);
    }
    let names: Vec<String> = list(client).await?.iter().map(ResourceExt::name_any).collect();
    let known = if names.is_empty() {
        "no cluster is known yet".to_owned()
    } else {
        format!("known clusters: {}", names.join(", "))
    };
    bail!(
        "there is no cluster {text:?}; {known}. To add a cluster that is not discovered, use the URL \
         of its auth service: `tombolo peer https://HOST:PORT`"
    )
}

pub async fn list(client: &Client) -> Result<Vec<ForeignCluster>> {
    let api: Api<ForeignCluster> = Api::all(client.clone());
    let all = api.list(&ListParams::default()).await.context("list the ForeignClusters")?;
    Ok(all.items)
}

pub async fn set_join(client: &Client, name: &str, join: bool) -> Result<()> {
    let api: Api<ForeignCluster> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": {"join": join}}));
    let parameters = PatchParams { field_manager: Some(MANAGER.into()), ..Default::default() };
    api.patch(name, &parameters, &patch)
        .await
        .map(drop)
        .with_context(|| format!("set join of ForeignCluster {name} to {join}"))
}

/// Waits until a ForeignCluster is deleted.
pub async fn gone(client: &Client, cluster: &ForeignCluster, timeout: Duration) -> Result<()> {
    let (name, uid) = (cluster.name_any(), cluster.uid().unwrap_or_default());
    let api: Api<ForeignCluster> = Api::all(client.clone());
    let deleted = await_condition(api, &name, conditions::is_deleted(&uid));
    match tokio::time::timeout(timeout, deleted).await {
        Ok(gone) => gone.map(drop).with_context(|| format!("watch ForeignCluster {name}")),
        Err(_) => bail!(
            "ForeignCluster {name} is not deleted after {} s: see `kubectl -n liqo logs \
             deploy/liqo-control`",
            timeout.as_secs()
        ),
    }
}

/// Its display name.
pub fn display_name(cluster: &ForeignCluster) -> String {
    match &cluster.spec.cluster_identity {
        Some(identity) => identity.cluster_name.to_string(),
        None => cluster.name_any(),
    }
}

/// Name of the cluster with this id, or the id if the cluster is unknown.
pub fn name_of(clusters: &[ForeignCluster], id: &ClusterId) -> String {
    let found = clusters.iter().find(|cluster| Peer::from_resource(cluster).id() == Some(id));
    found.map_or_else(|| id.to_string(), display_name)
}
