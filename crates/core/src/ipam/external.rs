//! The addresses of the external network: which endpoint has which, and which rest. An address that
//! nobody has any more is given to another endpoint only after a while, so that packets which are
//! still under way don't reach the wrong one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::{Bound, Range, RangeInclusive},
};

use jiff::{SignedDuration, Timestamp};
use tombolo_api::{Cidr, ClusterId};

use super::{
    IpamError, Part,
    mapping_owner::{MappingOwner, Owners},
};
use crate::translate::{ExternalIp, first_host};

/// How long an address rests. Nothing that was sent to it is under way for longer, and the kernel's
/// memory of UDP and of closed TCP connections is shorter.
pub const REST: SignedDuration = SignedDuration::from_mins(3);

/// How many addresses, one after the other, share an object. The cost of writing one grows with it;
/// those that are asked for together should be in the same.
pub const PART_SIZE: u32 = 64;

/// How many addresses that have rested are freed where none is free: each may be a write.
const WOKEN_WHEN_FULL: usize = PART_SIZE as usize;

/// Who has which address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct External {
    network: Cidr,
    /// By their position in the network.
    given: BTreeMap<u32, Given>,
    /// Positions, by the endpoint's own address.
    by_ip: BTreeMap<IpAddr, u32>,
    /// Those that nobody has any more, by when they have rested.
    resting: BTreeSet<(Timestamp, u32)>,
    /// Those that were asked for again before they had.
    woken: BTreeSet<(Timestamp, u32)>,
    /// Position of the address given last: the next one is looked for after it.
    pub(super) last: u32,
    /// How many may be asked for before what has changed is written.
    expected: u32,
}

/// An address that is in use or rests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Given {
    /// The endpoint that has it, or had it last.
    pub(super) ip: IpAddr,
    /// The clusters that the endpoint is reflected to, in order, and who asked for it. None: it rests.
    clusters: Vec<(ClusterId, Owners)>,
    /// When it rests, or did before it was asked for again: what is stored of that stays until the
    /// time is over, so that no crash can lose it.
    pub(super) rest: Option<Rest>,
}

/// No other endpoint gets an address before that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) until: Timestamp,
    /// The last cluster that the endpoint was reflected to.
    pub(super) after: ClusterId,
}

impl Given {
    pub(super) fn is_used_by(&self, cluster: &ClusterId) -> bool {
        self.place(cluster).is_ok()
    }

    /// Who asked for it for a cluster.
    pub(super) fn owners(&self, cluster: &ClusterId) -> Option<&Owners> {
        self.place(cluster).ok().map(|place| &self.clusters[place].1)
    }

    /// Where a cluster is in the list, or would be.
    fn place(&self, cluster: &ClusterId) -> Result<usize, usize> {
        self.clusters.binary_search_by(|(known, _)| known.cmp(cluster))
    }

    fn new(ip: IpAddr) -> Self {
        Self { ip, clusters: Vec::new(), rest: None }
    }

    fn is_used(&self) -> bool {
        !self.clusters.is_empty()
    }
}

impl External {
    pub(super) fn new(network: Cidr) -> Self {
        Self {
            network,
            given: BTreeMap::new(),
            by_ip: BTreeMap::new(),
            resting: BTreeSet::new(),
            woken: BTreeSet::new(),
            last: 0,
            expected: 0,
        }
    }

    /// Those that are asked for together are to be in as few parts as can be, since each is written:
    /// where the rest of the present one is too small for half of them, a new one is begun. What is
    /// left out is given when all of the network has been gone through.
    pub(super) fn expect(&mut self, count: u32) {
        self.expected = count.min(PART_SIZE);
    }

    pub(super) fn network(&self) -> Cidr {
        self.network
    }

    /// The address of an endpoint for a cluster, which its owner keeps until it gives it back. Also
    /// where there is none, parts may have `changed`.
    pub(super) fn map(
        &mut self,
        cluster: &ClusterId,
        ip: IpAddr,
        owner: &MappingOwner,
        now: Timestamp,
        changed: &mut BTreeSet<Part>,
    ) -> Result<ExternalIp, IpamError> {
        let position = match self.by_ip.get(&ip) {
            Some(position) => *position,
            None => return self.give(cluster, ip, owner, now, changed),
        };
        let given = self.given.get_mut(&position).expect("both know the same");
        let place = given.place(cluster);
        if let Ok(place) = place
            && given.clusters[place].1.add(owner)?
        {
            changed.insert(Part::of(cluster, position));
        }
        if let Err(place) = place {
            given.clusters.insert(place, (cluster.clone(), Owners::only(owner)));
            changed.insert(Part::of(cluster, position));
            let stays = given.rest.clone().filter(|rest| rest.after != *cluster);
            if let Some(rest) = std::mem::replace(&mut given.rest, stays.clone()) {
                self.forget(rest.until, position);
            }
            self.woken.extend(stays.map(|rest| (rest.until, position)));
        }
        Ok(self.address(position))
    }

