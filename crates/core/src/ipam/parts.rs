//! The objects that the state is kept in. This cluster's own networks are in one; those of and for
//! each peer in one of their own; endpoints are in many small ones, each for one cluster and for
//! addresses that are neighbours. So what one peering or one mapping costs does not grow with their
//! number, nor does an object. NatMappings follow from the endpoints: they tell the gateways.

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
        Resting, Subnets,
    },
};

use super::{Ipam, external::PART_SIZE};

/// Name of the IpamStorage with this cluster's networks.
pub const NETWORKS: &str = "liqo-networks";

/// Name of the IpamStorage that says who writes.
pub const WRITER: &str = "liqo-writer";

/// What has to be written, or deleted where nothing is left in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// This cluster's networks.
    pub networks: bool,
    /// What is about one peer.
    pub parts: BTreeSet<Part>,
}

impl Changes {
    /// Whether nothing has to be written.
    pub fn is_empty(&self) -> bool {
        !self.networks && self.parts.is_empty()
    }
}

/// A part of what is known about one peer, in objects of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The networks of and for it: an IpamStorage.
    Networks(ClusterId),
    /// Endpoints that are reflected to it, with neighbouring addresses: an IpamStorage and a
    /// NatMapping. The number says which part of the external network.
    Endpoints(ClusterId, u32),
}

impl Part {
    pub(super) fn of(cluster: &ClusterId, position: u32) -> Self {
        Self::Endpoints(cluster.clone(), position / PART_SIZE)
    }

    /// The peer.
    pub fn cluster(&self) -> &ClusterId {
        match self {
            Self::Networks(cluster) | Self::Endpoints(cluster, _) => cluster,
        }
    }

    /// The parts after this one, where one is likely to follow.
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
            Self::Networks(cluster) => format!("{PEER}{cluster}"),
            Self::Endpoints(cluster, number) => format!("{STORAGE}{cluster}-{number}"),
        }
    }

    /// Name of the NatMapping, where there is one.
    pub fn mapping(&self) -> Option<String> {
        match self {
            Self::Networks(_) => None,
            Self::Endpoints(cluster, number) => Some(format!("{MAPPING}{cluster}-{number}")),
        }
    }

    /// The part that an IpamStorage of this name is, if it is one.
    pub fn from_storage(name: &str) -> Option<Self> {
        if let Some(cluster) = name.strip_prefix(PEER) {
            return Some(Self::Networks(cluster.parse().ok()?));
        }
        Self::endpoints(name.strip_prefix(STORAGE)?)
    }

    /// The part that a NatMapping of this name is, if it is one.
    pub fn from_mapping(name: &str) -> Option<Self> {
        Self::endpoints(name.strip_prefix(MAPPING)?)
    }

    fn endpoints(text: &str) -> Option<Self> {
        let (cluster, number) = text.rsplit_once('-')?;
        Some(Self::Endpoints(cluster.parse().ok()?, number.parse().ok()?))
    }
}

const PEER: &str = "liqo-networks-";
const STORAGE: &str = "liqo-endpoints-";
const MAPPING: &str = "liqo-";

/// A text that names no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a part of what is known: the name of its IpamStorage")]
pub struct NotAPart;

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.storage())
    }
}

impl FromStr for Part {
    type Err = NotAPart;

    fn from_str(text: &str) -> Result<Self, NotAPart> {
        Self::from_storage(text).ok_or(NotAPart)
    }
}

/// The parts among these.
pub(super) fn found(storages: &[IpamStorage]) -> impl Iterator<Item = (Part, &IpamStorageSpec)> {
    let part = |storage: &IpamStorage| Part::from_storage(&storage.name_any());
    storages.iter().filter_map(move |storage| Some((part(storage)?, &storage.spec)))
}

/// The networks of and for each peer. Once they were with those of this cluster, in one object: what
/// is there still counts where there is nothing newer.
pub(super) fn subnets(storages: &[IpamStorage]) -> BTreeMap<&ClusterId, &Subnets> {
    let once = storages.iter().filter(|storage| storage.name_any() == NETWORKS);
    let once = once.flat_map(|storage| &storage.spec.cluster_subnets);
    let now = found(storages).filter_map(|(part, spec)| match part {
        Part::Networks(cluster) => spec.cluster_subnets.get_key_value(&cluster),
        Part::Endpoints(..) => None,
    });
    once.chain(now).collect()
}

impl Ipam {
    /// What the IpamStorage with this cluster's networks should say.
    pub fn networks_storage(&self) -> IpamStorageSpec {
        IpamStorageSpec {
            pools: self.config.pools.clone(),
            external_cidr: Some(self.external_cidr()),
            pod_cidr: Some(self.config.pod_cidr),
            service_cidr: Some(self.config.service_cidr),
            ..IpamStorageSpec::default()
        }
    }

    /// What the IpamStorage of a part should say; nothing: it should not be there.
    pub fn storage(&self, part: &Part) -> Option<IpamStorageSpec> {
        let mut spec = IpamStorageSpec::default();
        match part {
            Part::Networks(cluster) => {
                let subnets = self.clusters.get(cluster)?.clone();
                spec.cluster_subnets.insert(cluster.clone(), subnets);
            }
            Part::Endpoints(cluster, number) => {
                for (external, given) in self.external.in_part(*number) {
                    if given.is_used_by(cluster) {
                        let cluster_mappings = [(cluster.clone(), ClusterMapping {})].into();
                        let mapping = EndpointMapping { ip: external.0, cluster_mappings };
                        spec.endpoint_mappings.insert(given.ip, mapping);
                    }
                    if let Some(rest) = given.rest.as_ref().filter(|rest| rest.after == *cluster) {
                        let resting = Resting { ip: given.ip, until: Time(rest.until) };
                        spec.resting.insert(external.0, resting);
                    }
                }
            }
        }
        (spec != IpamStorageSpec::default()).then_some(spec)
    }

    /// What the NatMapping of a part should say; nothing: it should not be there.
    pub fn nat_mapping(&self, part: &Part) -> Option<NatMappingSpec> {
        let Part::Endpoints(cluster, number) = part else { return None };
        let mappings = self.mappings_of(cluster, *number);
        (!mappings.is_empty())
            .then(|| NatMappingSpec { cluster_id: cluster.clone(), cluster_mappings: mappings })
    }

    /// Where the state is not what is stored. Objects with names that are not ours are left alone.
    pub(super) fn differences(&self, storages: &[IpamStorage], mappings: &[NatMapping]) -> Changes {
        let networks = storages.iter().find(|storage| storage.name_any() == NETWORKS);
        let found: BTreeMap<Part, &IpamStorageSpec> = found(storages).collect();
        let found_mappings: BTreeMap<Part, &NatMappingSpec> = mappings
            .iter()
            .filter_map(|mapping| Some((Part::from_mapping(&mapping.name_any())?, &mapping.spec)))
            .collect();
        let mut parts: BTreeSet<Part> = self.external.all().map(|(part, ..)| part).collect();
        parts.extend(self.clusters.keys().cloned().map(Part::Networks));
        parts.extend(found.keys().chain(found_mappings.keys()).cloned());
        // One that is empty keeps others from making it.
        let may_be_empty = |part: &Part| self.clusters.contains_key(part.cluster());
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
