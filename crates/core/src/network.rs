//! What the network between this cluster and a peer needs: which NetworkConfig to send, which
//! TunnelEndpoint to make of both, and what to tell people about it.

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
    translate::{Mismatch, NamedNetwork, nat},
    view::Request,
};

/// This cluster's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// This cluster.
    pub cluster: ClusterIdentity,
    /// Network of its pods.
    pub pod_cidr: Cidr,
    /// Its external network.
    pub external_cidr: Cidr,
    /// Its gateway, once it has announced itself.
    pub gateway: Option<Gateway>,
}

/// What there is in the tenant namespace of a peer, and the peer's ForeignCluster.
#[derive(Clone, Debug, Default)]
pub struct Seen<'a> {
    /// Name of the tenant namespace.
    pub namespace: &'a str,
    /// The peer, if it is known.
    pub foreign_cluster: Option<&'a ForeignCluster>,
    /// All requests.
    pub requests: Vec<Request<'a>>,
    /// All NetworkConfigs.
    pub configs: Vec<&'a NetworkConfig>,
    /// All TunnelEndpoints.
    pub endpoints: Vec<&'a TunnelEndpoint>,
}

/// What to do about an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Act<'a, T> {
    /// It is as it should be.
    Nothing,
    /// It should be so.
    Apply(T),
    /// It should not be there.
    Delete(&'a ObjectMeta),
}

