//! Joins the networks of two clusters: sends this cluster's NetworkConfig to each peer, answers
//! the peer's, and makes the TunnelEndpoint of both. Looks at one tenant namespace at a time.

use std::{collections::BTreeSet, sync::Arc};

use futures::{Stream, StreamExt as _, future, stream};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{
    Api, Resource, ResourceExt as _,
    api::ListParams,
    runtime::{Controller, controller::Action, reflector::Store, watcher},
};
use tombolo_api::{
    ClusterId,
    discovery::{ForeignCluster, ResourceRequest},
    names::{CLUSTER_ID_LABEL, GATEWAY_LEASE, NAMESPACE, TENANT_LABEL},
    net::{NetworkConfig, Subnets, TunnelEndpoint},
};
use tombolo_core::network::{Act, Gateway, Local, Seen, answer_to};
use tombolo_runtime::{
    controller,
    observe::{Observer, named},
    writer,
};
use tracing::{error, info};

use crate::{
    context::{Context, MANAGER},
    ipam::{AskError, Ipam},
    tunnel_endpoint,
};

/// Runs until the end is asked for.
pub async fn run(context: Arc<Context>, ipam: Ipam) {
    let tenants = watcher::Config::default().labels(&format!("{TENANT_LABEL}=true"));
    let namespaces = Api::<Namespace>::all(context.client.clone());
    let (mut observer, mut heartbeat) = (Observer::new(), Observer::new());
    let objects = Objects::follow(&context, &mut observer, &mut heartbeat);
    let moved = moves(objects.leases.clone(), heartbeat.changes());
    let shutdown = context.shutdown.clone();
    let network = Arc::new(Network { context, ipam, objects });
    let ready = async {
        observer.filled().await;
        heartbeat.filled().await;
        network.release_those_gone(&namespaces).await
    };
    match shutdown.or(ready).await {
        None => return,
        Some(Err(error)) => {
            error!("networks can't be joined: {}", controller::Chain(&error));
            return;
        }
        Some(Ok(())) => {}
    }
    let changes = stream::select(observer.changes(), moved);
    let controller = Controller::new(namespaces, tenants).reconcile_all_on(changes);
    controller::run("network", controller, reconcile, network, &shutdown).await;
}

/// What it takes to join networks.
pub(crate) struct Network {
    pub(crate) context: Arc<Context>,
    pub(crate) ipam: Ipam,
    objects: Objects,
}

/// One tenant namespace, and the cluster that it is for.
pub(crate) struct Tenant<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) peer: &'a ClusterId,
    pub(crate) local: Local,
    pub(crate) seen: Seen<'a>,
}

