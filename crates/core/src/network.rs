//! The network between this cluster and a peer: the NetworkConfig to send, the TunnelEndpoint that
//! follows from both NetworkConfigs, and the status of the ForeignCluster.

mod condition;
mod gateway;

use jiff::Timestamp;
use tombolo_api::{
    Cidr, ClusterId, ClusterIdentity, Reference,
    discovery::{ForeignCluster, ForeignClusterStatus, Network, Related, RequestState},
    names::REPLICATE_TO_LABEL,
    net::{
        BackendType, NetworkConfig, NetworkConfigSpec, NetworkConfigStatus, Subnets,
        TunnelEndpoint, TunnelEndpointSpec, TunnelEndpointStatus,
    },
};

use self::condition::tunnel_condition;
pub use self::gateway::Gateway;
use crate::{
    owner::belongs_to,
    translate::{CidrTranslation, Mismatch, nat},
    view::{Config, Endpoint, Peer, Request},
};

/// The network of this cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// This cluster.
    pub cluster: ClusterIdentity,
    /// Its PodCIDR.
    pub pod_cidr: Cidr,
    /// Its ExternalCIDR.
    pub external_cidr: Cidr,
    /// Its gateway, once announced in the Lease.
    pub gateway: Option<Gateway>,
}

impl Local {
    fn owns(&self, name: &str) -> bool {
        belongs_to(name, &self.cluster.cluster_name)
    }
}

/// The objects in the tenant namespace of a peer, and its ForeignCluster.
#[derive(Clone, Debug, Default)]
pub struct TenantState<'a> {
    /// Name of the tenant namespace.
    pub namespace: &'a str,
    /// The ForeignCluster of the peer, if it exists.
    pub foreign_cluster: Option<&'a ForeignCluster>,
    /// All requests.
    pub requests: Vec<Request<'a>>,
    /// All NetworkConfigs.
    pub configs: Vec<Config<'a>>,
    /// All TunnelEndpoints.
    pub endpoints: Vec<Endpoint<'a>>,
}

/// The next action for an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a, T> {
    /// It is up to date.
    None,
    /// Apply it.
    Apply(T),
    /// Delete it.
    Delete {
        /// Its name.
        name: &'a str,
        /// Its uid.
        uid: Option<&'a str>,
    },
}

