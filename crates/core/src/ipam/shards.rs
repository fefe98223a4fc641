//! The objects that store the state. One IpamStorage holds this cluster's own CIDRs, one per peer
//! the CIDRs of that peering. Mapped endpoints are sharded: each shard holds one peer's mappings
//! for a range of consecutive addresses. So neither the size of an object nor the cost of a mapping
//! grows with the number of mappings. NatMappings are derived from the endpoint shards for the
//! gateways, and rebuilt from them if they differ.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    str::FromStr,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use tombolo_api::{
    ClusterId,
    net::{
        EndpointMapping, IpamStorage, IpamStorageSpec, NatMapping, NatMappingSpec,
        QuarantinedAddress, Subnets,
    },
};

use super::{IpamState, external::SHARD_SIZE};

/// Name of the IpamStorage with this cluster's CIDRs.
pub const NETWORKS: &str = "liqo-networks";

/// Name of the IpamStorage that records the current writer.
pub const WRITER: &str = "liqo-writer";

/// The objects to write, or to delete if they are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether the IpamStorage with this cluster's CIDRs has changed.
    pub networks: bool,
    /// Changed IpamStorages of peers.
    pub shards: BTreeSet<StorageShard>,
    /// Changed NatMappings. They may be written later, because they are derived from the shards.
    pub nat_mappings: BTreeSet<NatMappingShard>,
}

impl Changes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        !self.networks && self.shards.is_empty() && self.nat_mappings.is_empty()
    }
}

/// An IpamStorage with part of the state of one peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageShard {
    /// The real, translated and quarantined CIDRs of the peering.
    Networks(ClusterId),
    /// Endpoints that are mapped for the peer. The number is the position of the shard's addresses
    /// in the ExternalCIDR.
    Endpoints(ClusterId, u32),
}

/// A NatMapping: the mappings of several consecutive endpoint shards of one peer, for the gateways.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NatMappingShard {
    cluster: ClusterId,
    number: u32,
}

/// Endpoint shards per NatMapping. NatMappings are written later, with the changes of many
/// requests, so they can be larger than the shards.
const SHARDS_PER_NAT_MAPPING: u32 = 8;

impl StorageShard {
    pub(super) fn of(cluster: &ClusterId, position: u32) -> Self {
        Self::Endpoints(cluster.clone(), position / SHARD_SIZE)
    }

    /// The peer.
    pub fn cluster(&self) -> &ClusterId {
        match self {
            Self::Networks(cluster) | Self::Endpoints(cluster, _) => cluster,
        }
    }

    /// The endpoint shards after this one, which are likely to be allocated next.
    pub fn following(&self, count: u32) -> impl Iterator<Item = Self> + '_ {
        let (cluster, numbers) = match self {
            Self::Networks(cluster) => (cluster, 0..0),
            Self::Endpoints(cluster, number) => {
                let next = number.saturating_add(1);
                (cluster, next..next.saturating_add(count))
            }
        };
        numbers.map(|number| Self::Endpoints(cluster.clone(), number))
    }

    /// Name of the IpamStorage.
    pub fn storage(&self) -> String {
        match self {
            Self::Networks(cluster) => format!("{NETWORKS_PREFIX}{cluster}"),
            Self::Endpoints(cluster, number) => format!("{ENDPOINTS_PREFIX}{cluster}-{number}"),
        }
    }

    /// The NatMapping that is derived from an endpoint shard.
    pub fn nat_mapping(&self) -> Option<NatMappingShard> {
        match self {
            Self::Networks(_) => None,
            Self::Endpoints(cluster, number) => Some(NatMappingShard {
                cluster: cluster.clone(),
                number: number / SHARDS_PER_NAT_MAPPING,
            }),
        }
    }

    /// The shard that is stored in the IpamStorage of this name, if any.
    pub fn from_storage(name: &str) -> Option<Self> {
        if let Some(cluster) = name.strip_prefix(NETWORKS_PREFIX) {
            return Some(Self::Networks(cluster.parse().ok()?));
        }
        let (cluster, number) = numbered(name.strip_prefix(ENDPOINTS_PREFIX)?)?;
        Some(Self::Endpoints(cluster, number))
    }
}

