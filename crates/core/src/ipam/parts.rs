//! The objects that the state is kept in. The networks are in one; endpoints are in many small ones,
//! each for one cluster and for addresses that are neighbours, so that what one mapping costs does
//! not grow with their number, nor an object with the number of clusters. NatMappings follow from
//! them: they tell the gateways.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    str::FromStr,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use tombolo_api::{
    ClusterId,
    net::{
        ClusterMapping, EndpointMapping, IpamStorage, IpamStorageSpec, NatMapping, NatMappingSpec,
        Resting,
    },
};

use super::{Ipam, external::PART_SIZE};

/// Name of the IpamStorage with this cluster's networks and its peers'.
pub const NETWORKS: &str = "liqo-networks";

/// Name of the IpamStorage that says who writes.
pub const WRITER: &str = "liqo-writer";

/// What has to be written, or deleted where nothing is left in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// This cluster's networks and its peers'.
    pub networks: bool,
    /// Parts of the endpoints.
    pub parts: BTreeSet<Part>,
}

impl Changes {
    /// Whether nothing has to be written.
    pub fn is_empty(&self) -> bool {
        !self.networks && self.parts.is_empty()
    }
}

/// Endpoints with neighbouring addresses, for one cluster: an IpamStorage and a NatMapping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The cluster that they are reflected to.
    pub cluster: ClusterId,
    /// Which part of the external network.
    pub number: u32,
}

impl Part {
    pub(super) fn of(cluster: &ClusterId, position: u32) -> Self {
        Self { cluster: cluster.clone(), number: position / PART_SIZE }
    }

    /// The parts after this one.
    pub fn following(&self, count: u32) -> impl Iterator<Item = Self> + '_ {
        let numbers = (1..=count).filter_map(|n| self.number.checked_add(n));
        numbers.map(|number| Self { cluster: self.cluster.clone(), number })
    }

    /// Name of the IpamStorage.
    pub fn storage(&self) -> String {
        format!("{STORAGE}{self}")
    }

    /// Name of the NatMapping.
    pub fn mapping(&self) -> String {
        format!("{MAPPING}{self}")
    }

    /// The part that an IpamStorage of this name is, if it is one.
    pub fn from_storage(name: &str) -> Option<Self> {
        name.strip_prefix(STORAGE)?.parse().ok()
    }

    /// The part that a NatMapping of this name is, if it is one.
    pub fn from_mapping(name: &str) -> Option<Self> {
        name.strip_prefix(MAPPING)?.parse().ok()
    }
}

const STORAGE: &str = "liqo-endpoints-";
const MAPPING: &str = "liqo-";

/// A text that names no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a part of the endpoints: <cluster id>-<number>")]
pub struct NotAPart;

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.cluster, self.number)
    }
}

impl FromStr for Part {
    type Err = NotAPart;

    fn from_str(text: &str) -> Result<Self, NotAPart> {
        let (cluster, number) = text.rsplit_once('-').ok_or(NotAPart)?;
        Ok(Self {
            cluster: cluster.parse().map_err(|_| NotAPart)?,
            number: number.parse().map_err(|_| NotAPart)?,
        })
    }
}

impl Ipam {
    /// What the IpamStorage with the networks should say.
    pub fn networks_storage(&self) -> IpamStorageSpec {
        IpamStorageSpec {
            pools: self.config.pools.clone(),
            cluster_subnets: self.clusters.clone(),
            external_cidr: Some(self.external_cidr()),
            pod_cidr: Some(self.config.pod_cidr),
            service_cidr: Some(self.config.service_cidr),
            ..IpamStorageSpec::default()
        }
    }

    /// What the IpamStorage of a part should say; nothing: it should not be there.
    pub fn storage(&self, part: &Part) -> Option<IpamStorageSpec> {
        let mut spec = IpamStorageSpec::default();
        for (external, given) in self.external.in_part(part.number) {
            if given.is_used_by(&part.cluster) {
                let cluster_mappings = [(part.cluster.clone(), ClusterMapping {})].into();
                let mapping = EndpointMapping { ip: external.0, cluster_mappings };
                spec.endpoint_mappings.insert(given.ip, mapping);
            }
            if let Some(rest) = given.rest.as_ref().filter(|rest| rest.after == part.cluster) {
                let resting = Resting { ip: given.ip, until: Time(rest.until) };
                spec.resting.insert(external.0, resting);
            }
        }
        (spec != IpamStorageSpec::default()).then_some(spec)
    }

    /// What the NatMapping of a part should say; nothing: it should not be there.
    pub fn nat_mapping(&self, part: &Part) -> Option<NatMappingSpec> {
        let mappings = self.mappings_of(&part.cluster, part.number);
        (!mappings.is_empty()).then(|| NatMappingSpec {
            cluster_id: part.cluster.clone(),
            cluster_mappings: mappings,
        })
    }

    /// Where the state is not what is stored. Objects with names that are not ours are left alone.
    pub(super) fn differences(&self, storages: &[IpamStorage], mappings: &[NatMapping]) -> Changes {
        let networks = storages.iter().find(|storage| storage.name_any() == NETWORKS);
        let found: BTreeMap<Part, &IpamStorageSpec> = storages
            .iter()
            .filter_map(|storage| Some((Part::from_storage(&storage.name_any())?, &storage.spec)))
            .collect();
        let found_mappings: BTreeMap<Part, &NatMappingSpec> = mappings
            .iter()
            .filter_map(|mapping| Some((Part::from_mapping(&mapping.name_any())?, &mapping.spec)))
            .collect();
        let mut parts: BTreeSet<Part> = self.external.all().map(|(part, ..)| part).collect();
        parts.extend(found.keys().chain(found_mappings.keys()).cloned());
        // One that is empty keeps others from making it.
        let may_be_empty = |part: &Part| self.clusters.contains_key(&part.cluster);
        parts.retain(|part| {
            let (storage, mapping) = (self.storage(part), self.nat_mapping(part));
            let empty = IpamStorageSpec::default();
            let found = found.get(part).filter(|spec| !may_be_empty(part) || ***spec != empty);
            let told = found_mappings
                .get(part)
                .filter(|spec| !may_be_empty(part) || !spec.cluster_mappings.is_empty());
            storage.as_ref() != found.copied() || mapping.as_ref() != told.copied()
        });
        let networks = networks.map(|storage| &storage.spec) != Some(&self.networks_storage());
        Changes { networks, parts }
    }
}
