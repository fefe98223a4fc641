//! The tenant namespace with the objects of a peering: one for each peer, found by the peer's id.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use k8s_openapi::api::{
    core::v1::{Namespace, Secret},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, ObjectMeta, PostParams},
    core::{NamespaceResourceScope, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tombolo_api::{
    ClusterId, ClusterIdentity, ClusterName,
    discovery::{ForeignCluster, ResourceRequest},
    names::{
        AUTH_NAMESPACE, CONTROL_ACCOUNT, CONTROL_TENANT_ROLE, IDENTITY_SECRET,
        KEPT_UNTIL_ANNOTATION, KUBELET_ACCOUNT, KUBELET_TENANT_ROLE, NAMESPACE,
    },
    net::{NetworkConfig, TunnelEndpoint},
    sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    identity::{TenantUsers, record_name, tenant_namespaces},
    peering::{RequestOnUnpeer, request_on_unpeer},
    tenant::{self, peer_of},
    view::{Peer, Request},
};
use tombolo_runtime::writer;
use tracing::{debug, info};

use super::{Error, MANAGER, failed};
use crate::{
    binding::{Rights, binding},
    context::Context,
};

/// Time until the API server applies a new RoleBinding.
const RBAC_DELAY: Duration = Duration::from_millis(200);

/// A peer's tenant namespace.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub name: String,
    /// Whether it was created just now and is empty.
    pub is_new: bool,
}

/// The tenant namespace that was found, or a new one.
pub(crate) async fn get_or_create(
    client: &Client,
    peer: &ClusterIdentity,
    found: Option<Arc<Namespace>>,
) -> Result<Tenant, Error> {
    let (namespace, is_new) = match found {
        Some(namespace) => (namespace, false),
        None => create(client, peer).await?,
    };
    let name = namespace.name_any();
    if namespace.metadata.deletion_timestamp.is_some() {
        return Err(Error::Ending(name));
    }
    Ok(Tenant { name, is_new })
}

/// Binds the roles of this cluster's components in the namespace.
pub(crate) async fn bind_roles(client: &Client, tenant: &Tenant) -> Result<(), Error> {
    tokio::try_join!(bind_control(client, tenant), bind_kubelet(client, tenant)).map(drop)
}

/// Binds the role of the controllers.
pub(super) async fn bind_control(client: &Client, tenant: &Tenant) -> Result<(), Error> {
    bind(client, tenant, CONTROL_TENANT_ROLE, CONTROL_ACCOUNT).await
}

/// Binds the role of the virtual kubelets.
pub(super) async fn bind_kubelet(client: &Client, tenant: &Tenant) -> Result<(), Error> {
    bind(client, tenant, KUBELET_TENANT_ROLE, KUBELET_ACCOUNT).await
}

/// Retries a request that a new RoleBinding allows: the API server applies it a moment later, and
/// answers 403 until then.
pub(crate) async fn retry_forbidden<T, Attempt>(attempt: impl Fn() -> Attempt) -> kube::Result<T>
where
    Attempt: Future<Output = kube::Result<T>>,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match attempt().await {
            Err(kube::Error::Api(status)) if status.code == 403 && start.elapsed() < RBAC_DELAY => {
                sleep(pause).await;
                pause *= 2;
            }
            done => return done,
        }
    }
}

/// The peer's tenant namespace from the watch. It may lag: creating it finds an existing one.
pub(crate) async fn known(context: &Context, peer: &ClusterId) -> Option<Arc<Namespace>> {
    let namespaces = context.watches.of::<Namespace>();
    namespaces.synced().await;
    let is_it = |namespace: &Namespace| peer_of(namespace).as_ref() == Some(peer);
    let mut found = namespaces.index().state_filter(is_it);
    found.sort_by_key(|namespace| namespace.metadata.deletion_timestamp.is_some());
    found.into_iter().next()
}

/// The peer's tenant namespace, by a consistent read.
pub(crate) async fn find(client: &Client, peer: &ClusterId) -> Result<Option<Namespace>, Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let found = namespaces.list(&ListParams::default().labels(&tenant::selector(peer))).await;
    let mut found =
        found.map_err(failed(format!("list the tenant namespaces of cluster {peer}")))?.items;
    found.sort_by_key(|namespace| namespace.metadata.deletion_timestamp.is_some());
    Ok(found.into_iter().next())
}

