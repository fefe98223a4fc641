//! The network between this cluster and a peer: the NetworkConfig to send, the TunnelEndpoint that
//! follows from both NetworkConfigs, and the status of the ForeignCluster.

mod condition;
mod gateway;

use jiff::Timestamp;
use kube::{Resource, ResourceExt as _, core::ObjectMeta};
use tombolo_api::{
    Cidr, ClusterId, ClusterIdentity, Reference,
    discovery::{ForeignCluster, ForeignClusterStatus, Network, Related, RequestState},
    names::REPLICATE_TO_LABEL,
    net::{
        BackendType, ConnectionStatus, NetworkConfig, NetworkConfigSpec, NetworkConfigStatus,
        Subnets, TunnelEndpoint, TunnelEndpointSpec, TunnelEndpointStatus,
    },
};

use self::condition::tunnel_condition;
pub use self::gateway::Gateway;
use crate::{
    peering::is_authenticated,
    replicate::{comes_from, goes_to},
    translate::{CidrTranslation, Mismatch, nat},
    view::Request,
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
    pub configs: Vec<&'a NetworkConfig>,
    /// All TunnelEndpoints.
    pub endpoints: Vec<&'a TunnelEndpoint>,
}

/// The next action for an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Action<'a, T> {
    /// It is up to date.
    None,
    /// Apply it.
    Apply(T),
    /// Delete it.
    Delete(&'a ObjectMeta),
}

impl<'a> TenantState<'a> {
    /// The next action for the NetworkConfig of this cluster to the peer.
    pub fn own_config(&self, local: &Local, peer: &ClusterId) -> Action<'a, NetworkConfig> {
        let there = self.configs.iter().copied().find(|config| goes_to(*config, peer));
        match there {
            Some(there) if is_terminating(there) => Action::None,
            Some(there) if !self.wants_peering(peer) => Action::Delete(&there.metadata),
            there => {
                let may_send =
                    self.is_accepted(peer) && self.foreign_cluster.is_some_and(is_authenticated);
                if there.is_none() && !may_send {
                    return Action::None;
                }
                let Some(gateway) = &local.gateway else { return Action::None };
                let wanted = network_config(local, gateway, peer, self.namespace);
                if there.is_some_and(|there| there.spec == wanted.spec) {
                    return Action::None;
                }
                Action::Apply(wanted)
            }
        }
    }

    /// The NetworkConfig of the peer to this cluster.
    pub fn their_config(&self, local: &Local, peer: &ClusterId) -> Option<&'a NetworkConfig> {
        self.configs.iter().copied().find(|config| {
            comes_from(*config, peer)
                && config.spec.cluster_id == local.cluster.cluster_id
                && !is_terminating(*config)
        })
    }

    /// The peer's answer to this cluster's NetworkConfig. An answer to earlier CIDRs is ignored. An
    /// answer that does not name the CIDRs is taken as current.
    pub fn answer(&self, peer: &ClusterId) -> Option<&'a NetworkConfigStatus> {
        let config = self.sent_config(peer)?;
        let status = config.status.as_ref()?;
        let is_same = |answered: Option<Cidr>, sent| answered.is_none_or(|cidr| cidr == sent);
        let is_current = is_same(status.pod_cidr, config.spec.pod_cidr)
            && is_same(status.external_cidr, config.spec.external_cidr);
        (status.processed && is_current).then_some(status)
    }

    /// Whether neither side has a NetworkConfig any more: the translated CIDRs can be freed.
    pub fn is_over(&self, local: &Local, peer: &ClusterId) -> bool {
        self.sent_config(peer).is_none() && self.their_config(local, peer).is_none()
    }

    /// The next action for the TunnelEndpoint. `subnets` has the translated CIDRs of the peer in
    /// this cluster, if they are allocated.
    pub fn tunnel_endpoint(
        &self,
        local: &Local,
        peer: &ClusterId,
        subnets: Option<&Subnets>,
    ) -> Action<'a, TunnelEndpoint> {
        let there =
            self.endpoints.iter().copied().find(|endpoint| endpoint.spec.cluster_id == *peer);
        if there.is_some_and(is_terminating) {
            return Action::None;
        }
        if let Some(there) = there
            && self.is_over(local, peer)
        {
            return Action::Delete(&there.metadata);
        }
        let (Some(theirs), Some(ours), Ok(Some([pods, external])), Some(subnets), Some(identity)) = (
            self.their_config(local, peer),
            self.sent_config(peer),
            self.own_translations(peer),
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
            wanted.metadata.name = there.metadata.name.clone();
        }
        wanted.status = Some(TunnelEndpointStatus {
            local_pod_cidr: Some(pods.real()),
            local_external_cidr: Some(external.real()),
            local_nat_pod_cidr: Some(nat(pods.real(), pods.translated())),
            local_nat_external_cidr: Some(nat(external.real(), external.translated())),
            remote_nat_pod_cidr: Some(subnets.remote_nat_pod_cidr),
            remote_nat_external_cidr: Some(subnets.remote_nat_external_cidr),
            local_tunnel_public_ip: Some(ours.spec.endpoint_ip),
            remote_tunnel_public_ip: Some(theirs.spec.endpoint_ip),
            ..TunnelEndpointStatus::default()
        });
        if there.is_some_and(|there| is_same_endpoint(there, &wanted)) {
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
        let theirs = self.their_config(local, peer);
        let endpoint = self.endpoints.iter().copied().find(|it| it.spec.cluster_id == *peer);
        let network = Network {
            local_network_config: Some(related(self.sent_config(peer))),
            remote_network_config: Some(related(theirs)),
            tunnel_endpoint: Some(related(endpoint)),
        };
        let state = condition::State {
            peer: &self.identity()?.cluster_name,
            wanted: self.wants_peering(peer),
            accepted: self.is_accepted(peer),
            gateway: local.gateway.is_some(),
            sent: self.sent_config(peer).is_some(),
            answered: self.answer(peer).is_some(),
            received: theirs.is_some(),
            mismatch: self.own_translations(peer).err(),
            connection: endpoint.map(|it| it.status.as_ref()?.connection.as_ref()),
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
    fn own_translations(&self, peer: &ClusterId) -> Result<Option<[CidrTranslation; 2]>, Mismatch> {
        let (Some(config), Some(answer)) = (self.sent_config(peer), self.answer(peer)) else {
            return Ok(None);
        };
        let (Some(pods), Some(external)) = (answer.pod_cidr_nat, answer.external_cidr_nat) else {
            return Ok(None);
        };
        Ok(Some([
            CidrTranslation::from_nat(config.spec.pod_cidr, pods)?,
            CidrTranslation::from_nat(config.spec.external_cidr, external)?,
        ]))
    }

    fn sent_config(&self, peer: &ClusterId) -> Option<&'a NetworkConfig> {
        self.configs
            .iter()
            .copied()
            .find(|config| goes_to(*config, peer) && !is_terminating(*config))
    }

    /// Whether a request to the peer is not refused, or a request in either direction is accepted.
    fn wants_peering(&self, peer: &ClusterId) -> bool {
        let requested = |request: Request<'_>| {
            request.sent_to == Some(peer.as_str()) && request.state != RequestState::Refused
        };
        self.is_accepted(peer) || self.requests().any(requested)
    }

    /// Whether a request in either direction is accepted. From then on the peer accepts a
    /// NetworkConfig.
    fn is_accepted(&self, peer: &ClusterId) -> bool {
        let peer = Some(peer.as_str());
        self.requests().any(|request| {
            (request.sent_to == peer || request.received_from == peer)
                && request.state == RequestState::Accepted
        })
    }

    fn requests(&self) -> impl Iterator<Item = Request<'a>> {
        self.requests.iter().copied().filter(|request| !request.is_deleted)
    }

    fn identity(&self) -> Option<&'a ClusterIdentity> {
        self.foreign_cluster?.spec.cluster_identity.as_ref()
    }
}