impl<'a> TenantState<'a> {
    /// The next action for the NetworkConfig of this cluster to the peer.
    pub fn own_config(&self, local: &Local, peer: &ClusterId) -> Action<'a, NetworkConfig> {
        let there = self.configs.iter().find(|config| local.owns(config.name));
        match there {
            Some(there) if there.is_deleted => Action::None,
            Some(there) if !self.wants_peering(local) => {
                Action::Delete { name: there.name, uid: there.uid }
            }
            there => {
                let may_send = self.is_accepted()
                    && self
                        .foreign_cluster
                        .is_some_and(|it| Peer::from_resource(it).is_authenticated);
                if there.is_none() && !may_send {
                    return Action::None;
                }
                let Some(gateway) = &local.gateway else { return Action::None };
                let wanted = network_config(local, gateway, peer, self.namespace);
                if there.is_some_and(|there| *there.spec == wanted.spec) {
                    return Action::None;
                }
                Action::Apply(wanted)
            }
        }
    }

    /// The NetworkConfig of the peer to this cluster.
    pub fn their_config(&self, local: &Local) -> Option<Config<'a>> {
        self.configs.iter().copied().find(|config| {
            !local.owns(config.name)
                && config.spec.cluster_id == local.cluster.cluster_id
                && !config.is_deleted
        })
    }

    /// The peer's answer to this cluster's NetworkConfig. An answer to earlier CIDRs is ignored. An
    /// answer that does not name the CIDRs is taken as current.
    pub fn answer(&self, local: &Local) -> Option<&'a NetworkConfigStatus> {
        let status = self.sent_config(local)?.answer?;
        let is_same = |answered: Option<Cidr>, sent| answered.is_none_or(|cidr| cidr == sent);
        let is_current = is_same(status.pod_cidr, local.pod_cidr)
            && is_same(status.external_cidr, local.external_cidr);
        (status.processed && is_current).then_some(status)
    }

    /// Whether neither side has a NetworkConfig any more: the translated CIDRs can be freed.
    pub fn is_over(&self, local: &Local) -> bool {
        self.sent_config(local).is_none() && self.their_config(local).is_none()
    }

    /// The next action for the TunnelEndpoint. `subnets` has the translated CIDRs of the peer in
    /// this cluster, if they are allocated.
    pub fn tunnel_endpoint(
        &self,
        local: &Local,
        peer: &ClusterId,
        subnets: Option<&Subnets>,
    ) -> Action<'a, TunnelEndpoint> {
        let there = self.endpoint(peer);
        if there.is_some_and(|there| there.is_deleted) {
            return Action::None;
        }
        if let Some(there) = there
            && self.is_over(local)
        {
            return Action::Delete { name: there.name, uid: there.uid };
        }
        let (Some(theirs), Some(ours), Ok(Some([pods, external])), Some(subnets), Some(identity)) = (
            self.their_config(local),
            &local.gateway,
            self.own_translations(local),
            subnets,
            self.identity(),
        ) else {
            return Action::None;
        };
        let mut wanted = TunnelEndpoint::new(
            identity.cluster_name.as_str(),
            TunnelEndpointSpec {
                cluster_id: peer.clone(),
                pod_cidr: theirs.spec.pod_cidr,
                external_cidr: theirs.spec.external_cidr,
                endpoint_ip: theirs.spec.endpoint_ip,
                backend_type: theirs.spec.backend_type,
                backend_config: theirs.spec.backend_config.clone(),
            },
        );
        wanted.metadata.namespace = Some(self.namespace.to_owned());
        if let Some(there) = there {
            // A peer has one TunnelEndpoint, even if its cluster name has changed.
            wanted.metadata.name = Some(there.name.to_owned());
        }
        wanted.status = Some(TunnelEndpointStatus {
            local_pod_cidr: Some(pods.real()),
            local_external_cidr: Some(external.real()),
            local_nat_pod_cidr: Some(nat(pods.real(), pods.translated())),
            local_nat_external_cidr: Some(nat(external.real(), external.translated())),
            remote_nat_pod_cidr: Some(subnets.remote_nat_pod_cidr),
            remote_nat_external_cidr: Some(subnets.remote_nat_external_cidr),
            local_tunnel_public_ip: Some(ours.endpoint_ip),
            remote_tunnel_public_ip: Some(theirs.spec.endpoint_ip),
            ..TunnelEndpointStatus::default()
        });
        if there.is_some_and(|there| is_same_endpoint(&there, &wanted)) {
            return Action::None;
        }
        Action::Apply(wanted)
    }

    /// The network part of the ForeignCluster's status. `None` if it needs no change.
    pub fn foreign_cluster_status(
        &self,
        local: &Local,
        peer: &ClusterId,
        now: Timestamp,
    ) -> Option<ForeignClusterStatus> {
        // The first status is written by the controller of ForeignClusters.
        let before = self.foreign_cluster?.status.as_ref()?;
        let theirs = self.their_config(local);
        let ours = self.sent_config(local);
        let endpoint = self.endpoint(peer);
        let of_config =
            |config: Option<Config<'_>>| related(config.map(|it| (it.namespace, it.name)));
        let network = Network {
            local_network_config: Some(of_config(ours)),
            remote_network_config: Some(of_config(theirs)),
            tunnel_endpoint: Some(related(endpoint.map(|it| (it.namespace, it.name)))),
        };
        let state = condition::State {
            peer: &self.identity()?.cluster_name,
            wanted: self.wants_peering(local),
            accepted: self.is_accepted(),
            gateway: local.gateway.is_some(),
            sent: ours.is_some(),
            answered: self.answer(local).is_some(),
            received: theirs.is_some(),
            mismatch: self.own_translations(local).err(),
            connection: endpoint.map(|it| it.connection),
        };
        let condition = tunnel_condition(&state, before, now);
        let is_same =
            before.network.as_ref() == Some(&network) && before.conditions.contains(&condition);
        (!is_same).then(|| ForeignClusterStatus {
            network: Some(network),
            conditions: vec![condition],
            ..ForeignClusterStatus::default()
        })
    }

    /// The translations of this cluster's PodCIDR and ExternalCIDR in the peer, once answered.
    fn own_translations(&self, local: &Local) -> Result<Option<[CidrTranslation; 2]>, Mismatch> {
        let Some(answer) = self.answer(local) else { return Ok(None) };
        let (Some(pods), Some(external)) = (answer.pod_cidr_nat, answer.external_cidr_nat) else {
            return Ok(None);
        };
        Ok(Some([
            CidrTranslation::from_nat(local.pod_cidr, pods)?,
            CidrTranslation::from_nat(local.external_cidr, external)?,
        ]))
    }

    fn sent_config(&self, local: &Local) -> Option<Config<'a>> {
        self.configs.iter().copied().find(|config| local.owns(config.name) && !config.is_deleted)
    }

    fn endpoint(&self, peer: &ClusterId) -> Option<Endpoint<'a>> {
        self.endpoints.iter().copied().find(|endpoint| endpoint.spec.cluster_id == *peer)
    }

    /// Whether a request to the peer is not refused, or a request in either direction is accepted.
    fn wants_peering(&self, local: &Local) -> bool {
        let requested = |request: Request<'_>| {
            local.owns(request.name) && request.state != RequestState::Refused
        };
        self.is_accepted() || self.requests().any(requested)
    }

    /// Whether a request in either direction is accepted. From then on the peer accepts a
    /// NetworkConfig.
    fn is_accepted(&self) -> bool {
        self.requests().any(|request| request.state == RequestState::Accepted)
    }

    fn requests(&self) -> impl Iterator<Item = Request<'a>> {
        self.requests.iter().copied().filter(|request| !request.is_deleted)
    }

    fn identity(&self) -> Option<&'a ClusterIdentity> {
        self.foreign_cluster?.spec.cluster_identity.as_ref()
    }
}

