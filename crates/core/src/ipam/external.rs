//! Allocation of addresses of the ExternalCIDR to endpoints. A released address is quarantined
//! before another endpoint gets it, so that packets in flight do not reach the wrong endpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::{Bound, Range, RangeInclusive},
};

use jiff::{SignedDuration, Timestamp};
use tombolo_api::{Cidr, ClusterId};

use super::{
    IpamError, StorageShard,
    mapping_owner::{MappingOwner, Owners},
};
use crate::translate::{ExternalIp, first_host};

/// How long a released address or CIDR is quarantined: longer than a packet can be in flight, and
/// than conntrack keeps UDP streams (120 s) and closed TCP connections.
pub const QUARANTINE: SignedDuration = SignedDuration::from_mins(3);

/// Consecutive addresses per shard. A larger shard costs more to write, a smaller one spreads a
/// batch over more writes.
pub const SHARD_SIZE: u32 = 64;

/// Expired addresses to free at once when no address is left. Each may cost a write.
const EXPIRED_WHEN_FULL: usize = SHARD_SIZE as usize;

/// The allocated and quarantined addresses of the ExternalCIDR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExternalAllocator {
    network: Cidr,
    /// By position in the CIDR.
    allocations: BTreeMap<u32, Allocation>,
    /// Positions, by the endpoint's own address.
    by_ip: BTreeMap<IpAddr, u32>,
    /// Positions of quarantined addresses, by expiry.
    quarantined: BTreeSet<(Timestamp, u32)>,
    /// Positions of addresses that their endpoint got back before the expiry.
    reused: BTreeSet<(Timestamp, u32)>,
    /// Position of the latest allocation: the search for a free address starts after it.
    pub(super) last: u32,
    /// Requests of this batch that are still to come.
    expected: u32,
}

/// An allocated or quarantined address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allocation {
    /// The current or last endpoint.
    pub(super) ip: IpAddr,
    /// The clusters for which the endpoint is mapped, sorted, with the owners of each mapping.
    /// Empty while the address is quarantined.
    clusters: Vec<(ClusterId, Owners)>,
    /// The quarantine. When the endpoint is mapped again before the expiry, the stored entry stays
    /// until then, so that no crash can lose it.
    pub(super) quarantine: Option<Quarantine>,
}

/// Keeps an address from other endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quarantine {
    pub(super) until: Timestamp,
    /// The cluster of the last mapping. Its shard stores the quarantine.
    pub(super) after: ClusterId,
}

impl Allocation {
    pub(super) fn is_used_by(&self, cluster: &ClusterId) -> bool {
        self.place(cluster).is_ok()
    }

    /// The owners of the mapping for a cluster.
    pub(super) fn owners(&self, cluster: &ClusterId) -> Option<&Owners> {
        self.place(cluster).ok().map(|place| &self.clusters[place].1)
    }

    /// The index of a cluster in the list, or where to insert it.
    fn place(&self, cluster: &ClusterId) -> Result<usize, usize> {
        self.clusters.binary_search_by(|(known, _)| known.cmp(cluster))
    }

    fn new(ip: IpAddr) -> Self {
        Self { ip, clusters: Vec::new(), quarantine: None }
    }

    fn is_used(&self) -> bool {
        !self.clusters.is_empty()
    }
}

impl ExternalAllocator {
    pub(super) fn new(network: Cidr) -> Self {
        Self {
            network,
            allocations: BTreeMap::new(),
            by_ip: BTreeMap::new(),
            quarantined: BTreeSet::new(),
            reused: BTreeSet::new(),
            last: 0,
            expected: 0,
        }
    }

    /// Announces a batch of requests. Each changed shard costs a write, so a batch should be in few
    /// shards: if the current shard has no room for half of it, allocation starts in a new one. The
    /// skipped addresses are allocated after the search has wrapped around.
    pub(super) fn expect(&mut self, count: u32) {
        self.expected = count.min(SHARD_SIZE);
    }

    pub(super) fn network(&self) -> Cidr {
        self.network
    }

