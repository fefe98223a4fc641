//! The namespace that holds what a peering needs: one for each peer, found by the peer's id.

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
        KEPT_UNTIL_ANNOTATION, KUBELET_ACCOUNT, KUBELET_TENANT_ROLE, NAMESPACE, REPLICATE_TO_LABEL,
        REPLICATED_FROM_LABEL,
    },
    net::{NetworkConfig, TunnelEndpoint},
    sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    identity::{Users, record_name, tenant_namespaces},
    peering::{RequestOnUnpeer, request_on_unpeer},
    tenant::{self, id_of, peer_of},
    view::Request,
};
use tombolo_runtime::writer;
use tracing::{debug, info};

use super::{Error, MANAGER, failed};
use crate::{
    binding::{Rights, binding},
    context::Context,
};

/// How long the API server may take to heed what was made just now.
const HEEDED_WITHIN: Duration = Duration::from_millis(200);

/// A peer's namespace.
#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub name: String,
    /// Whether it was made just now, so that nothing can be in it.
    pub is_new: bool,
}

/// The peer's namespace, which is made if none was found.
pub(crate) async fn place(
    client: &Client,
    peer: &ClusterIdentity,
    found: Option<Arc<Namespace>>,
) -> Result<Tenant, Error> {
    let (namespace, is_new) = match found {
        Some(namespace) => (namespace, false),
        None => make(client, peer).await?,
    };
    let name = namespace.name_any();
    if namespace.metadata.deletion_timestamp.is_some() {
        return Err(Error::Ending(name));
    }
    Ok(Tenant { name, is_new })
}

/// Gives those of this cluster who work in the namespace the rights to do that.
pub(crate) async fn equip(client: &Client, tenant: &Tenant) -> Result<(), Error> {
    tokio::try_join!(equip_control(client, tenant), equip_kubelet(client, tenant)).map(drop)
}

/// The controllers, which make all that is in it.
pub(super) async fn equip_control(client: &Client, tenant: &Tenant) -> Result<(), Error> {
    bind(client, tenant, CONTROL_TENANT_ROLE, CONTROL_ACCOUNT).await
}

/// The virtual kubelets.
pub(super) async fn equip_kubelet(client: &Client, tenant: &Tenant) -> Result<(), Error> {
    bind(client, tenant, KUBELET_TENANT_ROLE, KUBELET_ACCOUNT).await
}

/// Does what only a binding that was made just now allows: the API server hears of it a moment
/// later, and says no until then.
pub(crate) async fn once_allowed<T, Attempt>(attempt: impl Fn() -> Attempt) -> kube::Result<T>
where
    Attempt: Future<Output = kube::Result<T>>,
{
    let start = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        match attempt().await {
            Err(kube::Error::Api(status))
                if status.code == 403 && start.elapsed() < HEEDED_WITHIN =>
            {
                sleep(pause).await;
                pause *= 2;
            }
            done => return done,
        }
    }
}

/// The peer's namespace, as it was a moment ago. Whoever makes it then finds it if it is there.
pub(crate) async fn known(context: &Context, peer: &ClusterId) -> Option<Arc<Namespace>> {
    let namespaces = context.watches.of::<Namespace>();
    namespaces.filled().await;
    let is_it = |namespace: &Namespace| peer_of(namespace).as_ref() == Some(peer);
    let mut found = namespaces.index().state_filter(is_it);
    found.sort_by_key(|namespace| namespace.metadata.deletion_timestamp.is_some());
    found.into_iter().next()
}

/// The peer's namespace. Takes some time: the API server makes sure that it has heard of everything.
pub(crate) async fn find(client: &Client, peer: &ClusterId) -> Result<Option<Namespace>, Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let found = namespaces.list(&ListParams::default().labels(&tenant::selector(peer))).await;
    let mut found = found.map_err(failed("find the tenant namespace"))?.items;
    found.sort_by_key(|namespace| namespace.metadata.deletion_timestamp.is_some());
    Ok(found.into_iter().next())
}

