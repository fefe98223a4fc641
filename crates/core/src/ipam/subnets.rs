//! The translated CIDRs of each peering.

use std::net::IpAddr;

use jiff::Timestamp;
use tombolo_api::{Cidr, ClusterId, NatCidr, net::Subnets};

use super::{IpamError, IpamState, StorageShard, cidr_quarantine, pool::Taken};
use crate::translate::{CidrTranslation, nat, overlap, same_size};

impl IpamState {
    /// Chooses the translated CIDRs of a peer's networks: the real CIDRs, unless they overlap a
    /// CIDR in use, are quarantined for another peer, or are public. The same networks keep their
    /// translated CIDRs as long as these are free, and get them back after a release. An error
    /// changes nothing.
    pub fn reserve(
        &mut self,
        cluster: &ClusterId,
        pods: Cidr,
        external: Cidr,
        now: Timestamp,
    ) -> Result<&Subnets, IpamError> {
        let before = self.clusters.get(cluster);
        let kept = |real: Option<Cidr>, translated: Option<Cidr>, wanted: Cidr| {
            if real == Some(wanted) { translated } else { None }
        };
        let known_pods =
            before.and_then(|it| kept(it.remote_pod_cidr, it.translated_pod_cidr(), pods));
        let known_external = before
            .and_then(|it| kept(it.remote_external_cidr, it.translated_external_cidr(), external));
        let mut taken = self.taken(cluster, now);
        let choose = |taken: &Taken, known, wanted| {
            let former = self.quarantine.formerly_of(cluster, wanted);
            taken.keep_or_choose(known, &former, wanted, &self.config.pools)
        };
        let translated_pods = choose(&taken, known_pods, pods)?;
        taken.extend([translated_pods]);
        let translated_external = choose(&taken, known_external, external)?;
        let subnets = Subnets {
            remote_pod_cidr: Some(pods),
            remote_external_cidr: Some(external),
            remote_nat_pod_cidr: nat(pods, translated_pods),
            remote_nat_external_cidr: nat(external, translated_external),
            ..before.cloned().unwrap_or_default()
        };
        if before != Some(&subnets) {
            self.check_limit(cluster, &subnets, now)?;
            let before = self.clusters.insert(cluster.clone(), subnets.clone());
            let before = translations(&before.unwrap_or_default());
            self.take(cluster, &translations(&subnets), &before, now);
            self.free(cluster, before, now);
            self.changes.shards.insert(StorageShard::Networks(cluster.clone()));
        }
        Ok(&self.clusters[cluster])
    }

    /// Checks the limit of a peer's translated CIDRs, including quarantined ones.
    fn check_limit(
        &self,
        cluster: &ClusterId,
        subnets: &Subnets,
        now: Timestamp,
    ) -> Result<(), IpamError> {
        let after = translations(subnets);
        let before = self.clusters.get(cluster).map(translations).unwrap_or_default();
        let is_unused = |cidr: &Cidr| !after.iter().any(|(it, _)| it == cidr);
        let quarantined = self.quarantine.of(cluster).into_iter();
        let quarantined = quarantined.filter(|(cidr, it)| is_unused(cidr) && it.until.0 > now);
        let remaining = |(_, it)| cidr_quarantine::remaining_seconds(&it, now);
        let quarantined: Vec<_> = quarantined.map(remaining).collect();
        let freed = before.iter().filter(|(cidr, _)| is_unused(cidr)).count();
        if quarantined.len() + freed + after.len() <= cidr_quarantine::MAX_PER_PEER {
            return Ok(());
        }
        let first = quarantined.iter().min().copied().unwrap_or(0);
        let (peer, quarantined) = (cluster.clone(), quarantined.len());
        Err(IpamError::TooManyTranslatedCidrs { peer, quarantined, first })
    }

    /// Records the CIDRs to which a peer translates this cluster's networks.
    pub fn set_local_nat_cidrs(
        &mut self,
        cluster: &ClusterId,
        pods: NatCidr,
        external: NatCidr,
    ) -> Result<(), IpamError> {
        let external_cidr = self.external_cidr();
        let subnets = self
            .clusters
            .get_mut(cluster)
            .ok_or_else(|| IpamError::UnknownCluster(cluster.clone()))?;
        for (real, nat) in [(self.config.pod_cidr, pods), (external_cidr, external)] {
            CidrTranslation::from_nat(real, nat)?;
        }
        let (pods, external) = (Some(pods), Some(external));
        let networks = || StorageShard::Networks(cluster.clone());
        if subnets.local_nat_pod_cidr != pods {
            subnets.local_nat_pod_cidr = pods;
            self.changes.shards.insert(networks());
        }
        if subnets.local_nat_external_cidr != external {
            subnets.local_nat_external_cidr = external;
            self.changes.shards.insert(networks());
            let shards = self.external.all().map(|(shard, ..)| shard);
            self.changes.shards.extend(shards.filter(|shard| shard.cluster() == cluster));
        }
        Ok(())
    }

