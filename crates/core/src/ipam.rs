//! The addresses of this cluster's peers and of what is reflected to them: which networks are
//! taken, what each peer's networks are called here, and which addresses of the external network
//! stand for endpoints that are no pods of this cluster.

mod endpoints;
mod pool;
mod shards;
mod subnets;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use tombolo_api::{
    Cidr, ClusterId,
    net::{IpamStorage, NatMapping, Subnets},
};

use self::{endpoints::Endpoints, pool::Taken};
pub use self::{
    pool::{node_network, pools},
    shards::{Changes, MappingShard, StorageShard},
};
use crate::translate::{Mismatch, NamedNetwork, Networks, NotInNetwork, overlap};

/// What is given from outside: it is read anew at every start, and may change later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Network of this cluster's pods.
    pub pod_cidr: Cidr,
    /// Network of this cluster's services.
    pub service_cidr: Cidr,
    /// Networks to take from, in this order.
    pub pools: Vec<Cidr>,
    /// Networks that no peer's network may be called by, such as those of the nodes.
    pub reserved: Vec<Cidr>,
}

/// Everything the address service knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ipam {
    config: Config,
    external_cidr: Cidr,
    clusters: BTreeMap<ClusterId, Subnets>,
    endpoints: Endpoints,
    changes: Changes,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// There is no peering with that cluster.
    #[error(
        "cluster {0} has no networks here: is there a peering with it (kubectl get \
         foreignclusters) and a NetworkConfig from it?"
    )]
    UnknownCluster(ClusterId),
    /// The peering is on its way.
    #[error("cluster {0} has not said yet what it calls this cluster's networks: try again")]
    NameUnknown(ClusterId),
    /// Nothing was mapped.
    #[error("{ip} has no address for pods of cluster {cluster}: MapEndpointIP gives it one")]
    NotMapped {
        /// The endpoint.
        ip: IpAddr,
        /// Where it would be used.
        cluster: ClusterId,
    },
    /// Only pods have an address here.
    #[error("{ip} is not a pod of cluster {cluster}, whose pods are in {pods}")]
    NotAPodThere {
        /// The address.
        ip: IpAddr,
        /// The cluster that it should be in.
        cluster: ClusterId,
        /// The network of that cluster's pods.
        pods: Cidr,
    },
    /// Nobody can be reached there.
    #[error("{ip} can't be the address of an endpoint: {why}")]
    NotAnEndpoint {
        /// The address.
        ip: IpAddr,
        /// What it is.
        why: &'static str,
    },
    /// All addresses are in use.
    #[error("the external network {0} is full: reflect fewer endpoints that are not pods")]
    ExternalFull(Cidr),
    /// Addresses would not keep their host part.
    #[error(transparent)]
    WrongSize(#[from] Mismatch),
    /// What stands for an endpoint is no address of the external network.
    #[error(transparent)]
    NotExternal(#[from] NotInNetwork),
    /// No network of that size is free.
    #[error(
        "no network of the size of {wanted} is free in {pools}: add one to \
         spec.network.additionalPools of the ClusterConfig",
        pools = list(.pools)
    )]
    NoRoom {
        /// The network to remap.
        wanted: Cidr,
        /// Where it was looked for.
        pools: Vec<Cidr>,
    },
}

impl Ipam {
    /// The state that was stored. What can't be right any more, because the cluster's own
    /// networks are others now or somebody edited it, is left out: its peering makes it anew.
    pub fn load(
        config: Config,
        storages: &[IpamStorage],
        mappings: &[NatMapping],
    ) -> Result<Self, IpamError> {
        let stored_external = storages.iter().find_map(|storage| storage.spec.external_cidr);
        let external_cidr = match stored_external {
            Some(cidr) if is_apart(cidr, &[config.pod_cidr, config.service_cidr]) => cidr,
            _ => pool::choose_external(&config)?,
        };
        let mut ipam = Self {
            config,
            external_cidr,
            clusters: BTreeMap::new(),
            endpoints: Endpoints::new(external_cidr),
            changes: Changes::default(),
        };
        for (cluster, subnets) in storages.iter().flat_map(|storage| &storage.spec.cluster_subnets)
        {
            ipam.restore_subnets(cluster, subnets);
        }
        for (ip, mapping) in storages.iter().flat_map(|storage| &storage.spec.endpoint_mappings) {
            let known = |cluster: &&ClusterId| ipam.clusters.contains_key(*cluster);
            let clusters = mapping.cluster_mappings.keys().filter(known).cloned().collect();
            ipam.endpoints.restore(*ip, mapping.ip, clusters);
        }
        ipam.changes = ipam.differences(storages, mappings);
        Ok(ipam)
    }

    /// Other settings: they count for what is chosen from now on.
    pub fn configure(&mut self, config: Config) {
        let before = self.storage(StorageShard::Networks);
        self.config = config;
        if self.storage(StorageShard::Networks) != before {
            self.changes.storage.insert(StorageShard::Networks);
        }
    }

    /// What was given from outside.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The network from which endpoints that are no pods get their addresses.
    pub fn external_cidr(&self) -> Cidr {
        self.external_cidr
    }

    /// The networks of and for a peer.
    pub fn subnets(&self, cluster: &ClusterId) -> Option<&Subnets> {
        self.clusters.get(cluster)
    }

    /// The peers that have networks here.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.clusters.keys()
    }

    /// The objects that have to be written since the last time.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    fn networks(&self, cluster: &ClusterId) -> Result<Networks, IpamError> {
        let unknown = || IpamError::UnknownCluster(cluster.clone());
        let subnets = self.clusters.get(cluster).ok_or_else(unknown)?;
        let (Some(remote_pod), Some(remote_external)) =
            (subnets.remote_pod_cidr, subnets.remote_external_cidr)
        else {
            return Err(unknown());
        };
        let (Some(pods), Some(external)) =
            (subnets.local_nat_pod_cidr, subnets.local_nat_external_cidr)
        else {
            return Err(IpamError::NameUnknown(cluster.clone()));
        };
        Ok(Networks {
            local_pods: NamedNetwork::from_nat(self.config.pod_cidr, pods)?,
            local_external: NamedNetwork::from_nat(self.external_cidr, external)?,
            remote_pods: NamedNetwork::from_nat(remote_pod, subnets.remote_nat_pod_cidr)?,
            remote_external: NamedNetwork::from_nat(
                remote_external,
                subnets.remote_nat_external_cidr,
            )?,
        })
    }

    /// Everything that a new name for a network must not overlap.
    fn taken(&self) -> Taken {
        let own = [self.config.pod_cidr, self.config.service_cidr, self.external_cidr];
        let mut taken = Taken::new(&own, &self.config.reserved);
        for subnets in self.clusters.values() {
            taken.extend(subnets.our_name_for_pods());
            taken.extend(subnets.our_name_for_external());
        }
        taken
    }
}

fn is_apart(cidr: Cidr, others: &[Cidr]) -> bool {
    !others.iter().any(|other| overlap(cidr, *other))
}

fn list(cidrs: &[Cidr]) -> String {
    let texts: Vec<_> = cidrs.iter().map(Cidr::to_string).collect();
    texts.join(", ")
}

type Clusters = BTreeSet<ClusterId>;

#[cfg(test)]
mod tests;