    /// Maps an endpoint for a cluster and adds the owner. Shards may have `changed` even on error.
    pub(super) fn map(
        &mut self,
        cluster: &ClusterId,
        ip: IpAddr,
        owner: &MappingOwner,
        now: Timestamp,
        changed: &mut BTreeSet<StorageShard>,
    ) -> Result<ExternalIp, IpamError> {
        let position = match self.by_ip.get(&ip) {
            Some(position) => *position,
            None => return self.allocate(cluster, ip, owner, now, changed),
        };
        let allocation = self.allocations.get_mut(&position).expect("by_ip and allocations agree");
        let place = allocation.place(cluster);
        if let Ok(place) = place
            && allocation.clusters[place].1.add(owner)?
        {
            changed.insert(StorageShard::of(cluster, position));
        }
        if let Err(place) = place {
            allocation.clusters.insert(place, (cluster.clone(), Owners::only(owner)));
            changed.insert(StorageShard::of(cluster, position));
            let stays =
                allocation.quarantine.clone().filter(|quarantine| quarantine.after != *cluster);
            if let Some(quarantine) = std::mem::replace(&mut allocation.quarantine, stays.clone()) {
                self.unschedule(quarantine.until, position);
            }
            self.reused.extend(stays.map(|quarantine| (quarantine.until, position)));
        }
        Ok(self.address(position))
    }

    /// Removes an owner from the mapping of an endpoint for a cluster, and the mapping with its
    /// last owner. Returns the changed shards.
    pub(super) fn unmap(
        &mut self,
        cluster: &ClusterId,
        ip: IpAddr,
        owner: &MappingOwner,
        now: Timestamp,
    ) -> Vec<StorageShard> {
        let Some(position) = self.by_ip.get(&ip).copied() else { return Vec::new() };
        let Some(allocation) = self.allocations.get_mut(&position) else { return Vec::new() };
        let Ok(place) = allocation.place(cluster) else { return Vec::new() };
        let owners = &mut allocation.clusters[place].1;
        match owners.remove(owner) {
            true if owners.is_empty() => self.release(cluster, position, now),
            true => vec![StorageShard::of(cluster, position)],
            false => Vec::new(),
        }
    }

    /// The endpoints greater than `after` that an owner has mapped for a cluster, in order.
    pub(super) fn mapped_by(
        &self,
        cluster: &ClusterId,
        owner: &MappingOwner,
        after: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let is_its = move |position: &u32| {
            self.allocations[position].owners(cluster).is_some_and(|owners| owners.has(owner))
        };
        let all = self.by_ip.range(range);
        all.filter(move |(_, position)| is_its(position)).map(|(ip, _)| *ip)
    }

    /// Removes all mappings of the endpoints in a CIDR, except those that stay. Returns the changed
    /// shards.
    pub(super) fn unmap_within(
        &mut self,
        network: Cidr,
        now: Timestamp,
        stays: impl Fn(IpAddr) -> bool,
    ) -> Vec<StorageShard> {
        let all = network.net().network()..=network.net().broadcast();
        let left = self.by_ip.range(all).filter(|(ip, _)| !stays(**ip));
        let left = left.flat_map(|(_, position)| {
            self.allocations[position]
                .clusters
                .iter()
                .map(|(cluster, _)| (cluster.clone(), *position))
        });
        let left: Vec<_> = left.collect();
        left.iter().flat_map(|(cluster, position)| self.release(cluster, *position, now)).collect()
    }

    pub(super) fn get(&self, cluster: &ClusterId, ip: IpAddr) -> Option<ExternalIp> {
        let position = self.by_ip.get(&ip)?;
        self.allocations[position].is_used_by(cluster).then(|| self.address(*position))
    }

    /// Removes all mappings for a cluster. Returns the changed shards.
    pub(super) fn remove_cluster(
        &mut self,
        cluster: &ClusterId,
        now: Timestamp,
    ) -> Vec<StorageShard> {
        let concerned =
            self.allocations.iter().filter(|(_, allocation)| allocation.is_used_by(cluster));
        let concerned: Vec<u32> = concerned.map(|(position, _)| *position).collect();
        concerned.into_iter().flat_map(|position| self.release(cluster, position, now)).collect()
    }