impl<'a> Seen<'a> {
    /// What to do about this cluster's NetworkConfig for the peer.
    pub fn own_config(&self, local: &Local, peer: &ClusterId) -> Act<'a, NetworkConfig> {
        let there = self.configs.iter().copied().find(|config| goes_to(*config, peer));
        match there {
            Some(there) if is_going(there) => Act::Nothing,
            Some(there) if !self.wants_peering(peer) => Act::Delete(&there.metadata),
            there => {
                let may_send =
                    self.is_accepted(peer) && self.foreign_cluster.is_some_and(is_authenticated);
                if there.is_none() && !may_send {
                    return Act::Nothing;
                }
                let Some(gateway) = &local.gateway else { return Act::Nothing };
                let wanted = network_config(local, gateway, peer, self.namespace);
                if there.is_some_and(|there| there.spec == wanted.spec) {
                    return Act::Nothing;
                }
                Act::Apply(wanted)
            }
        }
    }

    /// The peer's NetworkConfig for this cluster.
    pub fn their_config(&self, local: &Local, peer: &ClusterId) -> Option<&'a NetworkConfig> {
        self.configs.iter().copied().find(|config| {
            comes_from(*config, peer)
                && config.spec.cluster_id == local.cluster.cluster_id
                && !is_going(*config)
        })
    }

    /// What the peer has said to this cluster's NetworkConfig. What it has said to an earlier one, with
    /// other networks, is nothing; a peer that does not say to which is taken at its word.
    pub fn answer(&self, peer: &ClusterId) -> Option<&'a NetworkConfigStatus> {
        let config = self.sent_config(peer)?;
        let status = config.status.as_ref()?;
        let is_of = |said: Option<Cidr>, sent: Cidr| said.is_none_or(|said| said == sent);
        let is_to_it = is_of(status.pod_cidr, config.spec.pod_cidr)
            && is_of(status.external_cidr, config.spec.external_cidr);
        (status.processed && is_to_it).then_some(status)
    }

    /// Whether there is nothing left that the peer's names are needed for.
    pub fn is_over(&self, local: &Local, peer: &ClusterId) -> bool {
        self.sent_config(peer).is_none() && self.their_config(local, peer).is_none()
    }

    /// What to do about the TunnelEndpoint, given what the peer's networks are called here, if it
    /// is to be reached.
    pub fn tunnel_endpoint(
        &self,
        local: &Local,
        peer: &ClusterId,
        names: Option<&Subnets>,
    ) -> Act<'a, TunnelEndpoint> {
        let there =
            self.endpoints.iter().copied().find(|endpoint| endpoint.spec.cluster_id == *peer);
        if there.is_some_and(is_going) {
            return Act::Nothing;
        }
        if let Some(there) = there
            && self.is_over(local, peer)
        {
            return Act::Delete(&there.metadata);
        }
        let (Some(theirs), Some(ours), Ok(Some([pods, external])), Some(names), Some(identity)) = (
            self.their_config(local, peer),
            self.sent_config(peer),
            self.named(peer),
            names,
            self.identity(),
        ) else {
            return Act::Nothing;
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
            // Only one per peer, also where the peer has another name by now.
            wanted.metadata.name = there.metadata.name.clone();
        }
        wanted.status = Some(TunnelEndpointStatus {
            local_pod_cidr: Some(pods.real()),
            local_external_cidr: Some(external.real()),
            local_nat_pod_cidr: Some(nat(pods.real(), pods.name())),
            local_nat_external_cidr: Some(nat(external.real(), external.name())),
            remote_nat_pod_cidr: Some(names.remote_nat_pod_cidr),
            remote_nat_external_cidr: Some(names.remote_nat_external_cidr),
            local_tunnel_public_ip: Some(ours.spec.endpoint_ip),
            remote_tunnel_public_ip: Some(theirs.spec.endpoint_ip),
            ..TunnelEndpointStatus::default()
        });
        if there.is_some_and(|there| is_same_endpoint(there, &wanted)) {
            return Act::Nothing;
        }
        Act::Apply(wanted)
    }

    /// The part of the ForeignCluster's status that is about the network, unless it says so
    /// already.
    pub fn foreign_cluster_status(
        &self,
        local: &Local,
        peer: &ClusterId,
        now: Timestamp,
    ) -> Option<ForeignClusterStatus> {
        // First of all it is said whether the cluster is known at all.
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
            mismatch: self.named(peer).err(),
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

    /// What the peer calls this cluster's pods' and external networks, once it has said so.
    fn named(&self, peer: &ClusterId) -> Result<Option<[NamedNetwork; 2]>, Mismatch> {
        let (Some(config), Some(answer)) = (self.sent_config(peer), self.answer(peer)) else {
            return Ok(None);
        };
        let (Some(pods), Some(external)) = (answer.pod_cidr_nat, answer.external_cidr_nat) else {
            return Ok(None);
        };
        Ok(Some([
            NamedNetwork::from_nat(config.spec.pod_cidr, pods)?,
            NamedNetwork::from_nat(config.spec.external_cidr, external)?,
        ]))
    }

    fn sent_config(&self, peer: &ClusterId) -> Option<&'a NetworkConfig> {
        self.configs.iter().copied().find(|config| goes_to(*config, peer) && !is_going(*config))
    }

    /// Whether this cluster has asked for a peering and was not refused, or has accepted one.
    fn wants_peering(&self, peer: &ClusterId) -> bool {
        let asked = |request: Request<'_>| {
            request.sent_to == Some(peer.as_str()) && request.state != RequestState::Refused
        };
        self.is_accepted(peer) || self.requests().any(asked)
    }

    /// Whether there is a peering that was accepted, here or there: the peer takes a NetworkConfig
    /// from then on.
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

/// What to answer to a peer's NetworkConfig, unless that is what it says already.
pub fn answer_to(config: &NetworkConfig, names: &Subnets) -> Option<NetworkConfigStatus> {
    let status = NetworkConfigStatus {
        processed: true,
        pod_cidr_nat: Some(names.remote_nat_pod_cidr),
        external_cidr_nat: Some(names.remote_nat_external_cidr),
        pod_cidr: Some(config.spec.pod_cidr),
        external_cidr: Some(config.spec.external_cidr),
    };
    (config.status.as_ref() != Some(&status)).then_some(status)
}

/// Whether the tunnel carries packets.
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

fn is_going<K: Resource>(object: &K) -> bool {
    object.meta().deletion_timestamp.is_some()
}

#[cfg(test)]
mod tests;