/// Deletes the peer's tenant namespace unless it is needed.
pub(crate) async fn remove_unless_needed(
    client: &Client,
    namespace: &Namespace,
    peer: &ClusterId,
    us: &ClusterName,
) -> Result<(), Error> {
    let name = namespace.name_any();
    let entries = Api::<ForeignCluster>::all(client.clone());
    let entries =
        entries.list(&Default::default()).await.map_err(failed("list ForeignClusters"))?;
    let records = Api::<Secret>::namespaced(client.clone(), AUTH_NAMESPACE);
    let record = records.get_metadata_opt(&record_name(peer)).await;
    let record =
        record.map_err(failed(format!("read Secret {AUTH_NAMESPACE}/{}", record_name(peer))))?;
    let secrets = Api::<Secret>::namespaced(client.clone(), &name);
    let identity = secrets.get_metadata_opt(IDENTITY_SECRET).await;
    // A deleted entry may have recorded that its identity is retained.
    let namespaces = Api::<Namespace>::all(client.clone());
    let current = namespaces.get_metadata_opt(&name).await;
    let current = current.map_err(failed(format!("read Namespace {name}")))?;
    let is_retained = |namespace: &PartialObjectMeta<Namespace>| {
        namespace.annotations().contains_key(KEPT_UNTIL_ANNOTATION)
    };
    let entries = entries.iter().map(Peer::from_resource);
    let users = TenantUsers {
        entries: entries.filter(|entry| entry.id() == Some(peer)).collect(),
        record: record.as_ref().map(|record| &record.metadata),
        identity: identity
            .map_err(failed(format!("read Secret {name}/{IDENTITY_SECRET}")))?
            .is_some(),
        retained: current.as_ref().is_some_and(is_retained),
        peering: has_peering(client, &name, us).await?,
    };
    if users.need_namespace() {
        return Ok(());
    }
    let gone = writer::delete_if_same(&namespaces, &name, namespace.uid().as_deref()).await;
    gone.map_err(failed(format!("delete Namespace {name}")))
}

/// Whether the namespace has objects of a peering. Refused requests do not count.
pub(crate) async fn has_peering(
    client: &Client,
    namespace: &str,
    us: &ClusterName,
) -> Result<bool, Error> {
    let requests = Api::<ResourceRequest>::namespaced(client.clone(), namespace);
    let requests = requests
        .list(&Default::default())
        .await
        .map_err(failed(format!("list ResourceRequests in {namespace}")))?;
    let mut requests = requests.iter().map(Request::from_resource);
    Ok(requests.any(|request| request_on_unpeer(&request, us) != RequestOnUnpeer::Leave)
        || has::<ResourceOffer>(client, namespace, "").await?
        || has::<NetworkConfig>(client, namespace, "").await?
        || has::<TunnelEndpoint>(client, namespace, "").await?
        || has::<NamespaceMap>(client, namespace, "").await?)
}

/// Whether this cluster still uses resources of the other one.
pub(crate) async fn has_borrowed(
    client: &Client,
    namespace: &str,
    us: &ClusterName,
) -> Result<bool, Error> {
    Ok(has::<ResourceOffer>(client, namespace, &format!("metadata.name!={us}")).await?
        || has::<NamespaceMap>(client, namespace, &format!("metadata.name={us}")).await?)
}

/// Whether there is an object that the field selector selects.
async fn has<K>(client: &Client, namespace: &str, fields: &str) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let found = api.list_metadata(&ListParams::default().fields(fields).limit(1)).await;
    let found = found.map_err(failed(format!("list objects in {namespace}")))?;
    if let Some(object) = found.iter().next() {
        debug!(namespace, kind = %K::kind(&()), name = object.name_any(), "object of the peering still exists");
    }
    Ok(!found.items.is_empty())
}

/// Creates the namespace under the first free name. Returns whether it did not exist before.
async fn create(client: &Client, peer: &ClusterIdentity) -> Result<(Arc<Namespace>, bool), Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let mut labels = BTreeMap::from(tenant::labels(&peer.cluster_id));
    labels.insert("app.kubernetes.io/part-of".to_owned(), "liqo".to_owned());
    let named = |name: &str| Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let [first, second, last] = tenant_namespaces(peer);
    for name in [first, second] {
        match namespaces.create(&params, &named(&name)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // It may be the peer's, created just now for the other direction.
                if let Some(namespace) = find(client, &peer.cluster_id).await? {
                    return Ok((Arc::new(namespace), false));
                }
            }
            result => return created(peer, &name, result),
        }
    }
    let result = namespaces.create(&params, &named(&last)).await;
    created(peer, &last, result)
}

fn created(
    peer: &ClusterIdentity,
    name: &str,
    result: kube::Result<Namespace>,
) -> Result<(Arc<Namespace>, bool), Error> {
    let namespace = result.map_err(failed(format!("create Namespace {name}")))?;
    info!(namespace = name, cluster = %peer.cluster_id, "created the tenant namespace");
    Ok((Arc::new(namespace), true))
}

async fn bind(
    client: &Client,
    Tenant { name: namespace, is_new }: &Tenant,
    role: &str,
    account: &str,
) -> Result<(), Error> {
    let bindings = Api::<RoleBinding>::namespaced(client.clone(), namespace);
    let read = failed(format!("read RoleBinding {namespace}/{account}"));
    if !is_new && bindings.get_metadata_opt(account).await.map_err(read)?.is_some() {
        return Ok(());
    }
    let binding = binding(account, Rights::ClusterRole(role), (account, NAMESPACE));
    let bound = writer::apply(&bindings, MANAGER, &binding).await;
    bound.map(drop).map_err(failed(format!("bind {role} to {account} in {namespace}")))
}