    /// Ends at most `most` expired quarantines, and adds the changed shards to `changed`.
    pub(super) fn expire(
        &mut self,
        now: Timestamp,
        most: usize,
        changed: &mut BTreeSet<StorageShard>,
    ) {
        let expired = |all: &BTreeSet<(Timestamp, u32)>| {
            let expired = all.iter().take_while(|(until, _)| *until <= now);
            expired.take(most).map(|(_, position)| *position).collect::<Vec<_>>()
        };
        let expired = expired(&self.quarantined).into_iter().chain(expired(&self.reused));
        for position in expired.take(most).collect::<Vec<_>>() {
            changed.extend(self.end_quarantine(position));
        }
    }

    /// When the first quarantine expires.
    pub(super) fn next_expiry(&self) -> Option<Timestamp> {
        let first = [self.quarantined.first(), self.reused.first()];
        first.into_iter().flatten().map(|(until, _)| *until).min()
    }

    /// Restores the mapping of an endpoint for these clusters, unless it is invalid.
    pub(super) fn restore(
        &mut self,
        ip: IpAddr,
        external: ExternalIp,
        clusters: impl IntoIterator<Item = (ClusterId, Owners)>,
    ) {
        let Some(position) = self.restorable(ip, external) else { return };
        for (cluster, owners) in clusters {
            let allocation =
                self.allocations.entry(position).or_insert_with(|| Allocation::new(ip));
            match allocation.place(&cluster) {
                Ok(place) => allocation.clusters[place].1.extend(&owners),
                Err(place) => allocation.clusters.insert(place, (cluster, owners)),
            }
            self.by_ip.insert(ip, position);
            self.last = self.last.max(position);
        }
    }

    /// Restores the quarantine of an address, unless it is invalid. The latest expiry counts.
    pub(super) fn restore_quarantined(
        &mut self,
        ip: IpAddr,
        external: ExternalIp,
        quarantine: Quarantine,
    ) {
        let Some(position) = self.restorable(ip, external) else { return };
        let allocation = self.allocations.entry(position).or_insert_with(|| Allocation::new(ip));
        if allocation.quarantine.as_ref().is_some_and(|known| known.until >= quarantine.until) {
            return;
        }
        let (until, is_used) = (quarantine.until, allocation.is_used());
        if let Some(before) = allocation.quarantine.replace(quarantine) {
            self.unschedule(before.until, position);
        }
        let quarantined = if is_used { &mut self.reused } else { &mut self.quarantined };
        quarantined.insert((until, position));
        self.by_ip.insert(ip, position);
        self.last = self.last.max(position);
    }

    /// All allocated and quarantined addresses in order, once for each shard that stores them.
    pub(super) fn all(&self) -> impl Iterator<Item = (StorageShard, ExternalIp, &Allocation)> {
        self.allocations.iter().flat_map(move |(position, allocation)| {
            let after = allocation.quarantine.iter().map(|quarantine| &quarantine.after);
            let used_by = allocation.clusters.iter().map(|(cluster, _)| cluster);
            let clusters: BTreeSet<_> = used_by.chain(after).collect();
            let stored = move |cluster| {
                (StorageShard::of(cluster, *position), self.address(*position), allocation)
            };
            clusters.into_iter().map(stored)
        })
    }

    /// The allocated and quarantined addresses of these shards, for all clusters.
    pub(super) fn in_shards(
        &self,
        numbers: Range<u32>,
    ) -> impl Iterator<Item = (ExternalIp, &Allocation)> {
        let position = |number: u32| number.saturating_mul(SHARD_SIZE);
        let range = position(numbers.start)..position(numbers.end);
        self.allocations
            .range(range)
            .map(|(position, allocation)| (self.address(*position), allocation))
    }

    fn allocate(
        &mut self,
        cluster: &ClusterId,
        ip: IpAddr,
        owner: &MappingOwner,
        now: Timestamp,
        changed: &mut BTreeSet<StorageShard>,
    ) -> Result<ExternalIp, IpamError> {
        if self.is_full() {
            self.expire(now, EXPIRED_WHEN_FULL, changed);
        }
        let position = self.next_free().ok_or_else(|| self.full(now))?;
        self.last = position;
        self.expected = self.expected.saturating_sub(1);
        let clusters = vec![(cluster.clone(), Owners::only(owner))];
        self.allocations.insert(position, Allocation { clusters, ..Allocation::new(ip) });
        self.by_ip.insert(ip, position);
        changed.insert(StorageShard::of(cluster, position));
        Ok(self.address(position))
    }

