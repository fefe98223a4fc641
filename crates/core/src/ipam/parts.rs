//! The objects that the state is kept in. This cluster's own networks are in one; those of and for
//! each peer in one of their own; endpoints are in many small ones, each for one cluster and for
//! addresses that are neighbours. So what one peering or one mapping costs does not grow with their
//! number, nor does an object. NatMappings follow from the endpoints: they tell the gateways, and are
//! made anew from what is stored when they do not.

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

use super::{IpamState, external::PART_SIZE};

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
    /// What the gateways are told. It may be written later: it follows from the rest.
    pub told: BTreeSet<Told>,
}

impl Changes {
    /// Whether nothing has to be written.
    pub fn is_empty(&self) -> bool {
        !self.networks && self.parts.is_empty() && self.told.is_empty()
    }
}

/// A part of what is known about one peer, in objects of its own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The networks of and for it, and the names that they had until a while ago: an IpamStorage.
    Networks(ClusterId),
    /// Endpoints that are reflected to it, with neighbouring addresses: an IpamStorage. The number
    /// says which part of the external network.
    Endpoints(ClusterId, u32),
}

/// What the gateways are told of the endpoints in some parts, one after the other, that are reflected
/// to one peer: a NatMapping.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Told {
    cluster: ClusterId,
    number: u32,
}

/// Of how many parts one NatMapping tells. It is written later than they are, for many at a time.
const PARTS_TOLD: u32 = 8;

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

    /// What the gateways are told of it, if anything.
    pub fn told(&self) -> Option<Told> {
        match self {
            Self::Networks(_) => None,
            Self::Endpoints(cluster, number) => {
                Some(Told { cluster: cluster.clone(), number: number / PARTS_TOLD })
            }
        }
    }

    /// The part that an IpamStorage of this name is, if it is one.
    pub fn from_storage(name: &str) -> Option<Self> {
        if let Some(cluster) = name.strip_prefix(PEER) {
            return Some(Self::Networks(cluster.parse().ok()?));
        }
        let (cluster, number) = numbered(name.strip_prefix(STORAGE)?)?;
        Some(Self::Endpoints(cluster, number))
    }
}

impl Told {
    /// The peer.
    pub fn cluster(&self) -> &ClusterId {
        &self.cluster
    }

    /// Name of the NatMapping.
    pub fn name(&self) -> String {
        format!("{MAPPING}{}-{}", self.cluster, self.number)
    }

    /// What a NatMapping of this name tells, if it is one of ours.
    pub fn from_name(name: &str) -> Option<Self> {
        let (cluster, number) = numbered(name.strip_prefix(MAPPING)?)?;
        Some(Self { cluster, number })
    }

    /// The first of its parts.
    pub fn first(&self) -> Part {
        Part::Endpoints(self.cluster.clone(), self.parts().start)
    }

    fn parts(&self) -> Range<u32> {
        let first = self.number.saturating_mul(PARTS_TOLD);
        first..first.saturating_add(PARTS_TOLD)
    }
}

fn numbered(text: &str) -> Option<(ClusterId, u32)> {
    let (cluster, number) = text.rsplit_once('-')?;
    Some((cluster.parse().ok()?, number.parse().ok()?))
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

impl IpamState {
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
                let subnets = self.clusters.get_key_value(cluster);
                let subnets = subnets.map(|(cluster, subnets)| (cluster.clone(), subnets.clone()));
                spec.cluster_subnets.extend(subnets);
                spec.resting_subnets = self.names.of(cluster);
            }
            Part::Endpoints(cluster, number) => {
                for (external, given) in self.external.in_parts(*number..number.saturating_add(1)) {
                    if let Some(owners) = given.owners(cluster) {
                        let cluster_mappings = [(cluster.clone(), owners.stored())].into();
                        let mapping = EndpointMapping { ip: external.0, cluster_mappings };
                        spec.endpoint_mappings.insert(given.ip, mapping);
                    }
                    if let Some(rest) = given.rest.as_ref().filter(|rest| rest.after == *cluster) {
                        let resting = QuarantinedAddress { ip: given.ip, until: Time(rest.until) };
                        spec.resting.insert(external.0, resting);
                    }
                }
            }
        }
        (spec != IpamStorageSpec::default()).then_some(spec)
    }

    /// What a NatMapping should say; nothing: it should not be there.
    pub fn nat_mapping(&self, told: &Told) -> Option<NatMappingSpec> {
        let cluster_mappings = self.mappings_of(&told.cluster, told.parts());
        let cluster_id = told.cluster.clone();
        (!cluster_mappings.is_empty()).then_some(NatMappingSpec { cluster_id, cluster_mappings })
    }

    /// Where the state is not what is stored. Objects with names that are not ours are left alone.
    pub(super) fn differences(&self, storages: &[IpamStorage], mappings: &[NatMapping]) -> Changes {
        let networks = storages.iter().find(|storage| storage.name_any() == NETWORKS);
        let found: BTreeMap<Part, &IpamStorageSpec> = found(storages).collect();
        let mut parts: BTreeSet<Part> = self.external.all().map(|(part, ..)| part).collect();
        let told = self.not_told(parts.iter().filter_map(Part::told).collect(), mappings);
        let peers = self.clusters.keys().chain(self.names.clusters());
        parts.extend(peers.cloned().map(Part::Networks));
        parts.extend(found.keys().cloned());
        parts.retain(|part| {
            let is_empty = |spec: &IpamStorageSpec| *spec == IpamStorageSpec::default();
            let may_be_empty = self.may_be_empty(part.cluster());
            let found = found.get(part).filter(|spec| !may_be_empty || !is_empty(spec));
            self.storage(part).as_ref() != found.copied()
        });
        let networks = networks.map(|storage| &storage.spec) != Some(&self.networks_storage());
        Changes { networks, parts, told }
    }

    /// Which of these, and of those that are there, do not say what they should.
    fn not_told(&self, mut all: BTreeSet<Told>, mappings: &[NatMapping]) -> BTreeSet<Told> {
        let found = |mapping: &NatMapping| Told::from_name(&mapping.name_any());
        let found: BTreeMap<Told, &NatMappingSpec> =
            mappings.iter().filter_map(|mapping| Some((found(mapping)?, &mapping.spec))).collect();
        all.extend(found.keys().cloned());
        all.retain(|told| {
            let may_be_empty = self.may_be_empty(&told.cluster);
            let is_empty = |spec: &NatMappingSpec| spec.cluster_mappings.is_empty();
            let found = found.get(told).filter(|spec| !may_be_empty || !is_empty(spec));
            self.nat_mapping(told).as_ref() != found.copied()
        });
        all
    }

    /// Whether objects of a cluster may be there with nothing in them: they keep others from making
    /// them.
    fn may_be_empty(&self, cluster: &ClusterId) -> bool {
        self.clusters.contains_key(cluster)
    }
}