/// The answer to the NetworkConfig of a peer. `None` if its status needs no change.
pub fn answer_to(config: &NetworkConfig, subnets: &Subnets) -> Option<NetworkConfigStatus> {
    let status = NetworkConfigStatus {
        processed: true,
        pod_cidr_nat: Some(subnets.remote_nat_pod_cidr),
        external_cidr_nat: Some(subnets.remote_nat_external_cidr),
        pod_cidr: Some(config.spec.pod_cidr),
        external_cidr: Some(config.spec.external_cidr),
    };
    (config.status.as_ref() != Some(&status)).then_some(status)
}

/// Whether the tunnel is connected.
pub fn is_connected(endpoint: &TunnelEndpoint) -> bool {
    let connection = endpoint.status.as_ref().and_then(|status| status.connection.as_ref());
    connection.is_some_and(|it| it.status == Some(ConnectionStatus::Connected))
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

fn is_same_endpoint(there: &TunnelEndpoint, wanted: &TunnelEndpoint) -> bool {
    let networks = |endpoint: &TunnelEndpoint| {
        endpoint.status.clone().map(|status| TunnelEndpointStatus {
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
    there.spec == wanted.spec && networks(there) == networks(wanted)
}

fn related<K: Resource>(object: Option<&K>) -> Related {
    Related {
        available: object.is_some(),
        reference: object.map(|object| Reference {
            name: object.name_any(),
            namespace: object.namespace().unwrap_or_default(),
        }),
    }
}

fn is_terminating<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