    fn release(&mut self, cluster: &ClusterId, position: u32, now: Timestamp) -> Vec<StorageShard> {
        let Some(allocation) = self.allocations.get_mut(&position) else { return Vec::new() };
        let Ok(place) = allocation.place(cluster) else { return Vec::new() };
        allocation.clusters.remove(place);
        let mut changed = vec![StorageShard::of(cluster, position)];
        if !allocation.is_used() {
            let quarantine = Quarantine { until: quarantine_end(now), after: cluster.clone() };
            let until = quarantine.until;
            if let Some(before) = allocation.quarantine.replace(quarantine) {
                self.unschedule(before.until, position);
                changed.push(StorageShard::of(&before.after, position));
            }
            self.quarantined.insert((until, position));
        }
        changed
    }

    fn end_quarantine(&mut self, position: u32) -> Option<StorageShard> {
        let allocation = self.allocations.get_mut(&position)?;
        let quarantine = allocation.quarantine.take()?;
        if !allocation.is_used() {
            self.by_ip.remove(&allocation.ip);
            self.allocations.remove(&position);
        }
        self.unschedule(quarantine.until, position);
        Some(StorageShard::of(&quarantine.after, position))
    }

    fn unschedule(&mut self, until: Timestamp, position: u32) {
        self.quarantined.remove(&(until, position));
        self.reused.remove(&(until, position));
    }

    fn is_full(&self) -> bool {
        self.allocations.len() >= self.positions().count()
    }

    /// Searches linearly: few addresses after the latest allocation are in use.
    fn next_free(&self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let positions = self.positions();
        let next = self.last.saturating_add(1);
        let used = next % SHARD_SIZE;
        let is_too_small = used > 0 && SHARD_SIZE - used < self.expected / 2;
        let next = if is_too_small { next.saturating_add(SHARD_SIZE - used) } else { next };
        let after = next.max(*positions.start())..=*positions.end();
        after.chain(positions).find(|position| !self.allocations.contains_key(position))
    }

    fn full(&self, now: Timestamp) -> IpamError {
        let first = self.quarantined.first();
        IpamError::ExternalFull {
            network: self.network,
            quarantined: self.quarantined.len(),
            first: first.map_or(0, |(until, _)| until.duration_since(now).as_secs().max(0)),
        }
    }

    /// The position of a stored address, if it is valid for that endpoint.
    fn restorable(&self, ip: IpAddr, external: ExternalIp) -> Option<u32> {
        let position = self.position(external)?;
        let is_it = self.positions().contains(&position)
            && super::endpoints::check_endpoint(ip, self.network).is_ok()
            && self.allocations.get(&position).is_none_or(|allocation| allocation.ip == ip)
            && self.by_ip.get(&ip).is_none_or(|known| *known == position);
        is_it.then_some(position)
    }

    /// The positions to allocate: all but the network address, the first host, which is the
    /// gateway's address, and the broadcast address.
    fn positions(&self) -> RangeInclusive<u32> {
        let bits = self.network.net().max_prefix_len() - self.network.net().prefix_len();
        let size = 1_u32.checked_shl(bits.into()).unwrap_or(u32::MAX);
        let gateway = self.position(ExternalIp(first_host(self.network))).unwrap_or(0);
        gateway + 1..=size.saturating_sub(2)
    }

    fn position(&self, external: ExternalIp) -> Option<u32> {
        let network = self.network.net();
        if !network.contains(&external.0) {
            return None;
        }
        u32::try_from(bits(external.0) - bits(network.network())).ok()
    }

    fn address(&self, position: u32) -> ExternalIp {
        let bits = bits(self.network.net().network()) + u128::from(position);
        ExternalIp(match self.network.net().network() {
            IpAddr::V4(_) => Ipv4Addr::from(bits as u32).into(),
            IpAddr::V6(_) => Ipv6Addr::from(bits).into(),
        })
    }
}

/// When a quarantine that starts now ends, in whole seconds, as it is stored.
pub(super) fn quarantine_end(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second() + QUARANTINE.as_secs() + 1).unwrap_or(Timestamp::MAX)
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}
