//! The objects that the state is kept in: small ones, each with what was given at about the same
//! time. NatMappings follow from the rest: they tell the gateways.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use kube::ResourceExt as _;
use tombolo_api::{
    ClusterId,
    net::{
        ClusterMapping, EndpointMapping, IpamStorage, IpamStorageSpec, NatMapping, NatMappingSpec,
    },
};

use super::Ipam;

/// The objects that have to be written, or deleted where nothing is left in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// IpamStorages.
    pub storage: BTreeSet<StorageShard>,
    /// NatMappings.
    pub mappings: BTreeSet<MappingShard>,
}

/// One IpamStorage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StorageShard {
    /// This cluster's networks and its peers'.
    Networks,
    /// Endpoints with neighbouring addresses.
    Endpoints(u32),
}

/// One NatMapping: endpoints with neighbouring addresses, for one cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MappingShard {
    /// The cluster whose pods send the traffic.
    pub cluster: ClusterId,
    /// Which part of the external network.
    pub number: u32,
}

impl Changes {
    /// Whether nothing has to be written.
    pub fn is_empty(&self) -> bool {
        self.storage.is_empty() && self.mappings.is_empty()
    }

    pub(super) fn endpoint(&mut self, shard: u32) {
        self.storage.insert(StorageShard::Endpoints(shard));
    }

    pub(super) fn mapping(&mut self, cluster: &ClusterId, number: u32) {
        self.mappings.insert(MappingShard { cluster: cluster.clone(), number });
    }
}

impl Ipam {
    /// What an IpamStorage should say; nothing: it should not be there.
    pub fn storage(&self, shard: StorageShard) -> Option<IpamStorageSpec> {
        match shard {
            StorageShard::Networks => Some(IpamStorageSpec {
                pools: self.config.pools.clone(),
                cluster_subnets: self.clusters.clone(),
                external_cidr: Some(self.external_cidr),
                pod_cidr: Some(self.config.pod_cidr),
                service_cidr: Some(self.config.service_cidr),
                ..IpamStorageSpec::default()
            }),
            StorageShard::Endpoints(number) => {
                let mappings: BTreeMap<_, _> = self
                    .endpoints
                    .in_shard(number)
                    .map(|(ip, endpoint)| {
                        let clusters = endpoint.clusters.iter().cloned();
                        let cluster_mappings = clusters.map(|id| (id, ClusterMapping {})).collect();
                        (*ip, EndpointMapping { ip: endpoint.external, cluster_mappings })
                    })
                    .collect();
                (!mappings.is_empty()).then(|| IpamStorageSpec {
                    endpoint_mappings: mappings,
                    ..IpamStorageSpec::default()
                })
            }
        }
    }

    /// What a NatMapping should say; nothing: it should not be there.
    pub fn nat_mapping(&self, shard: &MappingShard) -> Option<NatMappingSpec> {
        let mappings = self.mappings_of(&shard.cluster, shard.number);
        (!mappings.is_empty()).then(|| NatMappingSpec {
            cluster_id: shard.cluster.clone(),
            cluster_mappings: mappings,
        })
    }

    /// Where the state is not what is stored. Objects with names that are not ours are left alone.
    pub(super) fn differences(&self, storages: &[IpamStorage], mappings: &[NatMapping]) -> Changes {
        let found: BTreeMap<StorageShard, &IpamStorageSpec> = storages
            .iter()
            .filter_map(|storage| Some((storage.name_any().parse().ok()?, &storage.spec)))
            .collect();
        let found_mappings: BTreeMap<MappingShard, &NatMappingSpec> = mappings
            .iter()
            .filter_map(|mapping| Some((mapping.name_any().parse().ok()?, &mapping.spec)))
            .collect();

        let mut wanted = Changes::default();
        wanted.storage.insert(StorageShard::Networks);
        for endpoint in self.endpoints.all() {
            let shard = self.endpoints.shard(endpoint.external);
            wanted.endpoint(shard);
            for cluster in &endpoint.clusters {
                wanted.mapping(cluster, shard);
            }
        }
        wanted.storage.extend(found.keys());
        wanted.mappings.extend(found_mappings.keys().cloned());
        wanted.storage.retain(|shard| self.storage(*shard).as_ref() != found.get(shard).copied());
        wanted
            .mappings
            .retain(|shard| self.nat_mapping(shard).as_ref() != found_mappings.get(shard).copied());
        wanted
    }
}

const NETWORKS: &str = "liqo-networks";
const ENDPOINTS: &str = "liqo-endpoints-";
const MAPPINGS: &str = "liqo-";

/// A name of an object that keeps no part of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the name of an object of the address service")]
pub struct NotAShard;

impl fmt::Display for StorageShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Networks => f.write_str(NETWORKS),
            Self::Endpoints(number) => write!(f, "{ENDPOINTS}{number}"),
        }
    }
}

impl FromStr for StorageShard {
    type Err = NotAShard;

    fn from_str(name: &str) -> Result<Self, NotAShard> {
        if name == NETWORKS {
            return Ok(Self::Networks);
        }
        let number = name.strip_prefix(ENDPOINTS).ok_or(NotAShard)?;
        Ok(Self::Endpoints(number.parse().map_err(|_| NotAShard)?))
    }
}

impl fmt::Display for MappingShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{MAPPINGS}{}-{}", self.cluster, self.number)
    }
}

impl FromStr for MappingShard {
    type Err = NotAShard;

    fn from_str(name: &str) -> Result<Self, NotAShard> {
        let rest = name.strip_prefix(MAPPINGS).ok_or(NotAShard)?;
        let (cluster, number) = rest.rsplit_once('-').ok_or(NotAShard)?;
        Ok(Self {
            cluster: cluster.parse().map_err(|_| NotAShard)?,
            number: number.parse().map_err(|_| NotAShard)?,
        })
    }
}
