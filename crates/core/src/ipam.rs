//! The addresses of this cluster's peers and of what is reflected to them: which networks are
//! taken, what each peer's networks are called here, and which addresses of the external network
//! stand for endpoints that are no pods of this cluster.

mod endpoints;
mod external;
mod mapping_owner;
mod names;
mod parts;
mod pool;
mod subnets;

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use kube::ResourceExt as _;
use tombolo_api::{
    Cidr, ClusterId,
    net::{IpamStorage, NatMapping, Subnets},
};

use self::{
    external::{External, Rest},
    mapping_owner::Owners,
    names::RestingNames,
    pool::Taken,
};
pub use self::{
    external::{PART_SIZE, REST},
    mapping_owner::{MappingOwner, NotAnOwner},
    parts::{Changes, NETWORKS, NotAPart, Part, Told, WRITER},
    pool::{node_network, pools},
};
use crate::translate::{ExternalIp, Mismatch, NamedNetwork, Networks, NotInNetwork};

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
    /// Size of the external network, as it is for IPv4, if it is not to be chosen.
    pub external_prefix: Option<u8>,
}

/// Everything the address service knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpamState {
    config: Config,
    clusters: BTreeMap<ClusterId, Subnets>,
    /// What peers were called until a while ago.
    names: RestingNames,
    external: External,
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
    #[error(
        "the external network {network} is full: reflect fewer endpoints that are not pods. \
         {resting} of its addresses rest after their last use, the first for {first} s more"
    )]
    ExternalFull {
        /// The network.
        network: Cidr,
        /// How many addresses will be free again.
        resting: usize,
        /// Seconds until the first of them is.
        first: i64,
    },
    /// There is no room for the names of more owners.
    #[error("{0} clients have asked for the address of this endpoint already: no more can")]
    TooManyOwners(usize),
    /// Addresses would not keep their host part.
    #[error(transparent)]
    WrongSize(#[from] Mismatch),
    /// What stands for an endpoint is no address of the external network.
    #[error(transparent)]
    NotExternal(#[from] NotInNetwork),
    /// No network of that size is free.
    #[error(
        "no network of the size of {wanted} is free in {pools}: add one to \
         spec.network.additionalPools of the ClusterConfig{wait}",
        pools = list(.pools),
        wait = or_wait(*.resting, *.first)
    )]
    NoRoom {
        /// The network to remap.
        wanted: Cidr,
        /// Where it was looked for.
        pools: Vec<Cidr>,
        /// How many names of peers that are gone will be free again.
        resting: usize,
        /// Seconds until the first of them is.
        first: i64,
    },
    /// The peer has changed its networks over and over.
    #[error(
        "cluster {peer} has changed its networks too often: {resting} names that it had rest, the \
         first for {first} s more"
    )]
    TooManyNames {
        /// The peer.
        peer: ClusterId,
        /// How many of its names rest.
        resting: usize,
        /// Seconds until the first of them has.
        first: i64,
    },
    /// The address is one of a peer that is gone, or is called otherwise now.
    #[error(
        "{ip} is nobody's any more: {name} was a network of cluster {peer}, and rests for {left} s \
         more"
    )]
    PeerGone {
        /// The address.
        ip: IpAddr,
        /// The network that it is in.
        name: Cidr,
        /// Who had it.
        peer: ClusterId,
        /// Seconds until another peer may have it.
        left: i64,
    },
}

impl IpamState {
    /// The state that was stored. What can't be right any more, because the cluster's own
    /// networks are others now or somebody edited it, is left out: its peering makes it anew.
    pub fn load(
        config: Config,
        storages: &[IpamStorage],
        mappings: &[NatMapping],
        now: Timestamp,
    ) -> Result<Self, IpamError> {
        let networks = storages.iter().find(|storage| storage.name_any() == NETWORKS);
        let subnets = parts::subnets(storages);
        let stored = networks.and_then(|storage| storage.spec.external_cidr);
        let is_alone = subnets.is_empty();
        let external_cidr = match stored {
            Some(cidr) if pool::is_external(cidr, &config, is_alone) => cidr,
            Some(cidr) if pool::is_external(cidr, &config, false) => {
                pool::choose_external(&config).unwrap_or(cidr)
            }
            _ => pool::choose_external(&config)?,
        };
        let stored_pods = networks.and_then(|storage| storage.spec.pod_cidr);
        let is_of_us = stored_pods.is_none_or(|pods| pods == config.pod_cidr)
            && stored.is_none_or(|external| external == external_cidr);
        let mut ipam = Self {
            config,
            clusters: BTreeMap::new(),
            names: RestingNames::default(),
            external: External::new(external_cidr),
            changes: Changes::default(),
        };
        for (part, spec) in parts::found(storages) {
            if let Part::Networks(cluster) = part {
                ipam.names.restore(&cluster, spec, now);
            }
        }
        for (cluster, subnets) in subnets {
            ipam.restore_subnets(cluster, subnets, is_of_us, now);
        }
        ipam.restore_endpoints(storages, now);
        ipam.changes = ipam.differences(storages, mappings);
        Ok(ipam)
    }