impl NatMappingShard {
    /// The peer.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// Name of the NatMapping.
    pub fn name(&self) -> String {
        format!("{NAT_MAPPING_PREFIX}{}-{}", self.cluster, self.number)
    }

    /// The shard with this NatMapping name, if it is one of ours.
    pub fn from_name(name: &str) -> Option<Self> {
        let (cluster, number) = numbered(name.strip_prefix(NAT_MAPPING_PREFIX)?)?;
        Some(Self { cluster, number })
    }

    /// The first of its endpoint shards.
    pub fn first_shard(&self) -> StorageShard {
        StorageShard::Endpoints(self.cluster.clone(), self.shards().start)
    }

    fn shards(&self) -> Range<u32> {
        let first = self.number.saturating_mul(SHARDS_PER_NAT_MAPPING);
        first..first.saturating_add(SHARDS_PER_NAT_MAPPING)
    }
}

fn numbered(text: &str) -> Option<(ClusterId, u32)> {
    let (cluster, number) = text.rsplit_once('-')?;
    Some((cluster.parse().ok()?, number.parse().ok()?))
}

const NETWORKS_PREFIX: &str = "liqo-networks-";
const ENDPOINTS_PREFIX: &str = "liqo-endpoints-";
const NAT_MAPPING_PREFIX: &str = "liqo-";

/// Not the name of a shard's IpamStorage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an IpamStorage with addresses of a peer")]
pub struct NotAShard;

impl fmt::Display for StorageShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.storage())
    }
}

impl FromStr for StorageShard {
    type Err = NotAShard;

    fn from_str(text: &str) -> Result<Self, NotAShard> {
        Self::from_storage(text).ok_or(NotAShard)
    }
}

/// The shards among these objects.
pub(super) fn found(
    storages: &[IpamStorage],
) -> impl Iterator<Item = (StorageShard, &IpamStorageSpec)> {
    let shard = |storage: &IpamStorage| StorageShard::from_storage(&storage.name_any());
    storages.iter().filter_map(move |storage| Some((shard(storage)?, &storage.spec)))
}

/// The CIDRs of each peering. Earlier versions stored them in one object, [`NETWORKS`]: its entries
/// count where a peer has no shard.
pub(super) fn subnets(storages: &[IpamStorage]) -> BTreeMap<&ClusterId, &Subnets> {
    let legacy = storages.iter().filter(|storage| storage.name_any() == NETWORKS);
    let legacy = legacy.flat_map(|storage| &storage.spec.cluster_subnets);
    let current = found(storages).filter_map(|(shard, spec)| match shard {
        StorageShard::Networks(cluster) => spec.cluster_subnets.get_key_value(&cluster),
        StorageShard::Endpoints(..) => None,
    });
    legacy.chain(current).collect()
}

impl IpamState {
    /// The desired IpamStorage with this cluster's CIDRs.
    pub fn networks_storage(&self) -> IpamStorageSpec {
        IpamStorageSpec {
            pools: self.config.pools.clone(),
            external_cidr: Some(self.external_cidr()),
            pod_cidr: Some(self.config.pod_cidr),
            service_cidr: Some(self.config.service_cidr),
            ..IpamStorageSpec::default()
        }
    }

