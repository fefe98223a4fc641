//! Translated CIDRs that peers have released. Another peer gets such a CIDR only after the
//! quarantine, so that packets in flight and open connections do not reach its pods. The quarantine
//! is stored with the networks of the former peer: one write both releases a CIDR and quarantines
//! it.

use std::{collections::BTreeMap, net::IpAddr};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tombolo_api::{
    Cidr, ClusterId,
    net::{IpamStorageSpec, QuarantinedCidr},
};

use super::{StorageShard, external};

/// Translated CIDRs of one peer, including quarantined ones. The limit keeps a peer that changes
/// its networks over and over from using up the pools.
pub(super) const MAX_PER_PEER: usize = 16;

/// The quarantined CIDRs, by their former peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CidrQuarantine(BTreeMap<ClusterId, BTreeMap<Cidr, QuarantinedCidr>>);

impl CidrQuarantine {
    /// Quarantines a CIDR to which the network `of` a peer was translated.
    pub(super) fn add(&mut self, cluster: &ClusterId, translated: Cidr, of: Cidr, now: Timestamp) {
        let quarantined = QuarantinedCidr { of, until: Time(external::quarantine_end(now)) };
        self.0.entry(cluster.clone()).or_default().insert(translated, quarantined);
    }

    /// Restores the stored CIDRs of a peer. No quarantine is longer than one that starts now.
    pub(super) fn restore(
        &mut self,
        cluster: &ClusterId,
        stored: &IpamStorageSpec,
        now: Timestamp,
    ) {
        let latest = external::quarantine_end(now);
        for (translated, QuarantinedCidr { of, until }) in &stored.quarantined_cidrs {
            let quarantined = QuarantinedCidr { of: *of, until: Time(until.0.min(latest)) };
            self.0.entry(cluster.clone()).or_default().insert(*translated, quarantined);
        }
    }

    /// Ends the quarantine of a CIDR that its former peer uses again.
    pub(super) fn remove(&mut self, cluster: &ClusterId, translated: Cidr) {
        self.retain(|of, quarantined, _| of != cluster || quarantined != translated);
    }

    /// Removes expired CIDRs. Returns the changed shards.
    pub(super) fn expire(&mut self, now: Timestamp) -> Vec<StorageShard> {
        let is_expired = |cidrs: &BTreeMap<Cidr, QuarantinedCidr>| {
            cidrs.values().any(|quarantined| quarantined.until.0 <= now)
        };
        let changed = self.0.iter().filter(|(_, cidrs)| is_expired(cidrs));
        let changed = changed.map(|(cluster, _)| StorageShard::Networks(cluster.clone())).collect();
        self.retain(|_, _, quarantined| quarantined.until.0 > now);
        changed
    }

    /// When the first CIDR expires.
    pub(super) fn next_expiry(&self) -> Option<Timestamp> {
        self.all().map(|(_, _, quarantined)| quarantined.until.0).min()
    }

    /// The former peers of all quarantined CIDRs.
    pub(super) fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.0.keys()
    }

    /// The quarantined CIDRs of a peer, in their stored form.
    pub(super) fn of(&self, cluster: &ClusterId) -> BTreeMap<Cidr, QuarantinedCidr> {
        self.0.get(cluster).cloned().unwrap_or_default()
    }

    /// All quarantined CIDRs, with their former peers.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ClusterId, Cidr, &QuarantinedCidr)> {
        self.0
            .iter()
            .flat_map(|(cluster, cidrs)| cidrs.iter().map(move |(cidr, it)| (cluster, *cidr, it)))
    }

    /// The quarantined CIDRs of other peers, with the remaining seconds.
    pub(super) fn of_others(
        &self,
        cluster: &ClusterId,
        now: Timestamp,
    ) -> impl Iterator<Item = (Cidr, i64)> {
        self.all()
            .filter(move |(of, _, quarantined)| *of != cluster && quarantined.until.0 > now)
            .map(move |(_, cidr, quarantined)| (cidr, remaining_seconds(quarantined, now)))
    }

    /// The former translated CIDRs of a peer's network, the latest first.
    pub(super) fn formerly_of(&self, cluster: &ClusterId, real: Cidr) -> Vec<Cidr> {
        let mut cidrs: Vec<_> =
            self.of(cluster).into_iter().filter(|(_, it)| it.of == real).collect();
        cidrs.sort_by_key(|(_, quarantined)| std::cmp::Reverse(quarantined.until.0));
        cidrs.into_iter().map(|(cidr, _)| cidr).collect()
    }

    /// The quarantined CIDR that contains an address, with its former peer.
    pub(super) fn containing(&self, ip: IpAddr) -> Option<(&ClusterId, Cidr, &QuarantinedCidr)> {
        self.all().find(|(_, cidr, _)| cidr.net().contains(&ip))
    }

    fn retain(&mut self, stays: impl Fn(&ClusterId, Cidr, &QuarantinedCidr) -> bool) {
        self.0.retain(|cluster, cidrs| {
            cidrs.retain(|cidr, quarantined| stays(cluster, *cidr, quarantined));
            !cidrs.is_empty()
        });
    }
}

/// Seconds until the quarantine ends.
pub(super) fn remaining_seconds(quarantined: &QuarantinedCidr, now: Timestamp) -> i64 {
    quarantined.until.0.duration_since(now).as_secs().max(0)
}
