//! Connects the networks of two clusters: sends this cluster's NetworkConfig to each peer, writes
//! the status of the peer's, and creates the TunnelEndpoint from both. Keys are tenant namespaces.

use std::sync::Arc;

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Namespace};
use kube::{Api, ResourceExt as _, runtime::reflector::Store};
use tokio::sync::watch;
use tombolo_api::{
    ClusterId,
    discovery::{ForeignCluster, ResourceRequest},
    names::{GATEWAY_LEASE, NAMESPACE},
    net::{NetworkConfig, Subnets, TunnelEndpoint},
};
use tombolo_core::{
    network::{Action, Gateway, Local, TenantState, answer_to},
    tenant::peer_of,
    view::{Config, Endpoint, Peer, Request},
};
use tombolo_runtime::{
    observe::{Watched, Watches, named},
    queue::{self, Queue, queue},
    writer,
};
use tracing::info;

use crate::{
    context::{Context, MANAGER},
    ipam::{AddressService, AskError},
    object_error::{ObjectError, failed},
    tunnel_endpoint,
};

/// Runs until shutdown.
pub async fn run(context: Arc<Context>, ipam: AddressService) {
    let (queue, receiver) = queue();
    let leases = Api::namespaced(context.client.clone(), NAMESPACE);
    let leases = Watched::new(leases, named(GATEWAY_LEASE));
    let objects = Objects::new(&context.watches, leases);
    objects.enqueue(&queue);
    let configured = objects.enqueue_all_on(&queue, ipam.configured());
    let shutdown = context.shutdown.clone();
    let network = Network { context, ipam, objects };
    let work = queue::run("network", receiver, async |name: String| {
        network.objects.synced().await;
        network.reconcile(&name).await
    });
    shutdown.or(async { tokio::join!(work, configured) }).await;
}

/// The controller: its clients and watched objects.
pub(crate) struct Network {
    pub(crate) context: Arc<Context>,
    pub(crate) ipam: AddressService,
    objects: Objects,
}

/// A tenant namespace and its peer.
pub(crate) struct Tenant<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) peer: &'a ClusterId,
    pub(crate) local: Local,
    pub(crate) seen: TenantState<'a>,
}

/// A network could not be reconciled. It is retried.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("reserve translated CIDRs for cluster {peer}")]
    Reserve { peer: ClusterId, source: AskError },
    #[error("call the address service")]
    Ipam(#[from] AskError),
}

impl Network {
    async fn reconcile(&self, name: &str) -> Result<(), Error> {
        let namespace = self.objects.namespaces.get("", name);
        let namespace = namespace.filter(|it| it.metadata.deletion_timestamp.is_none());
        let Some(peer) = namespace.as_deref().and_then(peer_of) else {
            return self.release_gone_peers().await;
        };
        let found = self.objects.of(name, &peer);
        let tenant = Tenant {
            namespace: name,
            peer: &peer,
            local: self.local().await?,
            seen: found.seen(name),
        };
        self.send(&tenant).await?;
        let names = self.answer(&tenant).await?;
        tunnel_endpoint::reconcile(self, &tenant, names.as_ref()).await
    }

