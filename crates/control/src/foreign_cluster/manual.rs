//! ForeignClusters that a user has created: no controller deletes them.

use std::borrow::Cow;

use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tombolo_api::{
    discovery::{DiscoveryType, ForeignCluster},
    names::{DISCOVERY_TYPE_LABEL, LAST_UPDATE_ANNOTATION, RECORD_ANNOTATION, REQUEST_ANNOTATION},
};
use tombolo_core::view::Entry;
use tombolo_runtime::writer;

use super::{Error, MANAGER};
use crate::identity::failed;

/// The entry with a discovery type: an entry without one was created by a user.
pub(super) async fn labelled<'a>(
    clusters: &Api<ForeignCluster>,
    entry: &'a ForeignCluster,
) -> Result<Cow<'a, ForeignCluster>, Error> {
    if entry.labels().contains_key(DISCOVERY_TYPE_LABEL) {
        return Ok(Cow::Borrowed(entry));
    }
    let metadata = json!({ "uid": entry.uid(), "labels": manual() });
    let labelled = patch(clusters, &entry.name_any(), json!({ "metadata": metadata })).await;
    let labelled = labelled.map_err(failed(format!("label ForeignCluster {}", entry.name_any())));
    Ok(Cow::Owned(labelled?))
}

/// Makes a discovered entry manual: it no longer expires with a search, an announcement or a
/// peering.
pub(super) async fn take_over(
    clusters: &Api<ForeignCluster>,
    entry: &Entry<'_>,
) -> Result<(), Error> {
    let found = json!({
        LAST_UPDATE_ANNOTATION: null, RECORD_ANNOTATION: null, REQUEST_ANNOTATION: null,
    });
    let metadata = json!({
        "uid": entry.uid, "labels": manual(), "annotations": found, "ownerReferences": null,
    });
    let taken = json!({ "metadata": metadata, "spec": { "ttl": null } });
    let taken = patch(clusters, entry.name, taken).await.map(drop);
    let taken = writer::absent_is_fine(taken);
    Ok(taken.map_err(failed(format!("take over ForeignCluster {}", entry.name)))?)
}

fn manual() -> Value {
    json!({ DISCOVERY_TYPE_LABEL: DiscoveryType::Manual.as_str() })
}

async fn patch(
    clusters: &Api<ForeignCluster>,
    name: &str,
    patch: Value,
) -> kube::Result<ForeignCluster> {
    let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
    clusters.patch(name, &params, &Patch::Merge(patch)).await
}