    /// An owner gives back the address of an endpoint for a cluster: the parts that this has changed.
    /// The endpoint keeps it as long as it has other owners.
    pub(super) fn unmap(
        &mut self,
        cluster: &ClusterId,
        ip: IpAddr,
        owner: &MappingOwner,
        now: Timestamp,
    ) -> Vec<Part> {
        let Some(position) = self.by_ip.get(&ip).copied() else { return Vec::new() };
        let Some(given) = self.given.get_mut(&position) else { return Vec::new() };
        let Ok(place) = given.place(cluster) else { return Vec::new() };
        let owners = &mut given.clusters[place].1;
        match owners.remove(owner) {
            true if owners.is_empty() => self.leave(cluster, position, now),
            true => vec![Part::of(cluster, position)],
            false => Vec::new(),
        }
    }

    /// The endpoints, in order, that an owner has mapped for a cluster, after this one.
    pub(super) fn mapped_by(
        &self,
        cluster: &ClusterId,
        owner: &MappingOwner,
        after: Option<IpAddr>,
    ) -> impl Iterator<Item = IpAddr> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let is_its = move |position: &u32| {
            self.given[position].owners(cluster).is_some_and(|owners| owners.has(owner))
        };
        let all = self.by_ip.range(range);
        all.filter(move |(_, position)| is_its(position)).map(|(ip, _)| *ip)
    }

    /// The endpoints in a network, but for those that stay, are reflected to no cluster any more: the
    /// parts that this has changed.
    pub(super) fn unmap_within(
        &mut self,
        network: Cidr,
        now: Timestamp,
        stays: impl Fn(IpAddr) -> bool,
    ) -> Vec<Part> {
        let all = network.net().network()..=network.net().broadcast();
        let left = self.by_ip.range(all).filter(|(ip, _)| !stays(**ip));
        let left = left.flat_map(|(_, position)| {
            self.given[position].clusters.iter().map(|(cluster, _)| (cluster.clone(), *position))
        });
        let left: Vec<_> = left.collect();
        left.iter().flat_map(|(cluster, position)| self.leave(cluster, *position, now)).collect()
    }

    pub(super) fn get(&self, cluster: &ClusterId, ip: IpAddr) -> Option<ExternalIp> {
        let position = self.by_ip.get(&ip)?;
        self.given[position].is_used_by(cluster).then(|| self.address(*position))
    }

    /// Takes a cluster out of all endpoints, and says which parts that changes.
    pub(super) fn remove_cluster(&mut self, cluster: &ClusterId, now: Timestamp) -> Vec<Part> {
        let concerned = self.given.iter().filter(|(_, given)| given.is_used_by(cluster));
        let concerned: Vec<u32> = concerned.map(|(position, _)| *position).collect();
        concerned.into_iter().flat_map(|position| self.leave(cluster, position, now)).collect()
    }

    /// Forgets what has rested, at most so many, and notes which parts that changes.
    pub(super) fn wake(&mut self, now: Timestamp, most: usize, changed: &mut BTreeSet<Part>) {
        let over = |all: &BTreeSet<(Timestamp, u32)>| {
            let rested = all.iter().take_while(|(until, _)| *until <= now);
            rested.take(most).map(|(_, position)| *position).collect::<Vec<_>>()
        };
        let rested = over(&self.resting).into_iter().chain(over(&self.woken)).take(most);
        for position in rested.collect::<Vec<_>>() {
            changed.extend(self.end_rest(position));
        }
    }

    /// When the first one has rested.
    pub(super) fn next_to_wake(&self) -> Option<Timestamp> {
        let first = [self.resting.first(), self.woken.first()];
        first.into_iter().flatten().map(|(until, _)| *until).min()
    }

    /// Takes over that an endpoint has an address for these clusters, unless that can't be right.
    pub(super) fn restore(
        &mut self,
        ip: IpAddr,
        external: ExternalIp,
        clusters: impl IntoIterator<Item = (ClusterId, Owners)>,
    ) {
        let Some(position) = self.restorable(ip, external) else { return };
        for (cluster, owners) in clusters {
            let given = self.given.entry(position).or_insert_with(|| Given::new(ip));
            match given.place(&cluster) {
                Ok(place) => given.clusters[place].1.extend(&owners),
                Err(place) => given.clusters.insert(place, (cluster, owners)),
            }
            self.by_ip.insert(ip, position);
            self.last = self.last.max(position);
        }
    }

    /// Takes over that an address rests. Of several times the latest counts.
    pub(super) fn restore_resting(&mut self, ip: IpAddr, external: ExternalIp, rest: Rest) {
        let Some(position) = self.restorable(ip, external) else { return };
        let given = self.given.entry(position).or_insert_with(|| Given::new(ip));
        if given.rest.as_ref().is_some_and(|known| known.until >= rest.until) {
            return;
        }
        let (until, is_used) = (rest.until, given.is_used());
        if let Some(before) = given.rest.replace(rest) {
            self.forget(before.until, position);
        }
        let resting = if is_used { &mut self.woken } else { &mut self.resting };
        resting.insert((until, position));
        self.by_ip.insert(ip, position);
        self.last = self.last.max(position);
    }

    /// All that is in use or rests, in order, each for all parts that it is stored in.
    pub(super) fn all(&self) -> impl Iterator<Item = (Part, ExternalIp, &Given)> {
        self.given.iter().flat_map(move |(position, given)| {
            let after = given.rest.iter().map(|rest| &rest.after);
            let used_by = given.clusters.iter().map(|(cluster, _)| cluster);
            let clusters: BTreeSet<_> = used_by.chain(after).collect();
            let stored =
                move |cluster| (Part::of(cluster, *position), self.address(*position), given);
            clusters.into_iter().map(stored)
        })
    }

    /// What is in use or rests in the places of these parts, whatever the cluster.
    pub(super) fn in_parts(
        &self,
        numbers: Range<u32>,
    ) -> impl Iterator<Item = (ExternalIp, &Given)> {
        let place = |number: u32| number.saturating_mul(PART_SIZE);
        let range = place(numbers.start)..place(numbers.end);
        self.given.range(range).map(|(position, given)| (self.address(*position), given))
    }

    fn give(
        &mut self,
        cluster: &ClusterId,
        ip: IpAddr,
        owner: &MappingOwner,
        now: Timestamp,
        changed: &mut BTreeSet<Part>,
    ) -> Result<ExternalIp, IpamError> {
        if self.is_full() {
            self.wake(now, WOKEN_WHEN_FULL, changed);
        }
        let position = self.next_free().ok_or_else(|| self.full(now))?;
        self.last = position;
        self.expected = self.expected.saturating_sub(1);
        let clusters = vec![(cluster.clone(), Owners::only(owner))];
        self.given.insert(position, Given { clusters, ..Given::new(ip) });
        self.by_ip.insert(ip, position);
        changed.insert(Part::of(cluster, position));
        Ok(self.address(position))
    }

    fn leave(&mut self, cluster: &ClusterId, position: u32, now: Timestamp) -> Vec<Part> {
        let Some(given) = self.given.get_mut(&position) else { return Vec::new() };
        let Ok(place) = given.place(cluster) else { return Vec::new() };
        given.clusters.remove(place);
        let mut changed = vec![Part::of(cluster, position)];
        if !given.is_used() {
            let rest = Rest { until: rested(now), after: cluster.clone() };
            let until = rest.until;
            if let Some(before) = given.rest.replace(rest) {
                self.forget(before.until, position);
                changed.push(Part::of(&before.after, position));
            }
            self.resting.insert((until, position));
        }
        changed
    }

    fn end_rest(&mut self, position: u32) -> Option<Part> {
        let given = self.given.get_mut(&position)?;
        let rest = given.rest.take()?;
        if !given.is_used() {
            self.by_ip.remove(&given.ip);
            self.given.remove(&position);
        }
        self.forget(rest.until, position);
        Some(Part::of(&rest.after, position))
    }

    fn forget(&mut self, until: Timestamp, position: u32) {
        self.resting.remove(&(until, position));
        self.woken.remove(&(until, position));
    }

    fn is_full(&self) -> bool {
        self.given.len() >= self.positions().count()
    }

    /// Free places are looked for one after the other: there are few that are taken before the next.
    fn next_free(&self) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let positions = self.positions();
        let next = self.last.saturating_add(1);
        let of_part = next % PART_SIZE;
        let is_too_small = of_part > 0 && PART_SIZE - of_part < self.expected / 2;
        let next = if is_too_small { next.saturating_add(PART_SIZE - of_part) } else { next };
        let after = next.max(*positions.start())..=*positions.end();
        after.chain(positions).find(|position| !self.given.contains_key(position))
    }

    fn full(&self, now: Timestamp) -> IpamError {
        let first = self.resting.first();
        IpamError::ExternalFull {
            network: self.network,
            resting: self.resting.len(),
            first: first.map_or(0, |(until, _)| until.duration_since(now).as_secs().max(0)),
        }
    }

    /// Where a stored address is, if it can have been given to that endpoint.
    fn restorable(&self, ip: IpAddr, external: ExternalIp) -> Option<u32> {
        let position = self.position(external)?;
        let is_it = self.positions().contains(&position)
            && super::endpoints::check_endpoint(ip, self.network).is_ok()
            && self.given.get(&position).is_none_or(|given| given.ip == ip)
            && self.by_ip.get(&ip).is_none_or(|known| *known == position);
        is_it.then_some(position)
    }

    /// What can be given: not the network's own address, not the first host's, which stands for
    /// this cluster itself, and not the broadcast address.
    fn positions(&self) -> RangeInclusive<u32> {
        let bits = self.network.net().max_prefix_len() - self.network.net().prefix_len();
        let size = 1_u32.checked_shl(bits.into()).unwrap_or(u32::MAX);
        let itself = self.position(ExternalIp(first_host(self.network))).unwrap_or(0);
        itself + 1..=size.saturating_sub(2)
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

/// When an address that is freed now has rested, in whole seconds, as it is stored.
pub(super) fn rested(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second() + REST.as_secs() + 1).unwrap_or(Timestamp::MAX)
}

fn bits(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}