    /// Releases the translated CIDRs of a peer and all mappings for it.
    pub fn release(&mut self, cluster: &ClusterId, now: Timestamp) {
        if let Some(before) = self.clusters.remove(cluster) {
            self.changes.shards.insert(StorageShard::Networks(cluster.clone()));
            self.changes.shards.extend(self.external.remove_cluster(cluster, now));
            self.free(cluster, translations(&before), now);
            // On error the ExternalCIDR stays as it is: no peer uses it.
            let _ = self.settle_external();
        }
    }

    /// Takes CIDRs for a peer. Mapped endpoints in them are unmapped, because their addresses are
    /// the peer's from now on, except for those in the CIDRs that the peer had `before`.
    fn take(
        &mut self,
        cluster: &ClusterId,
        after: &[Translation],
        before: &[Translation],
        now: Timestamp,
    ) {
        let was_of_peer = |ip| before.iter().any(|(cidr, _)| cidr.net().contains(&ip));
        for (cidr, _) in after {
            self.quarantine.remove(cluster, *cidr);
            self.changes.shards.extend(self.external.unmap_within(*cidr, now, was_of_peer));
        }
        // Expired CIDRs of other peers may be among those taken.
        self.changes.shards.extend(self.quarantine.expire(now));
    }

    /// Quarantines the former CIDRs of a peer that are not in use, and unmaps the endpoints in
    /// them.
    fn free(&mut self, cluster: &ClusterId, before: Vec<Translation>, now: Timestamp) {
        for (cidr, of) in before {
            let mut used = self.clusters.values().flat_map(translations);
            if used.all(|(used, _)| used != cidr) {
                self.quarantine.add(cluster, cidr, of, now);
                self.unmap_within(cidr, now);
            }
        }
    }

    /// Unmaps the endpoints in a quarantined CIDR, except for addresses of current peers.
    pub(super) fn unmap_within(&mut self, cidr: Cidr, now: Timestamp) {
        let used: Vec<_> = self.clusters.values().flat_map(translations).collect();
        let stays = |ip| used.iter().any(|(cidr, _)| cidr.net().contains(&ip));
        self.changes.shards.extend(self.external.unmap_within(cidr, now, stays));
    }

    /// Whether an address is in the translated CIDR of a peer.
    pub(super) fn is_of_peer(&self, ip: IpAddr) -> bool {
        self.clusters.values().flat_map(translations).any(|(cidr, _)| cidr.net().contains(&ip))
    }

    /// Restores the stored CIDRs of a peering, or quarantines them if they overlap others. The
    /// peer's translated CIDRs for this cluster are restored only if this cluster's CIDRs are the
    /// same as then (`is_of_us`).
    pub(super) fn restore_subnets(
        &mut self,
        cluster: &ClusterId,
        subnets: &Subnets,
        is_of_us: bool,
        now: Timestamp,
    ) {
        if !self.is_restorable(cluster, subnets) {
            for (cidr, of) in translations(subnets) {
                self.quarantine.add(cluster, cidr, of, now);
            }
            return;
        }
        let mut subnets = subnets.clone();
        if !is_of_us
            || !fits(subnets.local_nat_pod_cidr, self.config.pod_cidr)
            || !fits(subnets.local_nat_external_cidr, self.external_cidr())
        {
            subnets.local_nat_pod_cidr = None;
            subnets.local_nat_external_cidr = None;
        }
        self.clusters.insert(cluster.clone(), subnets);
    }

    fn is_restorable(&self, cluster: &ClusterId, subnets: &Subnets) -> bool {
        let (Some(remote_pod), Some(remote_external)) =
            (subnets.remote_pod_cidr, subnets.remote_external_cidr)
        else {
            return false;
        };
        let pods = subnets.remote_nat_pod_cidr.or(remote_pod);
        let external = subnets.remote_nat_external_cidr.or(remote_external);
        let own = [self.config.pod_cidr, self.config.service_cidr, self.external_cidr()];
        let of_peers = self.clusters.values().flat_map(translations).map(|(cidr, _)| cidr);
        let is_free = own
            .into_iter()
            .chain(of_peers)
            .all(|taken| !overlap(taken, pods) && !overlap(taken, external));
        let fits = same_size(remote_pod, pods) && same_size(remote_external, external);
        is_free && fits && !overlap(pods, external) && !self.clusters.contains_key(cluster)
    }
}

/// The translated and the real CIDR of a peer's network.
type Translation = (Cidr, Cidr);

fn translations(subnets: &Subnets) -> Vec<Translation> {
    let pods = subnets.translated_pod_cidr().zip(subnets.remote_pod_cidr);
    let external = subnets.translated_external_cidr().zip(subnets.remote_external_cidr);
    pods.into_iter().chain(external).collect()
}

fn fits(nat: Option<NatCidr>, real: Cidr) -> bool {
    nat.is_some_and(|nat| same_size(nat.or(real), real))
}