    /// The desired IpamStorage of a shard, or `None` if it should not exist.
    pub fn storage(&self, shard: &StorageShard) -> Option<IpamStorageSpec> {
        let mut spec = IpamStorageSpec::default();
        match shard {
            StorageShard::Networks(cluster) => {
                let subnets = self.clusters.get_key_value(cluster);
                let subnets = subnets.map(|(cluster, subnets)| (cluster.clone(), subnets.clone()));
                spec.cluster_subnets.extend(subnets);
                spec.quarantined_cidrs = self.quarantine.of(cluster);
            }
            StorageShard::Endpoints(cluster, number) => {
                let numbers = *number..number.saturating_add(1);
                for (external, allocation) in self.external.in_shards(numbers) {
                    if let Some(owners) = allocation.owners(cluster) {
                        let cluster_mappings = [(cluster.clone(), owners.stored())].into();
                        let mapping = EndpointMapping { ip: external.0, cluster_mappings };
                        spec.endpoint_mappings.insert(allocation.ip, mapping);
                    }
                    let quarantine = allocation.quarantine.as_ref();
                    if let Some(quarantine) = quarantine.filter(|it| it.after == *cluster) {
                        let (ip, until) = (allocation.ip, Time(quarantine.until));
                        let quarantined = QuarantinedAddress { ip, until };
                        spec.quarantined_addresses.insert(external.0, quarantined);
                    }
                }
            }
        }
        (spec != IpamStorageSpec::default()).then_some(spec)
    }

    /// The desired NatMapping, or `None` if it should not exist.
    pub fn nat_mapping(&self, shard: &NatMappingShard) -> Option<NatMappingSpec> {
        let cluster_mappings = self.mappings_of(&shard.cluster, shard.shards());
        let cluster_id = shard.cluster.clone();
        (!cluster_mappings.is_empty()).then_some(NatMappingSpec { cluster_id, cluster_mappings })
    }

    /// The objects that differ from the state. Objects with foreign names are ignored.
    pub(super) fn differences(&self, storages: &[IpamStorage], mappings: &[NatMapping]) -> Changes {
        let networks = storages.iter().find(|storage| storage.name_any() == NETWORKS);
        let found: BTreeMap<StorageShard, &IpamStorageSpec> = found(storages).collect();
        let mut shards: BTreeSet<StorageShard> =
            self.external.all().map(|(shard, ..)| shard).collect();
        let nat_mappings = shards.iter().filter_map(StorageShard::nat_mapping).collect();
        let nat_mappings = self.stale_nat_mappings(nat_mappings, mappings);
        let peers = self.clusters.keys().chain(self.quarantine.clusters());
        shards.extend(peers.cloned().map(StorageShard::Networks));
        shards.extend(found.keys().cloned());
        shards.retain(|shard| {
            let is_empty = |spec: &IpamStorageSpec| *spec == IpamStorageSpec::default();
            let may_be_empty = self.may_be_empty(shard.cluster());
            let found = found.get(shard).filter(|spec| !may_be_empty || !is_empty(spec));
            self.storage(shard).as_ref() != found.copied()
        });
        let networks = networks.map(|storage| &storage.spec) != Some(&self.networks_storage());
        Changes { networks, shards, nat_mappings }
    }

    /// The NatMappings, of these and of those that exist, that differ from the state.
    fn stale_nat_mappings(
        &self,
        mut all: BTreeSet<NatMappingShard>,
        mappings: &[NatMapping],
    ) -> BTreeSet<NatMappingShard> {
        let found = |mapping: &NatMapping| NatMappingShard::from_name(&mapping.name_any());
        let found: BTreeMap<NatMappingShard, &NatMappingSpec> =
            mappings.iter().filter_map(|mapping| Some((found(mapping)?, &mapping.spec))).collect();
        all.extend(found.keys().cloned());
        all.retain(|shard| {
            let may_be_empty = self.may_be_empty(&shard.cluster);
            let is_empty = |spec: &NatMappingSpec| spec.cluster_mappings.is_empty();
            let found = found.get(shard).filter(|spec| !may_be_empty || !is_empty(spec));
            self.nat_mapping(shard).as_ref() != found.copied()
        });
        all
    }

    /// Whether objects of a cluster may be empty: such objects fence off a former writer, whose
    /// create requests fail while they exist.
    fn may_be_empty(&self, cluster: &ClusterId) -> bool {
        self.clusters.contains_key(cluster)
    }
}
