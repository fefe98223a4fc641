//! The stored objects, and the writes that change them.

use std::collections::BTreeMap;

use tombolo_api::net::{IpamStorageSpec, NatMappingSpec};

use super::{super::*, NOW};

#[derive(Clone, Default)]
pub(super) struct Disk {
    pub(super) storages: BTreeMap<String, IpamStorage>,
    pub(super) mappings: BTreeMap<String, NatMapping>,
}

/// One write of one object. `None` deletes it.
#[derive(Clone, Debug)]
pub(super) enum Write {
    Storage(String, Option<Box<IpamStorageSpec>>),
    Mapping(String, Option<NatMappingSpec>),
}

impl Disk {
    /// The complete state.
    pub(super) fn of(ipam: &IpamState) -> Self {
        let mut ipam = ipam.clone();
        ipam.changes = ipam.differences(&[], &[]);
        let mut disk = Self::default();
        disk.write(&mut ipam);
        disk
    }

    /// Writes all changes.
    pub(super) fn write(&mut self, ipam: &mut IpamState) {
        writes(ipam).into_iter().for_each(|write| self.perform(write));
    }

    pub(super) fn perform(&mut self, write: Write) {
        match write {
            Write::Storage(name, Some(spec)) => {
                self.storages.insert(name.clone(), IpamStorage::new(&name, *spec));
            }
            Write::Storage(name, None) => drop(self.storages.remove(&name)),
            Write::Mapping(name, Some(spec)) => {
                self.mappings.insert(name.clone(), NatMapping::new(&name, spec));
            }
            Write::Mapping(name, None) => drop(self.mappings.remove(&name)),
        }
    }

    pub(super) fn load(&self, config: Config) -> IpamState {
        self.load_at(config, NOW)
    }

    pub(super) fn load_at(&self, config: Config, now: Timestamp) -> IpamState {
        let storages: Vec<_> = self.storages.values().cloned().collect();
        let mappings: Vec<_> = self.mappings.values().cloned().collect();
        IpamState::load(config, &storages, &mappings, now).unwrap()
    }
}

/// The writes of all changes. They may be performed in any order.
pub(super) fn writes(ipam: &mut IpamState) -> Vec<Write> {
    let Changes { networks, shards, nat_mappings } = ipam.take_changes();
    let networks =
        networks.then(|| Write::Storage(NETWORKS.into(), Some(ipam.networks_storage().into())));
    let shards = shards
        .iter()
        .map(|shard| Write::Storage(shard.storage(), ipam.storage(shard).map(Box::new)));
    let nat_mappings =
        nat_mappings.iter().map(|shard| Write::Mapping(shard.name(), ipam.nat_mapping(shard)));
    networks.into_iter().chain(shards).chain(nat_mappings).collect()
}
