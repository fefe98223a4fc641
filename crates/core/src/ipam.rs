//! Address management: which CIDRs are in use, the translated CIDRs of each peer, and the addresses
//! of the ExternalCIDR that are allocated to reflected endpoints that are not pods of this cluster.

mod cidr_quarantine;
mod endpoints;
mod external;
mod mapping_owner;
mod pool;
mod shards;
mod subnets;

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use kube::ResourceExt as _;
use tombolo_api::{
    Cidr, ClusterId,
    net::{IpamStorage, NatMapping, Subnets},
};

use self::{
    cidr_quarantine::CidrQuarantine,
    external::{ExternalAllocator, Quarantine},
    mapping_owner::Owners,
    pool::Taken,
};
pub use self::{
    external::{QUARANTINE, SHARD_SIZE},
    mapping_owner::{MappingOwner, NotAnOwner},
    pool::{node_network, pools},
    shards::{Changes, NETWORKS, NatMappingShard, NotAShard, StorageShard, WRITER},
};
use crate::translate::{CidrTranslation, ExternalIp, Mismatch, Networks, NotInNetwork};

/// Settings from outside. They are read at every start and may change later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// This cluster's PodCIDR.
    pub pod_cidr: Cidr,
    /// This cluster's ServiceCIDR.
    pub service_cidr: Cidr,
    /// Pools to allocate CIDRs from, in this order.
    pub pools: Vec<Cidr>,
    /// CIDRs that are never allocated, such as the networks of the nodes.
    pub reserved: Vec<Cidr>,
    /// Prefix length of the ExternalCIDR, in IPv4 terms; chosen automatically if unset.
    pub external_prefix: Option<u8>,
}

/// The state of the address service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpamState {
    config: Config,
    clusters: BTreeMap<ClusterId, Subnets>,
    quarantine: CidrQuarantine,
    external: ExternalAllocator,
    changes: Changes,
}

/// Why a request fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IpamError {
    /// There is no peering with that cluster.
    #[error(
        "the networks of cluster {0} are unknown: check that there is a peering with it (kubectl \
         get foreignclusters) and a NetworkConfig from it"
    )]
    UnknownCluster(ClusterId),
    /// The peer has not answered this cluster's NetworkConfig yet.
    #[error("cluster {0} has not reported its translated CIDRs for this cluster yet: try again")]
    LocalTranslationUnknown(ClusterId),
    /// The endpoint has no mapping for that cluster.
    #[error("{ip} is not mapped for cluster {cluster}: call MapEndpointIP first")]
    NotMapped {
        /// The endpoint.
        ip: IpAddr,
        /// The cluster that would use the mapping.
        cluster: ClusterId,
    },
    /// Only addresses of the peer's PodCIDR can be translated.
    #[error("{ip} is not in the PodCIDR {pods} of cluster {cluster}")]
    NotAPodThere {
        /// The address.
        ip: IpAddr,
        /// The peer.
        cluster: ClusterId,
        /// The peer's PodCIDR.
        pods: Cidr,
    },
    /// The address can't be reached from another cluster.
    #[error("{ip} can't be the address of an endpoint: {why}")]
    NotAnEndpoint {
        /// The address.
        ip: IpAddr,
        /// The reason.
        why: &'static str,
    },
    /// No address of the ExternalCIDR is free.
    #[error(
        "the ExternalCIDR {network} is full: reflect fewer endpoints that are not pods. \
         {quarantined} addresses are quarantined, the first expires in {first} s"
    )]
    ExternalFull {
        /// The ExternalCIDR.
        network: Cidr,
        /// The number of quarantined addresses.
        quarantined: usize,
        /// Seconds until the first of them expires.
        first: i64,
    },
    /// The owners of a mapping are stored with it, so their number is limited.
    #[error("the mapping of this endpoint has {0} owners, the maximum: unmap it for one of them")]
    TooManyOwners(usize),
    /// Addresses would not keep their host part.
    #[error(transparent)]
    WrongSize(#[from] Mismatch),
    /// The address allocated to an endpoint is not in the ExternalCIDR.
    #[error(transparent)]
    NotExternal(#[from] NotInNetwork),
    /// No CIDR of that size is free.
    #[error(
        "no CIDR of the size of {wanted} is free in the pools {pools}: add a pool to \
         spec.network.additionalPools of the ClusterConfig{wait}",
        pools = list(.pools),
        wait = or_wait(*.quarantined, *.first)
    )]
    NoRoom {
        /// The CIDR to translate.
        wanted: Cidr,
        /// The searched pools.
        pools: Vec<Cidr>,
        /// The number of quarantined CIDRs.
        quarantined: usize,
        /// Seconds until the first of them expires.
        first: i64,
    },
    /// The peer has changed its networks over and over.
    #[error(
        "cluster {peer} has changed its networks too often: {quarantined} of its translated CIDRs \
         are quarantined, the first expires in {first} s"
    )]
    TooManyTranslatedCidrs {
        /// The peer.
        peer: ClusterId,
        /// The number of its quarantined CIDRs.
        quarantined: usize,
        /// Seconds until the first of them expires.
        first: i64,
    },
    /// The address is in a translated CIDR that its peer has released.
    #[error(
        "{ip} is not in use any more: {cidr} belonged to cluster {peer} and is quarantined for \
         another {left} s"
    )]
    PeerGone {
        /// The address.
        ip: IpAddr,
        /// The quarantined CIDR that contains it.
        cidr: Cidr,
        /// The former peer.
        peer: ClusterId,
        /// Seconds until the quarantine ends.
        left: i64,
    },
}

