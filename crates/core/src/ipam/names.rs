//! Names that peers' networks had here until a while ago. Another peer gets one only after that, so
//! that packets which are still under way, and connections which are still open, don't reach its
//! pods. They are kept with what is known of the peer that had them: one write frees a name and has it
//! rest.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tombolo_api::{
    Cidr, ClusterId,
    net::{IpamStorageSpec, QuarantinedCidr},
};

use super::{Part, external};

/// How many names a peer may have, at most, with those that rest: one that changes its networks over
/// and over does not get all that there are.
pub(super) const MOST: usize = 16;

/// The names that rest, by who had them last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RestingNames(BTreeMap<ClusterId, BTreeMap<Cidr, QuarantinedCidr>>);

impl RestingNames {
    /// A name that a network of a peer has no longer.
    pub(super) fn rest(&mut self, cluster: &ClusterId, name: Cidr, of: Cidr, now: Timestamp) {
        let resting = QuarantinedCidr { of, until: Time(external::rested(now)) };
        self.0.entry(cluster.clone()).or_default().insert(name, resting);
    }

    /// What was stored of a peer. Nothing rests for longer than if it were freed now.
    pub(super) fn restore(
        &mut self,
        cluster: &ClusterId,
        stored: &IpamStorageSpec,
        now: Timestamp,
    ) {
        let latest = external::rested(now);
        for (name, QuarantinedCidr { of, until }) in &stored.resting_subnets {
            let resting = QuarantinedCidr { of: *of, until: Time(until.0.min(latest)) };
            self.0.entry(cluster.clone()).or_default().insert(*name, resting);
        }
    }

    /// The peer has its name back.
    pub(super) fn end(&mut self, cluster: &ClusterId, name: Cidr) {
        self.retain(|of, resting, _| of != cluster || resting != name);
    }

    /// Forgets what has rested, and says which parts that changes.
    pub(super) fn wake(&mut self, now: Timestamp) -> Vec<Part> {
        let is_over = |names: &BTreeMap<Cidr, QuarantinedCidr>| {
            names.values().any(|resting| resting.until.0 <= now)
        };
        let changed = self.0.iter().filter(|(_, names)| is_over(names));
        let changed = changed.map(|(cluster, _)| Part::Networks(cluster.clone())).collect();
        self.retain(|_, _, resting| resting.until.0 > now);
        changed
    }

    /// When the first one has rested.
    pub(super) fn next_to_wake(&self) -> Option<Timestamp> {
        self.all().map(|(_, _, resting)| resting.until.0).min()
    }

    /// The peers of which any rests.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.0.keys()
    }

    /// Those of a peer, as they are stored.
    pub(super) fn of(&self, cluster: &ClusterId) -> BTreeMap<Cidr, QuarantinedCidr> {
        self.0.get(cluster).cloned().unwrap_or_default()
    }

    /// All, with who had them.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ClusterId, Cidr, &QuarantinedCidr)> {
        self.0
            .iter()
            .flat_map(|(cluster, names)| names.iter().map(move |(name, it)| (cluster, *name, it)))
    }

    /// Those of other peers that still rest, and for how many seconds.
    pub(super) fn of_others(
        &self,
        cluster: &ClusterId,
        now: Timestamp,
    ) -> impl Iterator<Item = (Cidr, i64)> {
        self.all()
            .filter(move |(of, _, resting)| *of != cluster && resting.until.0 > now)
            .map(move |(_, name, resting)| (name, left(resting, now)))
    }

    /// The names that a network of a peer had, the last one first.
    pub(super) fn that_were(&self, cluster: &ClusterId, real: Cidr) -> Vec<Cidr> {
        let mut names: Vec<_> =
            self.of(cluster).into_iter().filter(|(_, resting)| resting.of == real).collect();
        names.sort_by_key(|(_, resting)| std::cmp::Reverse(resting.until.0));
        names.into_iter().map(|(name, _)| name).collect()
    }

    /// The name that an address is in, and whose it was.
    pub(super) fn around(&self, ip: IpAddr) -> Option<(&ClusterId, Cidr, &QuarantinedCidr)> {
        self.all().find(|(_, name, _)| name.net().contains(&ip))
    }

    fn retain(&mut self, stays: impl Fn(&ClusterId, Cidr, &QuarantinedCidr) -> bool) {
        self.0.retain(|cluster, names| {
            names.retain(|name, resting| stays(cluster, *name, resting));
            !names.is_empty()
        });
    }
}

/// Seconds until a name has rested.
pub(super) fn left(resting: &QuarantinedCidr, now: Timestamp) -> i64 {
    resting.until.0.duration_since(now).as_secs().max(0)
}