    /// Releases the CIDRs and addresses of peers that are gone.
    async fn release_gone_peers(&self) -> Result<(), Error> {
        let namespaces = self.objects.namespaces.all();
        let stays = namespaces.iter().filter(|it| it.metadata.deletion_timestamp.is_none());
        let peers = stays.filter_map(|namespace| peer_of(namespace)).collect();
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

    /// Sends this cluster's NetworkConfig, or deletes it after the end of the peering.
    async fn send(&self, tenant: &Tenant<'_>) -> Result<(), ObjectError> {
        let configs = self.configs(tenant);
        match tenant.seen.own_config(&tenant.local, tenant.peer) {
            Action::None => Ok(()),
            Action::Apply(config) => {
                let name = config.name_any();
                let endpoint = &config.spec.endpoint_ip;
                info!(peer = %tenant.peer, %endpoint, "sending the NetworkConfig");
                let applied = writer::apply(&configs, MANAGER, &config).await;
                applied.map(drop).map_err(failed("apply NetworkConfig", tenant.namespace, &name))
            }
            Action::Delete { name, uid } => {
                info!(peer = %tenant.peer, "deleting the NetworkConfig: the peering has ended");
                let deleted = writer::delete_if_same(&configs, name, uid).await;
                deleted.map_err(failed("delete NetworkConfig", tenant.namespace, name))
            }
        }
    }

    /// Writes the translated CIDRs of the peer into the status of its NetworkConfig.
    async fn answer(&self, tenant: &Tenant<'_>) -> Result<Option<Subnets>, Error> {
        let Some(theirs) = tenant.seen.their_config(&tenant.local) else {
            return Ok(None);
        };
        let (pods, external) = (theirs.spec.pod_cidr, theirs.spec.external_cidr);
        let names = match self.ipam.reserve(tenant.peer.clone(), pods, external).await {
            Ok(names) => names,
            Err(source) => {
                let note = source.to_string();
                if let Some(config) = self.objects.configs.get(tenant.namespace, theirs.name) {
                    self.context.events.warning(&*config, "NoFreeCIDR", &note).await;
                }
                return Err(Error::Reserve { peer: tenant.peer.clone(), source });
            }
        };
        if let Some(status) = answer_to(&theirs, &names) {
            let name = theirs.name;
            info!(
                peer = %tenant.peer,
                %pods,
                translated_pods = %names.remote_nat_pod_cidr,
                %external,
                translated_external = %names.remote_nat_external_cidr,
                "reserved translated CIDRs for the peer"
            );
            writer::apply_status(&self.configs(tenant), MANAGER, name, &status)
                .await
                .map_err(failed("write the status of NetworkConfig", tenant.namespace, name))?;
        }
        Ok(Some(names))
    }

    fn configs(&self, tenant: &Tenant<'_>) -> Api<NetworkConfig> {
        Api::namespaced(self.context.client.clone(), tenant.namespace)
    }
}

/// The watched objects.
struct Objects {
    namespaces: Arc<Watched<Namespace>>,
    clusters: Arc<Watched<ForeignCluster>>,
    requests: Arc<Watched<ResourceRequest>>,
    configs: Arc<Watched<NetworkConfig>>,
    endpoints: Arc<Watched<TunnelEndpoint>>,
    leases: Watched<Lease>,
}

/// The objects of one peer.
struct Found {
    cluster: Option<Arc<ForeignCluster>>,
    requests: Vec<Arc<ResourceRequest>>,
    configs: Vec<Arc<NetworkConfig>>,
    endpoints: Vec<Arc<TunnelEndpoint>>,
}

impl Objects {
    fn new(watches: &Watches, leases: Watched<Lease>) -> Self {
        Self {
            namespaces: watches.of(),
            clusters: watches.of(),
            requests: watches.of(),
            configs: watches.of(),
            endpoints: watches.of(),
            leases,
        }
    }

    /// Enqueues the tenant namespaces of changed objects. The empty key at the start releases the
    /// CIDRs of peers that were removed while no controller ran.
    fn enqueue(&self, queue: &Queue<String>) {
        queue.enqueue(String::new());
        self.namespaces
            .enqueue(queue, |namespace| peer_of(namespace).map(|_| namespace.name_any()));
        self.requests.enqueue(queue, kube::ResourceExt::namespace);
        self.configs.enqueue(queue, kube::ResourceExt::namespace);
        self.endpoints.enqueue(queue, kube::ResourceExt::namespace);
        let namespaces = self.namespaces.clone();
        self.clusters.enqueue(queue, move |cluster| {
            let id = Peer::from_resource(cluster).id();
            tenants(&namespaces, |peer| Some(peer) == id)
        });
        let (namespaces, queue, mut before) = (self.namespaces.clone(), queue.clone(), None);
        self.leases.notify(move |_, leases| {
            let now = gateway(leases);
            if is_new(&mut before, now) {
                tenants(&namespaces, |_| true).into_iter().for_each(|name| queue.enqueue(name));
            }
        });
    }