    /// What was stored about endpoints. Those for clusters that are gone, and of those that are, begin
    /// to rest.
    fn restore_endpoints(&mut self, storages: &[IpamStorage], now: Timestamp) {
        let parts = parts::found(storages);
        let latest = external::rested(now);
        let mut resting = Vec::new();
        for (part, spec) in parts {
            for (ip, mapping) in &spec.endpoint_mappings {
                let known = mapping.cluster_mappings.iter();
                let known = known.filter(|(cluster, _)| self.clusters.contains_key(*cluster));
                let known = known.map(|(cluster, of)| (cluster.clone(), Owners::restore(of)));
                let clusters: Vec<_> = known.collect();
                if clusters.is_empty() {
                    let rest = Rest { until: latest, after: part.cluster().clone() };
                    resting.push((*ip, ExternalIp(mapping.ip), rest));
                }
                self.external.restore(*ip, ExternalIp(mapping.ip), clusters);
            }
            for (external, rests) in &spec.resting {
                let until = rests.until.0.min(latest);
                let rest = Rest { until, after: part.cluster().clone() };
                resting.push((rests.ip, ExternalIp(*external), rest));
            }
        }
        for (ip, external, rest) in resting {
            self.external.restore_resting(ip, external, rest);
        }
        let names: Vec<_> = self.names.all().map(|(_, name, _)| name).collect();
        names.into_iter().for_each(|name| self.leave(name, now));
    }

    /// Other settings: they count for what is chosen from now on. A peer's network whose name is
    /// reserved now gets another one when it is reserved the next time.
    pub fn configure(&mut self, config: Config) -> Result<(), IpamError> {
        let before = self.networks_storage();
        self.config = config;
        let settled = self.settle_external();
        self.changes.networks |= self.networks_storage() != before;
        settled
    }

    /// Chooses another external network where this one can't be it any more.
    fn settle_external(&mut self) -> Result<(), IpamError> {
        let is_alone = self.clusters.is_empty();
        if !pool::is_external(self.external_cidr(), &self.config, is_alone) {
            self.move_external(pool::choose_external(&self.config)?);
        }
        Ok(())
    }

    /// Nobody uses the external network: what rests in it does so in the new one, where it is there.
    fn move_external(&mut self, network: Cidr) {
        self.changes.networks = true;
        let before = std::mem::replace(&mut self.external, External::new(network));
        for (part, external, given) in before.all() {
            self.changes.parts.insert(part);
            if let Some(rest) = &given.rest {
                self.external.restore_resting(given.ip, external, rest.clone());
            }
        }
    }

    /// What was given from outside.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The network from which endpoints that are no pods get their addresses.
    pub fn external_cidr(&self) -> Cidr {
        self.external.network()
    }

    /// The networks of and for a peer.
    pub fn subnets(&self, cluster: &ClusterId) -> Option<&Subnets> {
        self.clusters.get(cluster)
    }

    /// The peers that have networks here.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.clusters.keys()
    }

    /// So many may be asked for before what has changed is written.
    pub fn expect(&mut self, count: usize) {
        self.external.expect(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// The objects that have to be written since the last time. They are written before anything
    /// else is asked for.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = std::mem::take(&mut self.changes);
        changes.told.extend(changes.parts.iter().filter_map(Part::told));
        changes
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
            local_external: NamedNetwork::from_nat(self.external_cidr(), external)?,
            remote_pods: NamedNetwork::from_nat(remote_pod, subnets.remote_nat_pod_cidr)?,
            remote_external: NamedNetwork::from_nat(
                remote_external,
                subnets.remote_nat_external_cidr,
            )?,
        })
    }

    /// Everything that a name for a network of this peer must not overlap.
    fn taken(&self, for_peer: &ClusterId, now: Timestamp) -> Taken {
        let own = [self.config.pod_cidr, self.config.service_cidr, self.external_cidr()];
        let mut taken = Taken::new(&own, &self.config.reserved);
        for (_, subnets) in self.clusters.iter().filter(|(cluster, _)| *cluster != for_peer) {
            taken.extend(subnets.translated_pod_cidr());
            taken.extend(subnets.translated_external_cidr());
        }
        taken.rest(self.names.of_others(for_peer, now));
        taken
    }
}

fn list(cidrs: &[Cidr]) -> String {
    let texts: Vec<_> = cidrs.iter().map(Cidr::to_string).collect();
    texts.join(", ")
}

fn or_wait(names: usize, first: i64) -> String {
    match names {
        0 => String::new(),
        _ => format!(
            ", or wait: {names} names of peers that are gone rest, the first for {first} s more"
        ),
    }
}

#[cfg(test)]
mod tests;
