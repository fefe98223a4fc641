//! Gets to know other clusters: asks the auth service that a ForeignCluster names who it is, gets
//! an identity there, and keeps it fresh.

mod auth_service;
mod authenticate;
mod ending;
mod incoming;
mod stored;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{
        Controller,
        controller::Action,
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use tombolo_api::{
    discovery::{
        AuthStatus, ForeignCluster, ForeignClusterStatus, ResourceRequest, TenantNamespace,
        condition::AUTHENTICATED,
    },
    names::{AUTH_TOKEN_LABEL, CLUSTER_ID_LABEL, FINALIZER, NAMESPACE},
    net::{NetworkConfig, TunnelEndpoint},
    sharing::ResourceOffer,
    virtualkubelet::NamespaceMap,
};
use tombolo_core::condition::{find, now_is};
use tombolo_runtime::{controller, finalizer, writer};

use crate::{context::Context, identity::failed};

const MANAGER: &str = "liqo-control/foreign_cluster";

/// A refusal may be over when somebody over there has changed something.
const ASK_AGAIN: Duration = Duration::from_secs(30);

/// What is waited for at the end may be in a namespace that the entry never got to know.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Runs until the end is asked for.
pub async fn run(context: Arc<Context>) {
    let client = &context.client;
    let clusters = Api::<ForeignCluster>::all(client.clone());
    let tokens = Api::<Secret>::namespaced(client.clone(), NAMESPACE);
    let controller = Controller::new(clusters, watcher::Config::default());
    let store = controller.store();
    let known = store.clone();
    let of_token = move |secret: Secret| with_id(&known, secret.labels().get(CLUSTER_ID_LABEL));
    let labelled = watcher::Config::default().labels(AUTH_TOKEN_LABEL);
    let controller = controller.watches(tokens, labelled, of_token);
    let controller = watch_tenants::<ResourceRequest>(controller, client, &store);
    let controller = watch_tenants::<ResourceOffer>(controller, client, &store);
    let controller = watch_tenants::<NetworkConfig>(controller, client, &store);
    let controller = watch_tenants::<TunnelEndpoint>(controller, client, &store);
    let controller = watch_tenants::<NamespaceMap>(controller, client, &store);
    let state = Arc::new(Clusters { context: context.clone(), known: store });
    tokio::join!(
        incoming::run(context.clone()),
        controller::run("foreign-cluster", controller, reconcile, state, &context.shutdown)
    );
}

/// What is shared by all entries.
pub(crate) struct Clusters {
    context: Arc<Context>,
    known: Store<ForeignCluster>,
}

impl Clusters {
    fn all(&self) -> Vec<ForeignCluster> {
        self.known.state().iter().map(|entry| (**entry).clone()).collect()
    }
}

/// Something stands in the way of an identity.
#[derive(Debug, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct Setback {
    status: AuthStatus,
    reason: &'static str,
    message: String,
    /// Whether it may help to try again soon.
    soon: bool,
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Step(#[from] crate::identity::Error),
    #[error(transparent)]
    Setback(#[from] Setback),
}

/// What has been reached.
struct Authenticated {
    tenant: TenantNamespace,
    server: String,
    renew_at: Timestamp,
}

async fn reconcile(entry: Arc<ForeignCluster>, state: Arc<Clusters>) -> Result<Action, Error> {
    let client = &state.context.client;
    let clusters = Api::<ForeignCluster>::all(client.clone());
    if entry.metadata.deletion_timestamp.is_some() {
        if !ending::is_done(&state.context, &entry).await? {
            return Ok(Action::requeue(LOOK_AGAIN));
        }
        finalizer::remove(&clusters, &entry, FINALIZER)
            .await
            .map_err(failed(format!("let go of ForeignCluster {}", entry.name_any())))?;
        return Ok(Action::await_change());
    }
    if incoming::is_over(&state.context, &entry).await? {
        writer::delete_if_same(&clusters, &entry.name_any(), entry.uid().as_deref())
            .await
            .map_err(failed(format!("delete ForeignCluster {}", entry.name_any())))?;
        return Ok(Action::await_change());
    }
    finalizer::add(&clusters, &entry, FINALIZER)
        .await
        .map_err(failed(format!("keep ForeignCluster {}", entry.name_any())))?;

    match authenticate::run(&state, &entry).await {
        Ok(reached) => {
            let remote = reached.tenant.remote.as_deref().unwrap_or_default();
            let message = format!("{} has given an identity in {remote}", reached.server);
            report(
                &state,
                &entry,
                AuthStatus::Accepted,
                Some(&reached.tenant),
                "Accepted",
                &message,
            )
            .await?;
            let left = reached.renew_at.duration_since(Timestamp::now());
            Ok(Action::requeue(left.try_into().unwrap_or_default()))
        }
        Err(Error::Setback(setback)) => {
            report(&state, &entry, setback.status, None, setback.reason, &setback.message).await?;
            if setback.soon { Err(setback.into()) } else { Ok(Action::requeue(ASK_AGAIN)) }
        }
        Err(error) => Err(error),
    }
}

/// Writes the status, and an event when something else is the matter than before.
async fn report(
    state: &Clusters,
    entry: &ForeignCluster,
    auth_status: AuthStatus,
    tenant: Option<&TenantNamespace>,
    reason: &str,
    message: &str,
) -> Result<(), Error> {
    let before = entry.status.clone().unwrap_or_default();
    let accepted = auth_status == AuthStatus::Accepted;
    let condition =
        now_is(&before.conditions, AUTHENTICATED, accepted, reason, message, Timestamp::now());
    let status = ForeignClusterStatus {
        auth_status: Some(auth_status),
        tenant_namespace: tenant.cloned().or(before.tenant_namespace.clone()),
        conditions: vec![condition],
        ..ForeignClusterStatus::default()
    };
    let was = find(&before.conditions, AUTHENTICATED);
    if was == status.conditions.first()
        && before.auth_status == status.auth_status
        && before.tenant_namespace == status.tenant_namespace
    {
        return Ok(());
    }
    let clusters = Api::<ForeignCluster>::all(state.context.client.clone());
    let name = entry.name_any();
    writer::apply_status(&clusters, MANAGER, &name, &status)
        .await
        .map_err(failed(format!("write the status of ForeignCluster {name}")))?;
    if was.is_none_or(|was| was.reason != reason) {
        let events = &state.context.events;
        if accepted {
            events.normal(entry, reason, message).await;
        } else {
            events.warning(entry, reason, message).await;
        }
    }
    Ok(())
}

/// The entries for a cluster id.
fn with_id(known: &Store<ForeignCluster>, id: Option<&String>) -> Vec<ObjectRef<ForeignCluster>> {
    let is_it = |entry: &&Arc<ForeignCluster>| {
        let identity = entry.spec.cluster_identity.as_ref();
        identity
            .is_some_and(|identity| Some(identity.cluster_id.as_str()) == id.map(String::as_str))
    };
    known.state().iter().filter(is_it).map(|entry| ObjectRef::from_obj(&**entry)).collect()
}

/// What happens in a tenant namespace concerns the entry whose namespace it is.
fn watch_tenants<K>(
    controller: Controller<ForeignCluster>,
    client: &kube::Client,
    known: &Store<ForeignCluster>,
) -> Controller<ForeignCluster>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
    K: serde::de::DeserializeOwned,
{
    let known = known.clone();
    let api = Api::<PartialObjectMeta<K>>::all(client.clone());
    controller.watches(api, watcher::Config::default(), move |object| {
        let namespace = object.metadata.namespace;
        let is_it = |entry: &&Arc<ForeignCluster>| {
            let tenant = entry.status.as_ref().and_then(|status| status.tenant_namespace.as_ref());
            tenant.is_some_and(|tenant| tenant.local.is_some() && tenant.local == namespace)
        };
        let state = known.state();
        state.iter().filter(is_it).map(|entry| ObjectRef::from_obj(&**entry)).collect::<Vec<_>>()
    })
}