    /// Enqueues all tenant namespaces when the configuration changes: reserved CIDRs may collide.
    fn enqueue_all_on(
        &self,
        queue: &Queue<String>,
        mut configured: watch::Receiver<()>,
    ) -> impl Future<Output = ()> + use<> {
        let (namespaces, queue) = (self.namespaces.clone(), queue.clone());
        async move {
            while configured.changed().await.is_ok() {
                tenants(&namespaces, |_| true).into_iter().for_each(|name| queue.enqueue(name));
            }
        }
    }

    async fn synced(&self) {
        tokio::join!(
            self.namespaces.synced(),
            self.clusters.synced(),
            self.requests.synced(),
            self.configs.synced(),
            self.endpoints.synced(),
            self.leases.synced(),
        );
    }

    fn of(&self, namespace: &str, peer: &ClusterId) -> Found {
        Found {
            cluster: self
                .clusters
                .index()
                .find(|cluster| Peer::from_resource(cluster).id() == Some(peer)),
            requests: self.requests.within(namespace),
            configs: self.configs.within(namespace),
            endpoints: self.endpoints.within(namespace),
        }
    }

    fn gateway(&self) -> Option<Gateway> {
        gateway(self.leases.index())
    }
}

/// The tenant namespaces of some peers.
fn tenants(namespaces: &Watched<Namespace>, of: impl Fn(&ClusterId) -> bool) -> Vec<String> {
    let is_of = |namespace: &Namespace| peer_of(namespace).is_some_and(|peer| of(&peer));
    let found = namespaces.index().state_filter(is_of);
    found.iter().map(|namespace| namespace.name_any()).collect()
}

fn gateway(leases: &Store<Lease>) -> Option<Gateway> {
    leases.state().iter().find_map(|lease| Gateway::from_annotations(lease.annotations()))
}

/// Whether the endpoint of the gateway has changed. Its Lease changes at every renewal.
fn is_new(before: &mut Option<Gateway>, now: Option<Gateway>) -> bool {
    let is_new = now != *before;
    *before = now;
    is_new
}

impl Found {
    fn seen<'a>(&'a self, namespace: &'a str) -> TenantState<'a> {
        TenantState {
            namespace,
            foreign_cluster: self.cluster.as_deref(),
            requests: self.requests.iter().map(|it| Request::from_resource(it)).collect(),
            configs: self.configs.iter().map(|it| Config::from_resource(it)).collect(),
            endpoints: self.endpoints.iter().map(|it| Endpoint::from_resource(it)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tombolo_api::names;

    use super::*;

    fn at(endpoint: &str) -> Option<Gateway> {
        let annotations = [
            (names::GATEWAY_ENDPOINT_ANNOTATION, endpoint),
            (names::GATEWAY_PORT_ANNOTATION, "51840"),
            (names::GATEWAY_PUBLIC_KEY_ANNOTATION, "key"),
        ];
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let annotations: BTreeMap<_, _> = annotations.map(owned).into();
        let gateway = Gateway::from_annotations(&annotations);
        assert!(gateway.is_some());
        gateway
    }

    #[test]
    fn a_renewed_lease_is_no_change_of_the_gateway() {
        let mut before = None;
        assert!(is_new(&mut before, at("172.30.0.11")), "it appeared");
        assert!(!is_new(&mut before, at("172.30.0.11")), "it was renewed");
        assert!(is_new(&mut before, at("172.30.0.12")), "its endpoint changed");
        assert!(is_new(&mut before, None), "it is gone");
    }
}