/// Deletes the peer's namespace, with all that is in it, unless somebody needs it.
pub(crate) async fn remove_unless_needed(
    client: &Client,
    namespace: &Namespace,
    peer: &ClusterId,
    us: &ClusterName,
) -> Result<(), Error> {
    let name = namespace.name_any();
    let entries = Api::<ForeignCluster>::all(client.clone());
    let entries = entries.list(&Default::default()).await.map_err(failed("list the clusters"))?;
    let records = Api::<Secret>::namespaced(client.clone(), AUTH_NAMESPACE);
    let record = records.get_metadata_opt(&record_name(peer)).await;
    let record = record.map_err(failed("look for the cluster's own identity"))?;
    let secrets = Api::<Secret>::namespaced(client.clone(), &name);
    let identity = secrets.get_metadata_opt(IDENTITY_SECRET).await;
    // An entry that is not there any more may have noted at its end that the identity is kept.
    let namespaces = Api::<Namespace>::all(client.clone());
    let noted = namespaces.get_metadata_opt(&name).await.map_err(failed("read the namespace"))?;
    let is_kept = |noted: &PartialObjectMeta<Namespace>| {
        noted.annotations().contains_key(KEPT_UNTIL_ANNOTATION)
    };
    let users = Users {
        entries: entries.iter().filter(|entry| id_of(entry) == Some(peer)).collect(),
        record: record.as_ref().map(|record| &record.metadata),
        identity: identity.map_err(failed("look for the identity there"))?.is_some(),
        kept: noted.as_ref().is_some_and(is_kept),
        peering: has_peering(client, &name, us).await?,
    };
    if users.need_it() {
        return Ok(());
    }
    let gone = writer::delete_if_same(&namespaces, &name, namespace.uid().as_deref()).await;
    gone.map_err(failed(format!("delete the namespace {name}")))
}

/// Whether anything of a peering is in the namespace. What was refused is none.
pub(crate) async fn has_peering(
    client: &Client,
    namespace: &str,
    us: &ClusterName,
) -> Result<bool, Error> {
    let requests = Api::<ResourceRequest>::namespaced(client.clone(), namespace);
    let requests = requests.list(&Default::default()).await.map_err(failed("list the requests"))?;
    let mut requests = requests.iter().map(Request::from_resource);
    Ok(requests.any(|request| request_on_unpeer(&request, us) != RequestOnUnpeer::Leave)
        || has::<ResourceOffer>(client, namespace, "").await?
        || has::<NetworkConfig>(client, namespace, "").await?
        || has::<TunnelEndpoint>(client, namespace, "").await?
        || has::<NamespaceMap>(client, namespace, "").await?)
}

/// Whether this cluster still has something of what the other one lends.
pub(crate) async fn has_borrowed(client: &Client, namespace: &str) -> Result<bool, Error> {
    Ok(has::<ResourceOffer>(client, namespace, REPLICATED_FROM_LABEL).await?
        || has::<NamespaceMap>(client, namespace, REPLICATE_TO_LABEL).await?)
}

async fn has<K>(client: &Client, namespace: &str, label: &str) -> Result<bool, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    K: Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::namespaced(client.clone(), namespace);
    let found = api.list_metadata(&ListParams::default().labels(label).limit(1)).await;
    let found = found.map_err(failed(format!("list what is in {namespace}")))?;
    if let Some(object) = found.iter().next() {
        debug!(namespace, kind = %K::kind(&()), name = object.name_any(), "still there");
    }
    Ok(!found.items.is_empty())
}

/// Makes one, by the first name for it that nobody else has. Says whether it was not there before.
async fn make(client: &Client, peer: &ClusterIdentity) -> Result<(Arc<Namespace>, bool), Error> {
    let namespaces = Api::<Namespace>::all(client.clone());
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    let mut labels = BTreeMap::from(tenant::labels(&peer.cluster_id));
    labels.insert("app.kubernetes.io/part-of".to_owned(), "liqo".to_owned());
    let called = |name: &str| Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels.clone()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    let [first, second, last] = tenant_namespaces(peer);
    for name in [first, second] {
        match namespaces.create(&params, &called(&name)).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                // It may be the peer's, made for the other direction just now.
                if let Some(namespace) = find(client, &peer.cluster_id).await? {
                    return Ok((Arc::new(namespace), false));
                }
            }
            made => return made_just_now(peer, &name, made),
        }
    }
    let made = namespaces.create(&params, &called(&last)).await;
    made_just_now(peer, &last, made)
}

fn made_just_now(
    peer: &ClusterIdentity,
    name: &str,
    made: kube::Result<Namespace>,
) -> Result<(Arc<Namespace>, bool), Error> {
    let made = made.map_err(failed(format!("make the namespace {name}")))?;
    info!(namespace = name, cluster = %peer.cluster_id, "made the tenant namespace");
    Ok((Arc::new(made), true))
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