/// Something could not be done about a network. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{act} {namespace}/{name}")]
    Do { act: &'static str, namespace: String, name: String, source: Box<kube::Error> },
    #[error("choose what the networks of cluster {peer} are called here")]
    Choose { peer: ClusterId, source: AskError },
    #[error("the address service")]
    Ipam(#[from] AskError),
    #[error("find the tenant namespaces")]
    Tenants(#[source] Box<kube::Error>),
}

impl Error {
    pub(crate) fn failed(
        act: &'static str,
        namespace: &str,
        name: &str,
    ) -> impl FnOnce(kube::Error) -> Self + use<> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        move |source| Self::Do { act, namespace, name, source: Box::new(source) }
    }
}

async fn reconcile(namespace: Arc<Namespace>, network: Arc<Network>) -> Result<Action, Error> {
    let done = Ok(Action::await_change());
    let Some(peer) = peer_of(&namespace) else { return done };
    if namespace.meta().deletion_timestamp.is_some() {
        network.ipam.release(peer).await?;
        return done;
    }
    let name = namespace.name_any();
    let found = network.objects.of(&name, &peer);
    let tenant = Tenant {
        namespace: &name,
        peer: &peer,
        local: network.local().await?,
        seen: found.seen(&name),
    };
    network.send(&tenant).await?;
    let names = network.answer(&tenant).await?;
    tunnel_endpoint::reconcile(&network, &tenant, names.as_ref()).await?;
    done
}

impl Network {
    /// Frees what belongs to peers that are gone.
    async fn release_those_gone(&self, namespaces: &Api<Namespace>) -> Result<(), Error> {
        let tenants = ListParams::default().labels(&format!("{TENANT_LABEL}=true"));
        let tenants =
            namespaces.list(&tenants).await.map_err(|source| Error::Tenants(Box::new(source)))?;
        let peers: BTreeSet<_> = tenants.iter().filter_map(peer_of).collect();
        Ok(self.ipam.retain(peers).await?)
    }

    async fn local(&self) -> Result<Local, Error> {
        let settings = &self.context.settings;
        Ok(Local {
            cluster: settings.cluster(),
            pod_cidr: settings.pod_cidr,
            external_cidr: self.ipam.external_cidr().await?,
            gateway: self.objects.gateway(),
        })
    }

    /// Sends this cluster's NetworkConfig, or takes it back.
    async fn send(&self, tenant: &Tenant<'_>) -> Result<(), Error> {
        let configs = self.configs(tenant);
        match tenant.seen.own_config(&tenant.local, tenant.peer) {
            Act::Nothing => Ok(()),
            Act::Apply(config) => {
                let name = config.name_any();
                info!(peer = %tenant.peer, endpoint = %config.spec.endpoint_ip, "sending our network");
                writer::apply(&configs, MANAGER, &config).await.map(drop).map_err(Error::failed(
                    "apply NetworkConfig",
                    tenant.namespace,
                    &name,
                ))
            }
            Act::Delete(there) => {
                let name = there.name.clone().unwrap_or_default();
                info!(peer = %tenant.peer, "taking our network back: there is no peering");
                writer::delete_if_same(&configs, &name, there.uid.as_deref())
                    .await
                    .map_err(Error::failed("delete NetworkConfig", tenant.namespace, &name))
            }
        }
    }

    /// Answers the peer's NetworkConfig with what its networks are called here.
    async fn answer(&self, tenant: &Tenant<'_>) -> Result<Option<Subnets>, Error> {
        let Some(theirs) = tenant.seen.their_config(&tenant.local, tenant.peer) else {
            return Ok(None);
        };
        let (pods, external) = (theirs.spec.pod_cidr, theirs.spec.external_cidr);
        let names = match self.ipam.reserve(tenant.peer.clone(), pods, external).await {
            Ok(names) => names,
            Err(source) => {
                let note = source.to_string();
                self.context.events.warning(theirs, "NoNetworkFree", &note).await;
                return Err(Error::Choose { peer: tenant.peer.clone(), source });
            }
        };
        if let Some(status) = answer_to(theirs, &names) {
            let name = theirs.name_any();
            info!(
                peer = %tenant.peer,
                %pods,
                pods_here = %names.remote_nat_pod_cidr,
                %external,
                external_here = %names.remote_nat_external_cidr,
                "the peer's networks have their names"
            );
            writer::apply_status(&self.configs(tenant), MANAGER, &name, &status)
                .await
                .map_err(Error::failed("answer NetworkConfig", tenant.namespace, &name))?;
        }
        Ok(Some(names))
    }

    fn configs(&self, tenant: &Tenant<'_>) -> Api<NetworkConfig> {
        Api::namespaced(self.context.client.clone(), tenant.namespace)
    }
}

/// All that is watched.
struct Objects {
    clusters: Store<ForeignCluster>,
    requests: Store<ResourceRequest>,
    configs: Store<NetworkConfig>,
    endpoints: Store<TunnelEndpoint>,
    leases: Store<Lease>,
}

/// What of it is about one peer.
struct Found {
    cluster: Option<Arc<ForeignCluster>>,
    requests: Vec<Arc<ResourceRequest>>,
    configs: Vec<Arc<NetworkConfig>>,
    endpoints: Vec<Arc<TunnelEndpoint>>,
}

impl Objects {
    /// The Lease has an observer of its own: it is renewed all the time.
    fn follow(context: &Context, observer: &mut Observer, heartbeat: &mut Observer) -> Self {
        let (client, all) = (&context.client, watcher::Config::default);
        let leases = Api::namespaced(client.clone(), NAMESPACE);
        Self {
            clusters: observer.watch(Api::all(client.clone()), all()),
            requests: observer.watch(Api::all(client.clone()), all()),
            configs: observer.watch(Api::all(client.clone()), all()),
            endpoints: observer.watch(Api::all(client.clone()), all()),
            leases: heartbeat.watch(leases, named(GATEWAY_LEASE)),
        }
    }

    fn of(&self, namespace: &str, peer: &ClusterId) -> Found {
        let is_peer = |cluster: &ForeignCluster| {
            cluster.spec.cluster_identity.as_ref().is_some_and(|it| it.cluster_id == *peer)
        };
        Found {
            cluster: self.clusters.find(is_peer),
            requests: within(&self.requests, namespace),
            configs: within(&self.configs, namespace),
            endpoints: within(&self.endpoints, namespace),
        }
    }

    fn gateway(&self) -> Option<Gateway> {
        gateway(&self.leases)
    }
}

fn gateway(leases: &Store<Lease>) -> Option<Gateway> {
    leases.state().iter().find_map(|lease| Gateway::from_annotations(lease.annotations()))
}

/// Tells when the gateway is reached elsewhere. Its Lease is renewed all the time.
fn moves(
    leases: Store<Lease>,
    renewed: impl Stream<Item = ()> + Send + 'static,
) -> impl Stream<Item = ()> + Send + 'static {
    let mut before = None;
    renewed.filter_map(move |()| {
        let now = gateway(&leases);
        let is_new = now != before;
        before = now;
        future::ready(is_new.then_some(()))
    })
}