impl IpamState {
    /// Restores the stored state. Entries that are invalid, because this cluster's networks have
    /// changed or an object was edited, are dropped: the controller of the peering recreates them.
    pub fn load(
        config: Config,
        storages: &[IpamStorage],
        mappings: &[NatMapping],
        now: Timestamp,
    ) -> Result<Self, IpamError> {
        let networks = storages.iter().find(|storage| storage.name_any() == NETWORKS);
        let subnets = shards::subnets(storages);
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
            quarantine: CidrQuarantine::default(),
            external: ExternalAllocator::new(external_cidr),
            changes: Changes::default(),
        };
        for (shard, spec) in shards::found(storages) {
            if let StorageShard::Networks(cluster) = shard {
                ipam.quarantine.restore(&cluster, spec, now);
            }
        }
        for (cluster, subnets) in subnets {
            ipam.restore_subnets(cluster, subnets, is_of_us, now);
        }
        ipam.restore_endpoints(storages, now);
        ipam.changes = ipam.differences(storages, mappings);
        Ok(ipam)
    }

    /// Restores mapped endpoints. Endpoints of former peers, and mappings for them, are
    /// quarantined.
    fn restore_endpoints(&mut self, storages: &[IpamStorage], now: Timestamp) {
        let latest = external::quarantine_end(now);
        let mut quarantined = Vec::new();
        for (shard, spec) in shards::found(storages) {
            for (ip, mapping) in &spec.endpoint_mappings {
                let known = mapping.cluster_mappings.iter();
                let known = known.filter(|(cluster, _)| self.clusters.contains_key(*cluster));
                let known = known.map(|(cluster, of)| (cluster.clone(), Owners::restore(of)));
                let clusters: Vec<_> = known.collect();
                if clusters.is_empty() {
                    let quarantine = Quarantine { until: latest, after: shard.cluster().clone() };
                    quarantined.push((*ip, ExternalIp(mapping.ip), quarantine));
                }
                self.external.restore(*ip, ExternalIp(mapping.ip), clusters);
            }
            for (external, stored) in &spec.quarantined_addresses {
                let until = stored.until.0.min(latest);
                let quarantine = Quarantine { until, after: shard.cluster().clone() };
                quarantined.push((stored.ip, ExternalIp(*external), quarantine));
            }
        }
        for (ip, external, quarantine) in quarantined {
            self.external.restore_quarantined(ip, external, quarantine);
        }
        let cidrs: Vec<_> = self.quarantine.all().map(|(_, cidr, _)| cidr).collect();
        cidrs.into_iter().for_each(|cidr| self.unmap_within(cidr, now));
    }

    /// Changes the settings for later allocations. A translated CIDR that overlaps a newly reserved
    /// one is replaced at the next call of [`Self::reserve`].
    pub fn configure(&mut self, config: Config) -> Result<(), IpamError> {
        let before = self.networks_storage();
        self.config = config;
        let settled = self.settle_external();
        self.changes.networks |= self.networks_storage() != before;
        settled
    }

    /// Chooses another ExternalCIDR if the settings do not allow the current one.
    fn settle_external(&mut self) -> Result<(), IpamError> {
        let is_alone = self.clusters.is_empty();
        if !pool::is_external(self.external_cidr(), &self.config, is_alone) {
            self.move_external(pool::choose_external(&self.config)?);
        }
        Ok(())
    }

    /// Replaces an ExternalCIDR that no peer uses. Addresses in quarantine stay quarantined where
    /// the new CIDR contains them.
    fn move_external(&mut self, network: Cidr) {
        self.changes.networks = true;
        let before = std::mem::replace(&mut self.external, ExternalAllocator::new(network));
        for (shard, external, allocation) in before.all() {
            self.changes.shards.insert(shard);
            if let Some(quarantine) = &allocation.quarantine {
                self.external.restore_quarantined(allocation.ip, external, quarantine.clone());
            }
        }
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The ExternalCIDR: endpoints that are not pods get their addresses from it.
    pub fn external_cidr(&self) -> Cidr {
        self.external.network()
    }

    /// The real and translated CIDRs of a peering.
    pub fn subnets(&self, cluster: &ClusterId) -> Option<&Subnets> {
        self.clusters.get(cluster)
    }

    /// The peers with known CIDRs.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.clusters.keys()
    }

    /// Announces the size of a batch: the number of requests before the next write.
    pub fn expect(&mut self, count: usize) {
        self.external.expect(u32::try_from(count).unwrap_or(u32::MAX));
    }

    /// The objects that have changed since the last call. The caller writes them before the next
    /// request.
    pub fn take_changes(&mut self) -> Changes {
        let mut changes = std::mem::take(&mut self.changes);
        changes.nat_mappings.extend(changes.shards.iter().filter_map(StorageShard::nat_mapping));
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
            return Err(IpamError::LocalTranslationUnknown(cluster.clone()));
        };
        Ok(Networks {
            local_pods: CidrTranslation::from_nat(self.config.pod_cidr, pods)?,
            local_external: CidrTranslation::from_nat(self.external_cidr(), external)?,
            remote_pods: CidrTranslation::from_nat(remote_pod, subnets.remote_nat_pod_cidr)?,
            remote_external: CidrTranslation::from_nat(
                remote_external,
                subnets.remote_nat_external_cidr,
            )?,
        })
    }

    /// The CIDRs that a translated CIDR of this peer must not overlap.
    fn taken(&self, for_peer: &ClusterId, now: Timestamp) -> Taken {
        let own = [self.config.pod_cidr, self.config.service_cidr, self.external_cidr()];
        let mut taken = Taken::new(&own, &self.config.reserved);
        for (_, subnets) in self.clusters.iter().filter(|(cluster, _)| *cluster != for_peer) {
            taken.extend(subnets.translated_pod_cidr());
            taken.extend(subnets.translated_external_cidr());
        }
        taken.quarantine(self.quarantine.of_others(for_peer, now));
        taken
    }
}

fn list(cidrs: &[Cidr]) -> String {
    let texts: Vec<_> = cidrs.iter().map(Cidr::to_string).collect();
    texts.join(", ")
}

fn or_wait(quarantined: usize, first: i64) -> String {
    match quarantined {
        0 => String::new(),
        _ => format!(
            ", or wait: {quarantined} CIDRs of former peers are quarantined, the first expires in \
             {first} s"
        ),
    }
}

#[cfg(test)]
mod tests;