/// The answer to the NetworkConfig of a peer. `None` if its status needs no change.
pub fn answer_to(config: &Config<'_>, subnets: &Subnets) -> Option<NetworkConfigStatus> {
    let status = NetworkConfigStatus {
        processed: true,
        pod_cidr_nat: Some(subnets.remote_nat_pod_cidr),
        external_cidr_nat: Some(subnets.remote_nat_external_cidr),
        pod_cidr: Some(config.spec.pod_cidr),
        external_cidr: Some(config.spec.external_cidr),
    };
    (config.answer != Some(&status)).then_some(status)
}

fn network_config(
    local: &Local,
    gateway: &Gateway,
    peer: &ClusterId,
    namespace: &str,
) -> NetworkConfig {
    let mut config = NetworkConfig::new(
        local.cluster.cluster_name.as_str(),
        NetworkConfigSpec {
            cluster_id: peer.clone(),
            pod_cidr: local.pod_cidr,
            external_cidr: local.external_cidr,
            endpoint_ip: gateway.endpoint_ip,
            backend_type: BackendType::Wireguard,
            backend_config: gateway.backend_config(),
        },
    );
    config.metadata.namespace = Some(namespace.to_owned());
    config.metadata.labels = Some([(REPLICATE_TO_LABEL.to_owned(), peer.to_string())].into());
    config
}

fn is_same_endpoint(there: &Endpoint<'_>, wanted: &TunnelEndpoint) -> bool {
    let networks = |status: Option<&TunnelEndpointStatus>| {
        status.cloned().map(|status| TunnelEndpointStatus {
            phase: None,
            connection: None,
            gateway_ip: None,
            tunnel_iface_index: None,
            tunnel_iface_name: None,
            veth_iface_index: None,
            veth_iface_name: None,
            ..status
        })
    };
    *there.spec == wanted.spec && networks(there.status) == networks(wanted.status.as_ref())
}

/// A reference to an object by its namespace and name.
fn related(object: Option<(&str, &str)>) -> Related {
    let reference = object.map(|(namespace, name)| Reference {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
    });
    Related { available: object.is_some(), reference }
}

#[cfg(test)]
mod tests;
