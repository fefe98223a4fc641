//! The namespace that holds what a peering needs: one for each peer, found by the peer's id.

use k8s_openapi::api::{
    core::v1::Namespace,
    rbac::v1::{RoleBinding, RoleRef, Subject},
};
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
};
use tombolo_api::{
    ClusterId, ClusterIdentity,
    names::{
        CLUSTER_ID_LABEL, CONTROL_ACCOUNT, CONTROL_TENANT_ROLE, KUBELET_ACCOUNT,
        KUBELET_TENANT_ROLE, NAMESPACE, TENANT_LABEL,
    },
};
use tombolo_core::identity::tenant_namespace;
use tombolo_runtime::writer;
use tracing::info;

use super::{Error, MANAGER, failed};

/// Who of this cluster needs rights in a tenant namespace: by which ClusterRole, and which account.
const BOUND: [(&str, &str); 2] =
    [(CONTROL_TENANT_ROLE, CONTROL_ACCOUNT), (KUBELET_TENANT_ROLE, KUBELET_ACCOUNT)];

/// The name of the peer's namespace, which is made if there is none.
pub(crate) async fn ensure(client: &Client, peer: &ClusterIdentity) -> Result<String, Error> {
    let found = find(client, &peer.cluster_id).await?;
    if let Some(namespace) = &found
        && namespace.metadata.deletion_timestamp.is_some()
    {
        return Err(Error::Ending(namespace.name_any()));
    }
    let name = match found {
        Some(namespace) => namespace.name_any(),
        None => make(client, peer).await?,
    };
    for (role, account) in BOUND {
        bind(client, &name, role, account).await?;
    }
    Ok(name)
}

/// The peer's namespace.
pub(crate) async fn find(client: &Client, peer: &ClusterId) -> Result<Option<Namespace>, Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let labels = format!("{TENANT_LABEL}=true,{CLUSTER_ID_LABEL}={peer}");
    let found = namespaces.list(&ListParams::default().labels(&labels)).await;
    let mut found = found.map_err(failed("find the tenant namespace"))?.items;
    found.sort_by_key(|namespace| namespace.metadata.deletion_timestamp.is_some());
    Ok(found.into_iter().next())
}

/// Deletes the namespace, with all that is in it.
pub(crate) async fn remove(client: &Client, namespace: &Namespace) -> Result<(), Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let name = namespace.name_any();
    info!(namespace = name, "deleting the tenant namespace");
    let gone = writer::delete_if_same(&namespaces, &name, namespace.uid().as_deref()).await;
    gone.map_err(failed(format!("delete the namespace {name}")))
}

async fn make(client: &Client, peer: &ClusterIdentity) -> Result<String, Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let preferred = tenant_namespace(peer, |_| false);
    let there = namespaces.get_metadata_opt(&preferred).await;
    let taken = there.map_err(failed("find the tenant namespace"))?.is_some();
    let name = tenant_namespace(peer, |_| taken);
    let labels = [
        (CLUSTER_ID_LABEL.to_owned(), peer.cluster_id.to_string()),
        (TENANT_LABEL.to_owned(), "true".to_owned()),
        ("app.kubernetes.io/part-of".to_owned(), "liqo".to_owned()),
    ];
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let made = namespaces.create(&params, &namespace).await;
    made.map_err(failed(format!("make the namespace {name}")))?;
    info!(namespace = name, cluster = %peer.cluster_id, "made the tenant namespace");
    Ok(name)
}

async fn bind(client: &Client, namespace: &str, role: &str, account: &str) -> Result<(), Error> {
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), namespace);
    let there = bindings.get_metadata_opt(account).await;
    if there.map_err(failed(format!("read RoleBinding {namespace}/{account}")))?.is_some() {
        return Ok(());
    }
    let binding = RoleBinding {
        metadata: ObjectMeta { name: Some(account.to_owned()), ..ObjectMeta::default() },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: role.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: account.to_owned(),
            namespace: Some(NAMESPACE.to_owned()),
            ..Subject::default()
        }]),
    };
    let bound = writer::apply(&bindings, MANAGER, &binding).await;
    bound.map(drop).map_err(failed(format!("bind {role} to {account} in {namespace}")))
}