impl Found {
    fn seen<'a>(&'a self, namespace: &'a str) -> Seen<'a> {
        Seen {
            namespace,
            foreign_cluster: self.cluster.as_deref(),
            requests: self.requests.iter().map(AsRef::as_ref).collect(),
            configs: self.configs.iter().map(AsRef::as_ref).collect(),
            endpoints: self.endpoints.iter().map(AsRef::as_ref).collect(),
        }
    }
}

fn within<K>(store: &Store<K>, namespace: &str) -> Vec<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone,
{
    store.state_filter(|object| object.namespace().as_deref() == Some(namespace))
}

fn peer_of(namespace: &Namespace) -> Option<ClusterId> {
    namespace.labels().get(CLUSTER_ID_LABEL)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, channel::mpsc};
    use kube::runtime::{reflector, watcher::Event};
    use serde_json::json;
    use tombolo_api::names;

    use super::*;

    fn lease(endpoint: &str, renewed: u8) -> Lease {
        let annotations = json!({
            names::GATEWAY_ENDPOINT_ANNOTATION: endpoint,
            names::GATEWAY_PORT_ANNOTATION: "51840",
            names::GATEWAY_PUBLIC_KEY_ANNOTATION: "key",
        });
        let lease = json!({
            "metadata": { "name": GATEWAY_LEASE, "annotations": annotations },
            "spec": { "renewTime": format!("2026-01-01T00:00:{renewed:02}.000000Z") },
        });
        serde_json::from_value(lease).unwrap()
    }

    #[test]
    fn a_lease_that_is_only_renewed_is_no_news() {
        let (store, mut writer) = reflector::store();
        let (mut renewals, renewed) = mpsc::channel(1);
        let mut moves = Box::pin(moves(store, renewed));
        let mut heard = |lease| {
            writer.apply_watcher_event(&Event::Apply(lease));
            renewals.try_send(()).unwrap();
            moves.next().now_or_never().is_some()
        };
        assert!(heard(lease("172.30.0.11", 0)), "it is there");
        assert!(!heard(lease("172.30.0.11", 2)), "it is renewed");
        assert!(!heard(lease("172.30.0.11", 4)), "it is renewed again");
        assert!(heard(lease("172.30.0.12", 6)), "it is elsewhere");
    }
}
